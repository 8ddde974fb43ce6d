"""Daemons and shares of MIG devices that stay, while the layout around them changes or has to wait."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.model.gpu import Inventory
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.layout import LayoutItem
from partage.model.mps import ClientLimits, ConnectedClient, DaemonPhase, DaemonState, MpsServer
from partage.model.step import StartDaemon, StopDaemon
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.node_plan import NodePlan
from partage.plan.reconcile.planner import plan_node
from partage.plan.reconcile.transition import GpuServing
from partage.sim.node.faults import SetMig
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.plan.reconcile.test_planner import (
    HALVES_MPS,
    HOPPER,
    desired_of,
    entry,
    first,
    serving,
    snapshot,
)

MPS = "{layout: [%s], mps: {replicas: 2}}"


def node_with(*items: str) -> Inventory:
    hardware = SimulatedHardware(load_machine(HOPPER))
    asyncio.run(hardware.inject(SetMig(0, tuple(map(LayoutItem.parse, items)))))
    return asyncio.run(hardware.observe())


def mps(*items: str) -> str:
    mig = MPS % ", ".join(items)
    return f"version: partage/v1\ngpus: [{{select: {{index: 0}}, mig: {mig}}}]\n"


def running(desired: DesiredState, gpu: GpuUuid) -> tuple[DaemonState, ...]:
    """The daemons that this policy wants, as they should be."""
    return tuple(
        DaemonState(gpu, spec.device, DaemonPhase.SERVING, 7, (), spec.limits, multi_user=True)
        for spec in desired.settings[gpu].daemons
    )


def changing(before: str, after: str, *items: str, **more: object) -> tuple[Inventory, NodePlan]:
    """From one policy, whose devices and daemons are all there, to another one."""
    inventory = node_with(*items)
    gpu = inventory.gpus[0].uuid
    was = desired_of(before, inventory)
    now = snapshot(inventory, daemons=running(was, gpu), served=serving(was), **more)
    return inventory, plan_node(desired_of(after, inventory), now, geometry_of)


def stopped(plan: NodePlan) -> list[DeviceUuid]:
    """Devices of the first GPU whose daemons end."""
    return [step.device for step in first(plan).steps if isinstance(step, StopDaemon)]


def test_a_device_that_stays_is_offered_and_its_daemon_runs_while_another_one_is_made() -> None:
    inventory, plan = changing(mps("3g.40gb@0"), HALVES_MPS, "3g.40gb@0")
    (stays,) = inventory.gpus[0].mig_devices
    assert {row.device for row in first(plan).offer} == {stays.uuid}
    assert stopped(plan) == []


def test_of_a_device_that_goes_the_daemon_is_stopped_first() -> None:
    inventory, plan = changing(mps("3g.40gb@0", "2g.20gb@4"), HALVES_MPS, "3g.40gb@0", "2g.20gb@4")
    stays, goes = inventory.gpus[0].mig_devices
    assert stopped(plan) == [goes.uuid]
    assert isinstance(first(plan).steps[0], StopDaemon)
    assert {row.device for row in first(plan).offer} == {stays.uuid}


@pytest.mark.parametrize(
    ("change", "starts"),
    [
        ({"phase": DaemonPhase.DEAD}, True),
        ({"phase": DaemonPhase.STARTING}, True),
        ({}, False),
        ({"limits": ClientLimits(2**30, 10)}, False),
        ({"phase": DaemonPhase.STARTING, "servers": (MpsServer(8, clients=(ConnectedClient(9),)),)}, False),
    ],
    ids=["it died", "it has no limits", "it runs", "it has to end first", "it has clients"],
)
def test_while_a_layout_waits_the_daemon_of_a_held_device_is_started_if_that_ends_nothing(
    change: dict[str, object], starts: bool
) -> None:
    """A process uses another device, which is in the way of the layout."""
    inventory = node_with("3g.40gb@0", "1g.10gb@4")
    gpu = inventory.gpus[0]
    stays, goes = gpu.mig_devices
    was = desired_of(mps("3g.40gb@0", "1g.10gb@4"), inventory)
    daemons = tuple(
        replace(daemon, **change) for daemon in running(was, gpu.uuid) if daemon.device == stays.uuid
    )
    rows = tuple(row for row in was.offer[gpu.uuid] if row.device == stays.uuid)
    now = snapshot(
        inventory,
        entry(rows[0].resource, rows[0].share_ids[0]),
        uses=(GpuUse(gpu.uuid, UseKind.PROCESS, "python", 4711, goes.uuid),),
        daemons=daemons,
        served={**serving(was), gpu.uuid: GpuServing(rows)},
    )
    plan = plan_node(desired_of(HALVES_MPS, inventory), now, geometry_of)
    assert "python (pid 4711)" in first(plan).reason
    steps = [step for transaction in plan.ready for step in transaction.steps]
    assert [step.spec.device for step in steps if isinstance(step, StartDaemon)] == (
        [stays.uuid] if starts else []
    )
    assert len(steps) == starts
