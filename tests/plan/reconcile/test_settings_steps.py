"""From how a GPU is set to how its shares need it, and back to how it was."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.gpu import ComputeMode, Inventory
from partage.model.ids import GpuUuid
from partage.model.layout import LayoutItem
from partage.model.mps import (
    ClientLimits,
    ConnectedClient,
    DaemonPhase,
    DaemonSpec,
    DaemonState,
    MpsServer,
)
from partage.model.policy import (
    AllDevices,
    DesiredMig,
    Exclusive,
    GpuEntry,
    Mps,
    Policy,
    SharingClient,
)
from partage.model.step import SetComputeMode, SetTimeSlice, StartDaemon, Step, StopDaemon, reverse
from partage.model.strategy import Interval
from partage.plan.offer.desired import resolve
from partage.plan.offer.settings import NO_SETTINGS, GpuSettings, settings_of
from partage.plan.reconcile.mig_plan import plan_mig
from partage.plan.reconcile.settings_steps import (
    OriginalSettings,
    clients_in_the_way,
    needed_originals,
    note_originals,
    settings_steps,
    slice_steps,
    unusable_devices,
)
from partage.sim.node.faults import SetMig
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.units import GIB
from tests.plan.offers import gpu, target

CARD = gpu(0)
SPEC = DaemonSpec(CARD.uuid, CARD.uuid, 20 * GIB, 25)
WANT = GpuSettings((SPEC,), exclusive_process=True)
DEFAULT, ALONE = ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS
SET = replace(CARD, compute_mode=ALONE)


def daemon(phase: DaemonPhase = DaemonPhase.SERVING, spec: DaemonSpec = SPEC) -> DaemonState:
    limits = ClientLimits(spec.memory_bytes, spec.threads_percent)
    return DaemonState(spec.gpu, spec.device, phase, 42, (), limits, multi_user=True)


def test_even_shares_need_a_daemon_with_their_limits_and_exclusive_shares_need_nothing() -> None:
    settings = settings_of([target(gpu(0), Mps(4)), target(gpu(1), Exclusive())])
    (spec,) = settings[gpu(0).uuid].daemons
    assert spec.memory_bytes == gpu(0).memory_bytes // 4
    assert (spec.threads_percent, settings[gpu(0).uuid].exclusive_process) == (25, True)
    assert gpu(1).uuid not in settings


def test_unequal_clients_need_the_largest_ones_limits() -> None:
    clients = (SharingClient("big", 40 * GIB, 60), SharingClient("small", 8 * GIB, 10))
    (setting,) = settings_of([target(gpu(0), Mps(2, clients))]).values()
    assert (setting.daemons[0].memory_bytes, setting.daemons[0].threads_percent) == (40 * GIB, 60)


def test_the_mode_is_set_before_the_daemon_starts_and_given_back_after_it_has_ended() -> None:
    make = settings_steps(CARD, WANT, (), OriginalSettings())
    assert make.make == (SetComputeMode(CARD.uuid, ALONE, DEFAULT), StartDaemon(CARD.uuid, SPEC))
    assert not make.end
    end = settings_steps(SET, NO_SETTINGS, [daemon()], OriginalSettings(DEFAULT))
    assert [type(step) for step in end.end] == [StopDaemon, SetComputeMode]
    assert not end.make


def test_a_daemon_that_has_to_be_started_again_waits_for_its_clients() -> None:
    unlimited = replace(daemon(DaemonPhase.STARTING), limits=ClientLimits(), reason="it has no limits")
    busy = replace(unlimited, servers=(MpsServer(7, clients=(ConnectedClient(8, command="python"),)),))
    (start,) = settings_steps(SET, WANT, [unlimited], OriginalSettings(DEFAULT)).make
    assert start == StartDaemon(CARD.uuid, SPEC)
    assert not clients_in_the_way([start], [unlimited])
    assert "client python (pid 8): it has no limits" in clients_in_the_way([start], [busy])
    assert not clients_in_the_way([], [busy])


@pytest.mark.parametrize(
    "running",
    [
        daemon(),
        daemon(DaemonPhase.FAULT),
        replace(daemon(DaemonPhase.FAULT), unsettled="somebody else told it 'set...'"),
    ],
)
@pytest.mark.parametrize("multi_user", [None, True])
def test_a_daemon_that_runs_as_asked_is_left_to_its_clients(
    running: DaemonState, multi_user: bool | None
) -> None:
    want = replace(WANT, daemons=(replace(SPEC, multi_user=multi_user),))
    assert settings_steps(SET, want, [running], OriginalSettings(DEFAULT)).settled


@pytest.mark.parametrize("phase", [DaemonPhase.SERVING, DaemonPhase.STARTING])
def test_limits_are_set_again_under_the_clients_after_a_command_of_somebody_else(phase: DaemonPhase) -> None:
    told = replace(daemon(phase), unsettled="somebody else told it 'set...'")
    busy = replace(told, servers=(MpsServer(7, clients=(ConnectedClient(8),)),))
    settling = settings_steps(SET, WANT, [busy], OriginalSettings(DEFAULT))
    assert (settling.end, settling.make) == ((), (StartDaemon(CARD.uuid, SPEC),))
    assert not clients_in_the_way(settling.make, [busy])
    assert not unusable_devices(WANT, [busy]) or phase is DaemonPhase.STARTING


def test_a_log_that_says_nothing_is_no_reason_to_set_limits_for_ever() -> None:
    told = replace(daemon(), doubt="the file system of its control.log is full")
    assert settings_steps(SET, WANT, [told], OriginalSettings(DEFAULT)).settled


def test_a_daemon_that_does_not_answer_is_ended_and_started_again_once_nobody_holds_a_share() -> None:
    silent = daemon(DaemonPhase.SILENT)
    steps = settings_steps(SET, WANT, [silent], OriginalSettings(DEFAULT))
    assert steps.end == (StopDaemon(CARD.uuid, silent.device, None),)  # what is in ``end`` waits for holders
    assert steps.make == (StartDaemon(CARD.uuid, SPEC),)


@pytest.mark.parametrize("phase", [DaemonPhase.DEAD, DaemonPhase.STARTING])
def test_one_that_does_not_run_or_is_unverified_is_started_under_its_shares(phase: DaemonPhase) -> None:
    settling = settings_steps(SET, WANT, [daemon(phase)], OriginalSettings(DEFAULT))
    assert (settling.end, settling.make) == ((), (StartDaemon(CARD.uuid, SPEC),))


@pytest.mark.parametrize(
    ("was", "multi_user", "wanted"),
    [
        (replace(SPEC, memory_bytes=10 * GIB), True, SPEC),
        (SPEC, True, replace(SPEC, multi_user=False)),
        (SPEC, False, replace(SPEC, multi_user=True)),
    ],
)
def test_one_that_was_asked_for_something_else_ends_first(
    was: DaemonSpec, multi_user: bool, wanted: DaemonSpec
) -> None:
    running = replace(daemon(spec=was), multi_user=multi_user)
    want = replace(WANT, daemons=(wanted,))
    settling = settings_steps(SET, want, [running], OriginalSettings(DEFAULT))
    (stop,) = settling.end
    assert isinstance(stop, StopDaemon)
    assert reverse(stop) == StartDaemon(CARD.uuid, replace(was, multi_user=multi_user or None))
    assert settling.make == (StartDaemon(CARD.uuid, wanted),)


@pytest.mark.parametrize(
    ("mode", "before"), [(ALONE, None), (ALONE, ALONE), (ComputeMode.PROHIBITED, DEFAULT)]
)
def test_a_mode_that_is_not_ours_stays(mode: ComputeMode, before: ComputeMode | None) -> None:
    gpu = replace(CARD, compute_mode=mode)
    assert settings_steps(gpu, NO_SETTINGS, (), OriginalSettings(before)).settled


def test_only_devices_whose_daemon_takes_no_clients_are_unusable() -> None:
    assert unusable_devices(WANT, [daemon()]) == {}
    fault = daemon(DaemonPhase.FAULT)
    assert "fault" in unusable_devices(WANT, [fault])[CARD.uuid]
    assert unusable_devices(WANT, [replace(fault, reason="Xid 31")]) == {CARD.uuid: "Xid 31"}
    assert "not been started" in unusable_devices(WANT, ())[CARD.uuid]


A = GpuUuid("a")


@pytest.mark.parametrize(
    ("wanted", "now", "before", "steps"),
    [
        (Interval.LONG, Interval.DEFAULT, None, (SetTimeSlice(A, Interval.LONG, Interval.DEFAULT),)),
        (None, Interval.LONG, Interval.DEFAULT, (SetTimeSlice(A, Interval.DEFAULT, Interval.LONG),)),
        (None, Interval.MEDIUM, None, ()),
        (Interval.SHORT, Interval.SHORT, None, ()),
        (Interval.LONG, None, None, ()),
    ],
)
def test_slices_are_set_given_back_and_left_alone(
    wanted: Interval | None, now: Interval | None, before: Interval | None, steps: tuple[SetTimeSlice, ...]
) -> None:
    want, original = GpuSettings(interval=wanted), OriginalSettings(interval=before)
    assert slice_steps(A, want, now, original) == steps


def test_only_what_is_changed_is_noted_and_only_once() -> None:
    back = SetComputeMode(A, DEFAULT, ALONE)
    assert note_originals([back], {}) == {}
    known = {A: OriginalSettings(DEFAULT, Interval.DEFAULT)}
    again: list[Step] = [
        SetComputeMode(A, ALONE, ComputeMode.PROHIBITED),
        SetTimeSlice(A, Interval.LONG, Interval.SHORT),
    ]
    assert note_originals(again, known) == known


BOTH = OriginalSettings(DEFAULT, Interval.DEFAULT)
ONLY_MODE, ONLY_INTERVAL = OriginalSettings(DEFAULT), OriginalSettings(interval=Interval.DEFAULT)


@pytest.mark.parametrize(
    ("want", "mode", "interval", "needed"),
    [
        (NO_SETTINGS, None, None, BOTH),  # not observed
        (NO_SETTINGS, ALONE, Interval.LONG, BOTH),  # not restored yet
        (NO_SETTINGS, DEFAULT, Interval.LONG, ONLY_INTERVAL),
        (NO_SETTINGS, ALONE, Interval.DEFAULT, ONLY_MODE),
        (NO_SETTINGS, DEFAULT, Interval.DEFAULT, None),
        (GpuSettings((SPEC,), True), DEFAULT, Interval.DEFAULT, ONLY_MODE),  # not set yet
        (GpuSettings(interval=Interval.LONG), DEFAULT, Interval.DEFAULT, ONLY_INTERVAL),
    ],
)
def test_originals_are_needed_while_they_are_in_use_or_not_restored(
    want: GpuSettings, mode: ComputeMode | None, interval: Interval | None, needed: OriginalSettings | None
) -> None:
    modes = {} if mode is None else {A: mode}
    slices = {} if interval is None else {A: interval}
    expected = {} if needed is None else {A: needed}
    assert needed_originals({A: BOTH}, {A: want}, modes, slices) == expected


MODES = st.sampled_from([DEFAULT, ALONE])
SLICES = st.sampled_from(Interval)


@given(MODES, SLICES, SLICES, st.booleans())
def test_however_often_it_is_set_the_first_state_comes_back(
    mode: ComputeMode, first: Interval, wanted: Interval, again: bool
) -> None:
    """Set, set otherwise, wanted no more: as it was before anybody set anything, and nothing remembered."""
    card, slices = replace(CARD, compute_mode=mode), {CARD.uuid: first}
    known: dict[GpuUuid, OriginalSettings] = {}
    desired_layouts = [
        GpuSettings((SPEC,), True, wanted),
        *([GpuSettings((SPEC,), True, Interval.SHORT)] if again else []),
        NO_SETTINGS,
    ]
    standing: list[DaemonState] = []
    for want in desired_layouts:
        before = known.get(CARD.uuid, OriginalSettings())
        found = settings_steps(card, want, standing, before)
        steps: list[Step] = [*found.end, *found.make]
        steps += slice_steps(CARD.uuid, want, slices[CARD.uuid], before)
        known = note_originals(steps, known)
        for step in steps:
            match step:
                case SetComputeMode(_, to, _):
                    card = replace(card, compute_mode=to)
                case SetTimeSlice(_, to_slice, _):
                    slices = {CARD.uuid: to_slice}
                case StartDaemon():
                    standing = [daemon()]
                case StopDaemon():
                    standing = []
        known = needed_originals(known, {CARD.uuid: want}, {CARD.uuid: card.compute_mode}, slices)
    assert (card.compute_mode, slices[CARD.uuid], standing) == (mode, first, [])
    assert known in ({}, {CARD.uuid: OriginalSettings(mode)})


def test_what_a_daemon_allows_is_what_the_share_says() -> None:
    """Also where two MIG devices live in one GPU instance, and have its memory in common."""
    mig = "{layout: [1c.3g.40gb, 2c.3g.40gb], mps: {replicas: 2}}"
    text = f"version: partage/v1\ngpus:\n  - {{select: all, mig: {mig}}}\n"
    policy = parse_policy(text, "p.yaml").policy
    hardware = SimulatedHardware(load_machine("1xh100-sxm5-80gb"))

    async def made() -> Inventory:
        inventory = await hardware.observe()
        layouts = resolve(policy, inventory, geometry_of).layouts
        for unit in plan_mig(inventory, layouts, geometry_of).transactions:
            for step in unit.steps:
                await hardware.perform(step)
        return await hardware.observe()

    inventory = asyncio.run(made())
    desired = resolve(policy, inventory, geometry_of)
    (setting,) = desired.settings.values()
    (rows,) = desired.offer.values()
    assert {spec.device: spec.memory_bytes for spec in setting.daemons} == {
        row.device: row.memory_bytes for row in rows
    }
    assert len(setting.daemons) == 2


@pytest.mark.parametrize("model", ["h100-sxm5-80gb", "h100-pcie-80gb"])
def test_a_mig_device_is_planned_with_the_memory_that_it_then_has(model: str) -> None:
    """Also where the catalogue does not know how much that is: it is a part of the GPU's memory."""
    hardware = SimulatedHardware(load_machine(model))
    gpu = asyncio.run(hardware.observe()).gpus[0]
    geometry = geometry_of(gpu)
    assert geometry is not None
    items = (LayoutItem(geometry.profiles[0].profile),)
    policy = Policy((GpuEntry("gpus[0]", AllDevices(), mig=DesiredMig(items)),))

    def memory() -> list[int]:
        offer = resolve(policy, asyncio.run(hardware.observe()), geometry_of).offer
        return [row.memory_bytes for rows in offer.values() for row in rows]

    planned = memory()
    asyncio.run(hardware.inject(SetMig(0, items)))
    assert planned == memory()
