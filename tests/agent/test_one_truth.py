"""What ``plan`` lists is what ``apply`` and the agent then do: random nodes, random policies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.agent.observers.once import observe_input
from partage.agent.reconciler.apply_once import ApplyRun
from partage.agent.reconciler.executor import Progress
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.errors import InputError, Unsatisfiable
from partage.model.gpu import ComputeMode, Gpu, Inventory, MigDevice
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.layout import DoesNotFit, LayoutItem, compute_choices, place
from partage.model.policy import (
    DesiredMig,
    Exclusive,
    GpuCriteria,
    GpuEntry,
    Mps,
    Policy,
    Sharing,
    TimeSlicing,
)
from partage.model.step import (
    Created,
    PlannedStep,
    Reset,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    StartDaemon,
    StartDaemonAt,
    Step,
    gpus_of,
)
from partage.model.strategy import Interval
from partage.plan.offer.desired import resolve
from partage.plan.reconcile.node_plan import NodePlan
from partage.plan.reconcile.planner import plan_node
from partage.plan.reconcile.settings_steps import OriginalSettings, note_originals
from partage.sim.kubelet.behaviour import Behaviour
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.agent.harness import native
from tests.agent.harness import place as place_of_node
from tests.examples import examples
from tests.node.loops import SimulatedTimeLoop
from tests.node.world import World

MODELS = ["a30-24gb", "a100-40gb", "h100-sxm5-80gb", "h100-nvl-94gb", "b200-180gb"]
INTERVALS = [None, *Interval]


class RecordingHardware(SimulatedHardware):
    """A simulated node that writes down every step it is asked for, in the words of a plan.

    performed: the steps. steps: the same, but a daemon of a MIG device that was made meanwhile stands as
    ``StartDaemonAt``. known: the MIG devices that were there before.
    """

    known: frozenset[DeviceUuid] = frozenset()
    performed: list[Step]
    steps: list[PlannedStep]

    async def begin(self) -> Inventory:
        """Write down from now on."""
        inventory = await self.observe()
        self.known = frozenset(one.uuid for gpu in inventory for one in gpu.mig_devices)
        self.performed, self.steps = [], []
        return inventory

    async def perform(self, step: Step) -> Created | None:
        self.performed.append(step)
        self.steps.append(await self._as_planned(step))
        return await super().perform(step)

    async def _as_planned(self, step: Step) -> PlannedStep:
        if not isinstance(step, StartDaemon) or step.spec.device in (step.gpu, *self.known):
            return step
        inventory = await self.observe()
        devices: dict[DeviceUuid, MigDevice] = {one.uuid: one for gpu in inventory for one in gpu.mig_devices}
        made = devices[step.spec.device]
        return StartDaemonAt(step.gpu, made.profile, made.known_placement, step.spec.limits)

    def of(self, gpu: str) -> tuple[PlannedStep, ...]:
        """The steps that concerned this GPU."""
        return tuple(step for step in self.steps if gpu in gpus_of(step))


# --- random nodes and policies --------------------------------------------------------------------


@st.composite
def sharings(draw: st.DrawFn, *, mig: bool) -> Sharing:
    replicas = draw(st.integers(2, 4))
    interval = None if mig else draw(st.sampled_from(INTERVALS))
    exclusive = draw(st.booleans()) if not mig else True
    kinds: list[Sharing] = [
        Exclusive(),
        TimeSlicing(replicas, interval),
        Mps(replicas, exclusive_process=exclusive),
    ]
    return draw(st.sampled_from(kinds))


@st.composite
def layouts(draw: st.DrawFn, gpu: Gpu) -> DesiredMig:
    """Any layout that an empty GPU can have, or MIG mode off."""
    geometry = geometry_of(gpu)
    assert geometry is not None
    if draw(st.integers(0, 4)) == 0:
        return DesiredMig(enabled=False)
    items: tuple[LayoutItem, ...] = ()
    profiles = [
        replace(spec.profile, compute_slices=slices)
        for spec in geometry.profiles
        for slices in compute_choices(spec.compute_slices)
    ]
    for profile in draw(st.lists(st.sampled_from(profiles), min_size=1, max_size=5)):
        more = (*items, LayoutItem(profile))
        try:
            place(geometry, more)
        except DoesNotFit:
            continue
        items = more
    return DesiredMig(items)


@st.composite
def policies(draw: st.DrawFn, inventory: Inventory) -> Policy:
    """GPU by GPU; some are not named."""
    entries = []
    for gpu in inventory:
        kind = draw(st.sampled_from(["nothing", "whole", "mig", "mig"]))
        if kind == "nothing":
            continue
        mig = draw(layouts(gpu)) if kind == "mig" else None
        sharing = draw(sharings(mig=gpu.mig_enabled if mig is None else mig.enabled))
        entries.append(GpuEntry(f"gpus[{gpu.index}]", GpuCriteria(index=(gpu.index,)), sharing, mig))
    return Policy(tuple(entries))


async def settings_of_an_administrator(hardware: SimulatedHardware, data: st.DataObject) -> None:
    """What GPUs were set to before Partage came."""
    for gpu in await hardware.observe():
        mode = data.draw(st.sampled_from([ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS]))
        interval = data.draw(st.sampled_from([Interval.DEFAULT, Interval.SHORT]))
        await hardware.perform(SetComputeMode(gpu.uuid, mode, gpu.compute_mode))
        if interval is not Interval.DEFAULT:
            await hardware.perform(SetTimeSlice(gpu.uuid, interval, Interval.DEFAULT))


# --- apply ----------------------------------------------------------------------------------------


@given(st.data())
@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
def test_what_is_planned_is_what_apply_does(data: st.DataObject) -> None:
    asyncio.run(_one_policy_after_the_other(data))


async def _one_policy_after_the_other(data: st.DataObject) -> None:
    model, count = data.draw(st.sampled_from(MODELS)), data.draw(st.integers(1, 4))
    hardware = RecordingHardware(load_machine(f"{count}x{model}"))
    await hardware.begin()
    await settings_of_an_administrator(hardware, data)
    first = await _settings(hardware)
    reset: set[str] = set()
    apply = ApplyRun(hardware, lambda found: resolve(Policy(), found, geometry_of), geometry_of, _quiet)
    for _ in range(data.draw(st.integers(1, 4))):
        inventory = await hardware.begin()
        policy = data.draw(policies(inventory))
        try:
            resolve(policy, inventory, geometry_of)
        except (InputError, Unsatisfiable):
            assume(False)
        await _applied_as_planned(hardware, apply, policy)
        reset |= {
            gpu for step in hardware.steps if isinstance(step, (Reset, SetMigMode)) for gpu in gpus_of(step)
        }
    await hardware.begin()
    await _applied_as_planned(hardware, apply, Policy())
    last = await _settings(hardware)
    assert {gpu: one for gpu, one in last.items() if gpu not in reset} == {
        gpu: one for gpu, one in first.items() if gpu not in reset
    }


async def _applied_as_planned(hardware: RecordingHardware, apply: ApplyRun, policy: Policy) -> None:
    apply.resolve = lambda inventory: resolve(policy, inventory, geometry_of)
    apply._attempts.clear()
    applied = await apply.run()
    assert [one.reason for one in applied.outcomes if one.error] == []
    assert {gpu: hardware.of(gpu) for gpu in applied.plan.gpus} == _steps(applied.plan)
    assert applied.last.settled
    assert _steps(applied.last) == dict.fromkeys(applied.plan.gpus, ())
    done = [*hardware.steps]
    again = await apply.run()
    assert (again.outcomes, hardware.steps) == ((), done)


def _steps(plan: NodePlan) -> dict[GpuUuid, tuple[PlannedStep, ...]]:
    return {gpu: one.steps for gpu, one in plan.gpus.items()}


async def _settings(hardware: SimulatedHardware) -> dict[str, tuple[object, ...]]:
    """Compute mode and time slice of each GPU."""
    modes = {gpu.uuid: gpu.compute_mode for gpu in await hardware.observe()}
    return {one.gpu: (modes[one.gpu], one.interval) for one in await hardware.time_slices()}


def _quiet(_inventory: Inventory) -> Progress:
    return lambda step, status, reason: None


# --- the agent ------------------------------------------------------------------------------------

WHOLE = native()
SLICES = native("{select: {index: 0}, time-slicing: {replicas: 2, interval: short}}")
MPS = native("{select: {index: 0}, mps: {replicas: 2}}")
MIG = native("{select: {index: 0}, mig: {layout: [3g.40gb, 1g.10gb]}}")
MIG_MPS = native("{select: {index: 0}, mig: {layout: [3g.40gb, 2g.20gb], mps: {replicas: 2}}}")
MIG_OFF = "version: v1\nmig-configs:\n  off:\n    - {devices: all, mig-enabled: false}\n"


@pytest.mark.parametrize(
    "texts",
    [
        (MPS, WHOLE),
        (SLICES, MPS, SLICES, WHOLE),
        (MPS, MIG, MIG_MPS, MIG_OFF),
        (SLICES, MIG_MPS, MIG, MIG_OFF),
    ],
)
def test_what_is_planned_is_what_the_agent_does(texts: Sequence[str]) -> None:
    with place_of_node() as somewhere, asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedTimeLoop)
        machine = load_machine("2xh100-sxm5-80gb")
        world = World.of(somewhere, loop, machine, Behaviour(), 0)
        world.hardware = hardware = RecordingHardware(machine, clock=loop.time)
        try:
            runner.run(_agent_does_as_planned(world, hardware, texts))
        finally:
            runner.run(world.close())


async def _agent_does_as_planned(world: World, hardware: RecordingHardware, texts: Sequence[str]) -> None:
    world.place.write_policy(WHOLE)
    await hardware.begin()
    await world.start_kubelet()
    world.start_agent()
    await asyncio.sleep(30.0)
    assert hardware.steps == []
    original: dict[GpuUuid, OriginalSettings] = {}
    for text in texts:
        policy = parse_policy(text, "policy.yaml").policy
        planned = await _planned(hardware, policy, original)
        assert any(planned.values()), "there is something to do"
        await hardware.begin()
        world.place.write_policy(text)
        await asyncio.sleep(60.0)
        assert {gpu: hardware.of(gpu) for gpu in planned} == planned
        original = note_originals(hardware.performed, original)
        assert not any((await _planned(hardware, policy, original)).values())


async def _planned(
    hardware: SimulatedHardware, policy: Policy, original: Mapping[GpuUuid, OriginalSettings]
) -> dict[GpuUuid, tuple[PlannedStep, ...]]:
    found = await observe_input(
        hardware, lambda inventory: resolve(policy, inventory, geometry_of), None, lambda _: original
    )
    return _steps(plan_node(found.desired, found.now, geometry_of))
