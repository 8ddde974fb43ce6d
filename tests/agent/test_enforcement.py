"""Only the right process is ended."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.agent.watchdog import EndMethod, EndResult, end_processes
from partage.errors import HardwareTimeout
from partage.model.geometry import MigProfile
from partage.model.gpu_use import Processes, ProcessKind
from partage.model.ids import PodUid, share_id
from partage.model.layout import LayoutItem
from partage.model.mps import DaemonSpec, DaemonState
from partage.model.policy import WatchAction
from partage.model.share import Guarantee
from partage.model.step import Created, EndClient, StartDaemon, Step
from partage.plan.serve.ledger_entry import Certainty, LedgerEntry
from partage.plan.serve.watchdog import (
    ContainerUsage,
    GrantKind,
    Violation,
    ViolationKind,
    check_usage,
    grants_of,
)
from partage.sim.node.faults import FailCall, Occupy, SetMig, Vacate
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.units import GIB, MIB
from tests.agent.tenants import HOLDERS, NOTEBOOK, TRAIN, works
from tests.plan.offers import NAME, offering

SHARE_BYTES = 20 * GIB


async def node(kind: type[SimulatedHardware] = SimulatedHardware, *, mps: bool) -> SimulatedHardware:
    """GPU 0 is shared; under MPS it has a daemon."""
    hardware = kind(load_machine("2xh100-sxm5-80gb"))
    if mps:
        uuid = (await hardware.observe()).gpus[0].uuid
        await hardware.perform(StartDaemon(uuid, DaemonSpec(uuid, uuid, SHARE_BYTES // MIB * MIB)))
    return hardware


async def occupied(hardware: SimulatedHardware, *tenants: Occupy) -> None:
    for tenant in tenants:
        await hardware.inject(tenant)


async def verdict(hardware: SimulatedHardware) -> Violation:
    """What is to be done about the container of TRAIN, which holds one of four shares of GPU 0."""
    gpu = (await hardware.observe()).gpus[0].uuid
    share = replace(
        offering(0, 4), device=gpu, gpu=gpu, memory_bytes=SHARE_BYTES, guarantee=Guarantee.GUARDED
    )
    held = ((share_id(gpu, number), HOLDERS[who]) for number, who in enumerate((TRAIN, NOTEBOOK)))
    entries = [LedgerEntry(NAME, identity, Certainty.OBSERVED, (holder,), 0) for identity, holder in held]
    granted = grants_of(entries, {gpu: (share,)})
    found = check_usage(await hardware.processes(), HOLDERS, granted, {gpu: WatchAction.KILL})
    (one,) = (one for one in found.violations if one.concern is ViolationKind.OVER)
    assert one.usage.container == TRAIN
    return one


async def pids(hardware: SimulatedHardware) -> set[int]:
    """Of all processes on a GPU, the daemon's server left out."""
    return {row.pid for row in (await hardware.processes()).rows if row.pid < 900_000}


@pytest.mark.parametrize(("mps", "how"), [(True, EndMethod.CLIENT), (False, EndMethod.PROCESS)])
async def test_all_processes_of_the_container_are_ended_and_nobody_elses(mps: bool, how: EndMethod) -> None:
    hardware = await node(mps=mps)
    mine = [works(pid, 12 * GIB, mps=mps) for pid in (11, 12)]
    await occupied(hardware, *mine, works(21, 12 * GIB, NOTEBOOK, mps=mps), works(13, GIB, gpu=1, mps=mps))
    assert await end_processes(hardware, await verdict(hardware)) == EndResult({11: how, 12: how})
    assert await pids(hardware) == {21, 13}


async def test_a_client_of_mps_and_a_process_past_it_are_each_ended_their_own_way() -> None:
    hardware = await node(mps=True)
    await occupied(hardware, works(11, 15 * GIB, mps=True), works(12, 15 * GIB, mps=False))
    assert (await end_processes(hardware, await verdict(hardware))).how == {
        11: EndMethod.CLIENT,
        12: EndMethod.PROCESS,
    }
    assert await pids(hardware) == set()


@pytest.mark.parametrize("mps", [True, False])
async def test_who_has_the_pid_by_now_is_left_alone(mps: bool) -> None:
    hardware = await node(mps=mps)
    await occupied(hardware, works(11, 30 * GIB, mps=mps))
    judged = await verdict(hardware)
    await hardware.inject(Vacate(0))
    await occupied(hardware, works(11, 10 * GIB, NOTEBOOK, mps=mps))
    assert await end_processes(hardware, judged) == EndResult({})
    assert await pids(hardware) == {11}


@pytest.mark.parametrize("mps", [True, False])
async def test_who_has_gone_by_himself_is_no_failure(mps: bool) -> None:
    hardware = await node(mps=mps)
    await occupied(hardware, works(11, 30 * GIB, mps=mps))
    judged = await verdict(hardware)
    await hardware.inject(Vacate(0))
    assert await end_processes(hardware, judged) == EndResult({})


