"""What ``plan`` lists is what ``apply`` and the agent then do: random nodes, random policies."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from partage.agent.reconciler.one_shot import Apply
from partage.edges.files.catalogue import geometry_of
from partage.errors import InputError, Unsatisfiable
from partage.model.gpu import ComputeMode, Gpu, Inventory
from partage.model.layout import DoesNotFit, LayoutItem, place
from partage.model.policy import (
    DesiredMig,
    Exclusive,
    GpuCriteria,
    GpuEntry,
    Interval,
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
from partage.plan.offer.desired import resolve
from partage.plan.reconcile.node_plan import NodePlan
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware

MODELS = ["a30-24gb", "a100-40gb", "h100-sxm5-80gb", "h100-nvl-94gb", "b200-180gb"]
INTERVALS = [None, *Interval]


class RecordingHardware(SimulatedHardware):
    """A simulated node that writes down every step it is asked for, in the words of a plan.

    steps: a daemon of a MIG device that was made meanwhile stands as ``StartDaemonAt``. new: the MIG devices
    that are not among those of ``known``.
    """

    known: frozenset[str] = frozenset()
    steps: list[PlannedStep]

    async def begin(self) -> Inventory:
        """Write down from now on."""
        inventory = await self.observe()
        self.known = frozenset(one.uuid for gpu in inventory for one in gpu.mig_devices)
        self.steps = []
        return inventory

    async def perform(self, step: Step) -> Created | None:
        self.steps.append(await self._as_planned(step))
        return await super().perform(step)

    async def _as_planned(self, step: Step) -> PlannedStep:
        if not isinstance(step, StartDaemon) or step.spec.device in (step.gpu, *self.known):
            return step
        devices = {one.uuid: one for gpu in await self.observe() for one in gpu.mig_devices}
        made = devices[step.spec.device]
        return StartDaemonAt(step.gpu, made.profile, made.placement, step.spec.limits)

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
    for spec in draw(st.lists(st.sampled_from(geometry.profiles), min_size=1, max_size=5)):
        more = (*items, LayoutItem(spec.profile))
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
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_planned_is_what_apply_does(data: st.DataObject) -> None:
    asyncio.run(_one_policy_after_the_other(data))


async def _one_policy_after_the_other(data: st.DataObject) -> None:
    model, count = data.draw(st.sampled_from(MODELS)), data.draw(st.integers(1, 4))
    hardware = RecordingHardware(load_machine(f"{count}x{model}"))
    hardware.steps = []
    await settings_of_an_administrator(hardware, data)
    first = await _settings(hardware)
    reset: set[str] = set()
    apply = Apply(hardware, _nothing, geometry_of, _quiet)
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


async def _applied_as_planned(hardware: RecordingHardware, apply: Apply, policy: Policy) -> None:
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


def _steps(plan: NodePlan) -> dict[str, tuple[PlannedStep, ...]]:
    return {gpu: one.steps for gpu, one in plan.gpus.items()}


async def _settings(hardware: SimulatedHardware) -> dict[str, tuple[object, ...]]:
    """Compute mode and time slice of each GPU."""
    modes = {gpu.uuid: gpu.compute_mode for gpu in await hardware.observe()}
    return {one.gpu: (modes[one.gpu], one.interval) for one in await hardware.time_slices()}


def _nothing(inventory: Inventory):
    raise NotImplementedError


def _quiet(_inventory: Inventory):
    return lambda step, status, reason: None
