"""Layouts on a simulated node that fails: what is in use goes on, and no half-made layout is left."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.agent.reconciler.apply_once import ApplyResult, ApplyRun, desired_for_undo
from partage.agent.reconciler.executor import TransactionEnd
from partage.cli.apply_outcome import GpuOutcome, applied_gpu_rows, exit_code, problems
from partage.edges.files.catalogue import geometry_of, load_catalogue
from partage.errors import GpuInUse, HardwareTimeout, InsufficientResources
from partage.model.geometry import Placement
from partage.model.gpu import MigMode
from partage.model.gpu_use import UseKind
from partage.model.layout import DoesNotFit, LayoutItem, place
from partage.model.policy import DesiredMig
from partage.model.step import CreateCompute, CreateInstance, DestroyCompute, DestroyInstance
from partage.plan.reconcile.mig_plan import GpuMigPlan, live_layout, plan_mig
from partage.sim.node.faults import FailCall, Occupy, Reboot
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.examples import examples

MODELS = sorted(
    model.id
    for model in load_catalogue().simulated_models()
    if model.geometry and any(spec.starts for spec in model.geometry.profiles)
)


@st.composite
def layouts(draw, geometry):
    """Any layout that an empty card can have, or MIG mode off."""
    if draw(st.integers(0, 9)) == 0:
        return DesiredMig(enabled=False)
    items: tuple[LayoutItem, ...] = ()
    for spec in draw(st.lists(st.sampled_from(geometry.profiles), max_size=8)):
        more = (*items, LayoutItem(spec.profile))
        try:
            place(geometry, more)
        except DoesNotFit:
            continue
        items = more
    return DesiredMig(items)


def _quiet(_inventory):
    return lambda step, status, reason: None


async def _apply(hardware, layouts) -> ApplyResult:
    """These layouts, and nothing else."""
    apply = ApplyRun(
        hardware, lambda found: desired_for_undo(found, layouts), geometry_of, _quiet, only_layouts=True
    )
    return await apply.run()


@given(st.data())
@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
def test_whatever_fails_or_is_busy_a_layout_is_made_or_nothing_has_changed(data):
    asyncio.run(_play(data))


async def _play(data):
    model = data.draw(st.sampled_from(MODELS))
    hardware = Failing(load_machine(f"2x{model}"))
    geometry = geometry_of((await hardware.observe()).gpus[0])
    uuids = [gpu.uuid for gpu in (await hardware.observe()).gpus]
    first = {uuid: data.draw(layouts(geometry)) for uuid in uuids}
    assert exit_code(await _apply(hardware, first)) == 0

    gpu = (await hardware.observe()).gpus[0]
    busy = data.draw(st.lists(st.sampled_from(gpu.mig_devices), unique=True)) if gpu.mig_devices else []
    for device in busy:
        await hardware.inject(Occupy(0, "python", UseKind.PROCESS, device.gi_id, device.ci_id, 4711))
    if (number := data.draw(st.integers(0, 12))) > 0:
        refusal = st.sampled_from([InsufficientResources("no room"), GpuInUse("in use")])
        fault = st.builds(FailCall, st.just("perform"), refusal) | st.just(
            FailCall("perform", HardwareTimeout("hangs"), 1, done=True)
        )
        hardware.fail(number, data.draw(fault))
    second = {uuid: data.draw(layouts(geometry)) for uuid in uuids}
    before = await hardware.observe()
    applied = await _apply(hardware, second)
    after = await hardware.observe()

    assert {device.uuid for device in busy} <= {one.uuid for one in after.gpus[0].mig_devices}
    endings = {uuid: outcome.ending for outcome in applied.outcomes for uuid in outcome.transaction.gpus}
    unknown = {
        uuid
        for outcome in applied.outcomes
        if isinstance(outcome.failed, CreateInstance | CreateCompute)
        and isinstance(outcome.error, HardwareTimeout)
        for uuid in outcome.transaction.gpus
    }
    for uuid in unknown:  # made or not, nobody knows: named, and left alone
        assert endings[uuid] is TransactionEnd.PARTIAL
    for was, now in zip(before.gpus, after.gpus, strict=True):
        if was.uuid in unknown:
            continue
        assert now.empty_instances == ()
        if endings.get(was.uuid) is TransactionEnd.DONE:
            plan = plan_mig(after, {was.uuid: second[was.uuid]}, lambda gpu: geometry).of(was.uuid)
            assert isinstance(plan, GpuMigPlan)
            assert plan.steps == ()
        else:
            assert live_layout(now) == live_layout(was)
    if not applied.plan.unsettled and not applied.failed:
        assert (await _apply(hardware, second)).plan.transactions == ()


class Failing(SimulatedHardware):
    """A simulated node whose n-th act from a moment on fails."""

    left, fault = 0, FailCall("perform", InsufficientResources("no room"))

    def fail(self, number, fault):
        self.left, self.fault = number, fault

    async def perform(self, step):
        self.left -= 1
        if self.left == 0:
            await self.inject(self.fault)
        return await super().perform(step)


class Raced(SimulatedHardware):
    """A simulated node on which an administrator makes a device just before its n-th step."""

    left = 3

    async def perform(self, step):
        self.left -= 1
        if self.left == 0:
            place = Placement(4, 4)
            await super().perform(CreateInstance(step.gpu, "3g.40gb", place))
            await super().perform(CreateCompute(step.gpu, "3g.40gb", place, "3g.40gb"))
        return await super().perform(step)


async def test_an_administrators_instance_at_our_place_outlives_the_rollback():
    hardware = Raced(load_machine("h100-sxm5-80gb"))
    uuid = (await hardware.observe()).gpus[0].uuid
    mig = {uuid: DesiredMig()}
    assert exit_code(await _apply(hardware, mig)) == 0
    hardware.left = 3
    wanted = {uuid: DesiredMig((LayoutItem.parse("3g.40gb@0"), LayoutItem.parse("3g.40gb@4")))}
    applied = await _apply(hardware, wanted)
    gpu = (await hardware.observe()).gpus[0]
    assert [(one.profile, str(one.placement)) for one in gpu.mig_devices] == [("3g.40gb", "4:4")]
    assert gpu.empty_instances == ()
    (outcome,) = applied.outcomes
    assert outcome.ending is TransactionEnd.ROLLED_BACK
    assert gpu.mig_devices[0].uuid in outcome.reason


# --- a GPU instance whose free compute slices do not lie side by side ----------------------------------


async def _scattered(*profiles, keep):
    """A node with one 3g.40gb in which of these MIG devices only ``keep``, by position, is left."""
    hardware = SimulatedHardware(load_machine("h100-sxm5-80gb"))
    uuid = (await hardware.observe()).gpus[0].uuid
    assert exit_code(await _apply(hardware, {uuid: _desired(*profiles)})) == 0
    devices = sorted((await hardware.observe()).gpus[0].mig_devices, key=lambda one: one.ci_id)
    for number, one in enumerate(devices):
        if number != keep:
            await hardware.perform(
                DestroyCompute(uuid, "3g.40gb", one.known_placement, one.profile, uuid=one.uuid)
            )
    return hardware, uuid, devices[keep]


def _desired(*profiles):
    return DesiredMig(tuple(LayoutItem.parse(one) for one in profiles))


async def test_a_gpu_instance_without_room_side_by_side_is_made_anew():
    hardware, uuid, kept = await _scattered(*["1c.3g.40gb"] * 3, keep=1)
    applied = await _apply(hardware, {uuid: _desired("1c.3g.40gb", "2c.3g.40gb")})
    assert (exit_code(applied), applied.outcomes[-1].ending) == (0, TransactionEnd.DONE)
    (row,) = applied_gpu_rows(applied)
    assert (row.outcome, row.kept) == (GpuOutcome.DONE, ())
    live = (await hardware.observe()).gpus[0].mig_devices
    assert sorted(one.profile for one in live) == ["1c.3g.40gb", "2c.3g.40gb"]
    assert kept.uuid not in {one.uuid for one in live}


async def test_who_uses_a_part_of_it_is_named_and_stays():
    hardware, uuid, kept = await _scattered(*["1c.3g.40gb"] * 3, keep=1)
    await hardware.inject(Occupy(0, "python", UseKind.PROCESS, kept.gi_id, kept.ci_id, 4711))
    before = await hardware.observe()
    applied = await _apply(hardware, {uuid: _desired("1c.3g.40gb", "2c.3g.40gb")})
    assert (exit_code(applied), applied.failed) == (3, ())
    (problem,) = problems(applied)
    assert "cannot have 2c.3g.40gb as well" in problem.message
    assert "process python (pid 4711), and the driver has no room in it" in problem.message
    assert await hardware.observe() == before


async def test_what_was_there_comes_back_even_where_its_gpu_instance_has_no_room_any_more():
    hardware = Full(load_machine("h100-sxm5-80gb"))
    uuid = (await hardware.observe()).gpus[0].uuid
    await _apply(hardware, {uuid: _desired("2c.3g.40gb", "1c.3g.40gb")})
    before = await hardware.observe()
    hardware.full = True
    applied = await _apply(hardware, {uuid: _desired("1c.3g.40gb", "1c.3g.40gb", "4g.40gb")})
    (outcome,) = applied.outcomes
    assert (outcome.ending, exit_code(applied)) == (TransactionEnd.ROLLED_BACK, 3)
    assert live_layout((await hardware.observe()).gpus[0]) == live_layout(before.gpus[0])


class Full(SimulatedHardware):
    """From a moment on the driver places no compute instance in GPU instances that it had before."""

    full = False

    async def perform(self, step):
        if isinstance(step, CreateInstance) and step.profile == "4g.40gb":
            raise GpuInUse("somebody looks")
        if isinstance(step, DestroyInstance):
            self.full = False
        if self.full and isinstance(step, CreateCompute) and step.profile == "2c.3g.40gb":
            raise InsufficientResources("no room")
        return await super().perform(step)


@pytest.mark.parametrize("noted", [False, True], ids=["by apply", "by an administrator before"])
async def test_a_mode_that_takes_a_reboot_stays_noted_where_a_virtual_machine_may_not_reset(noted):
    machine = load_machine("1xa100-40gb")
    (gpu,) = machine.inventory.gpus
    gpu = replace(gpu, mig_mode=MigMode(False, noted))
    hardware = SimulatedHardware(
        replace(machine, inventory=replace(machine.inventory, gpus=(gpu,), virtual=True))
    )
    applied = await _apply(hardware, {gpu.uuid: _desired("3g.20gb")})
    (outcome,) = applied.outcomes
    assert (outcome.ending, exit_code(applied)) == (TransactionEnd.PENDING_REBOOT, 4)
    (problem,) = problems(applied)
    assert "the new MIG mode is noted, and takes a reboot of this virtual machine" in problem.message
    assert (await hardware.observe()).gpus[0].mig_mode == MigMode(False, True)
    await hardware.inject(Reboot())
    applied = await _apply(hardware, {gpu.uuid: _desired("3g.20gb")})
    assert [one.ending for one in applied.outcomes] == [TransactionEnd.DONE]