async def test_a_client_of_a_daemon_that_is_not_ours_goes_on_and_that_is_said() -> None:
    hardware = await node(mps=False)
    await occupied(hardware, works(11, 30 * GIB, mps=True))
    outcome = await end_processes(hardware, await verdict(hardware))
    assert outcome == EndResult({}, ("no MPS daemon of ours has process 11 for a client",))
    assert await pids(hardware) == {11}


@pytest.mark.parametrize("mps", [True, False])
async def test_hardware_that_fails_is_said_and_the_others_are_ended(mps: bool) -> None:
    hardware = await node(mps=mps)
    await occupied(hardware, works(11, 15 * GIB, mps=mps), works(12, 15 * GIB, mps=mps))
    await hardware.inject(FailCall("perform", HardwareTimeout("no answer")))
    outcome = await end_processes(hardware, await verdict(hardware))
    assert outcome.failed == ("no answer",)
    assert len(outcome.how) == 1
    assert len(await pids(hardware)) == 1


class Forgetful(SimulatedHardware):
    """The records of its MPS daemons are lost."""

    async def daemons(self) -> tuple[DaemonState, ...]:
        return tuple(replace(one, gpu=None) for one in await super().daemons())


async def test_a_client_on_a_mig_device_is_ended_by_the_daemon_of_that_device() -> None:
    hardware = Forgetful(load_machine("2xh100-sxm5-80gb"))
    half = LayoutItem(MigProfile.parse("3g.40gb"))
    await hardware.inject(SetMig(0, (half, half)))
    gpu = (await hardware.observe()).gpus[0]
    for device in gpu.mig_devices:
        await hardware.perform(StartDaemon(gpu.uuid, DaemonSpec(gpu.uuid, device.uuid)))
        await occupied(hardware, replace(works(11, GIB, mps=True), gi=device.gi_id, ci=device.ci_id))
    rows = (await hardware.processes()).rows
    (row,) = (one for one in rows if (one.pid, one.device) == (11, gpu.mig_devices[1].uuid))
    usage = ContainerUsage(
        device=gpu.mig_devices[1].uuid,
        gpu=gpu.uuid,
        container=TRAIN,
        pod=PodUid(""),
        holder=None,
        grant=GrantKind.NONE,
        granted_bytes=0,
        guarantee=None,
        used_bytes=GIB,
        partly=False,
        processes=(row,),
    )
    violation = Violation(ViolationKind.UNGRANTED, usage, "no share", clients=(11,))
    assert await end_processes(hardware, violation) == EndResult({11: EndMethod.CLIENT})


class Deaf(SimulatedHardware):
    """Its MPS daemons end no client, and do not say so."""

    async def perform(self, step: Step) -> Created | None:
        return None if isinstance(step, EndClient) else await super().perform(step)


async def test_a_client_that_goes_on_is_not_said_to_be_ended_and_not_signalled() -> None:
    """NVIDIA: to end a busy client by a signal may hang the server for everybody."""
    hardware = await node(Deaf, mps=True)
    await occupied(hardware, works(11, 30 * GIB, mps=True))
    outcome = await end_processes(hardware, await verdict(hardware))
    assert outcome == EndResult({}, ("MPS client 11 was told to end, and still runs",))
    assert await pids(hardware) == {11}


class Turncoat(SimulatedHardware):
    """Its MPS clients, once ended, work on the GPU past the daemon."""

    async def perform(self, step: Step) -> Created | None:
        if isinstance(step, EndClient):
            await self.inject(works(step.client, 30 * GIB, mps=False))
            return None
        return await super().perform(step)


async def test_a_client_that_then_works_past_its_daemon_is_ended_with_its_process() -> None:
    hardware = await node(Turncoat, mps=True)
    await occupied(hardware, works(11, 30 * GIB, mps=True))
    assert await end_processes(hardware, await verdict(hardware)) == EndResult({11: EndMethod.PROCESS})
    assert await pids(hardware) == set()


class Plain(SimulatedHardware):
    """Its driver lists MPS clients as ordinary processes. told: the steps that were done."""

    told: tuple[Step, ...] = ()

    async def processes(self) -> Processes:
        found = await super().processes()
        return replace(found, rows=tuple(replace(row, kind=ProcessKind.COMPUTE) for row in found.rows))

    async def perform(self, step: Step) -> Created | None:
        self.told = (*self.told, step)
        return await super().perform(step)


async def test_a_client_that_the_driver_lists_as_an_ordinary_process_is_ended_by_its_daemon() -> None:
    hardware = await node(Plain, mps=True)
    assert isinstance(hardware, Plain)
    await occupied(hardware, works(11, 30 * GIB, mps=True))
    assert await end_processes(hardware, await verdict(hardware)) == EndResult({11: EndMethod.CLIENT})
    assert [type(step) for step in hardware.told[1:]] == [EndClient]
