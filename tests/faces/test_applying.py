"""Layouts made on a simulated node that misbehaves: what is in use lives on, nothing is left in between."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partage.agent.execute import Ending
from partage.edges.files.catalogue import geometry_of, load
from partage.errors import GpuInUse, NoRoom
from partage.faces.applying import Applying, Goal, Node
from partage.model.layout import DoesNotFit, LayoutItem, place
from partage.model.policy import MigWish
from partage.model.step import UseKind
from partage.plan.steps import Planned, as_found, steps_between
from partage.sim.faults import FailCall, Occupy
from partage.sim.hardware import SimulatedHardware
from partage.sim.machine import load_machine

MODELS = sorted(
    model.id
    for model in load().simulable()
    if model.geometry and any(spec.starts for spec in model.geometry.profiles)
)


@st.composite
def layouts(draw, geometry):
    """Any layout that an empty card can have, or MIG mode off."""
    if draw(st.integers(0, 9)) == 0:
        return MigWish(enabled=False)
    items: tuple[LayoutItem, ...] = ()
    for spec in draw(st.lists(st.sampled_from(geometry.profiles), max_size=8)):
        more = (*items, LayoutItem(spec.profile))
        try:
            place(geometry, more)
        except DoesNotFit:
            continue
        items = more
    return MigWish(items)


async def _apply(hardware, wishes):
    return await Applying(Node(hardware), Goal(back=wishes), None, None, lambda sentence: None).run()


@given(st.data())
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_fails_and_whoever_is_busy_a_layout_comes_about_or_nothing_has_changed(data):
    asyncio.run(_play(data))


async def _play(data):
    model = data.draw(st.sampled_from(MODELS))
    hardware = Failing(load_machine(f"2x{model}"))
    geometry = geometry_of((await hardware.observe()).gpus[0])
    uuids = [gpu.uuid for gpu in (await hardware.observe()).gpus]
    first = {uuid: data.draw(layouts(geometry)) for uuid in uuids}
    assert (await _apply(hardware, first)).exit_code == 0

    gpu = (await hardware.observe()).gpus[0]
    busy = data.draw(st.lists(st.sampled_from(gpu.mig_devices), unique=True)) if gpu.mig_devices else []
    for device in busy:
        await hardware.misbehave(Occupy(0, "python", UseKind.PROCESS, device.gi_id, device.ci_id, 4711))
    if (number := data.draw(st.integers(0, 12))) > 0:
        error = data.draw(st.sampled_from([NoRoom("no room"), GpuInUse("in use")]))
        hardware.fail(number, FailCall("perform", error, 1, data.draw(st.booleans())))
    second = {uuid: data.draw(layouts(geometry)) for uuid in uuids}
    before = await hardware.observe()
    applied = await _apply(hardware, second)
    after = await hardware.observe()

    assert {device.uuid for device in busy} <= {one.uuid for one in after.gpus[0].mig_devices}
    endings = {uuid: outcome.ending for outcome in applied.outcomes for uuid in outcome.unit.gpus}
    for was, now in zip(before.gpus, after.gpus, strict=True):
        assert now.empty_instances == ()
        if endings.get(was.uuid) is Ending.DONE:
            way = steps_between(now, second[was.uuid], geometry)
            assert isinstance(way, Planned)
            assert way.steps == ()
        else:
            assert as_found(now) == as_found(was)
    if not applied.plan.refused and not applied.failed:
        assert (await _apply(hardware, second)).plan.units == ()


class Failing(SimulatedHardware):
    """A simulated node whose n-th act from a moment on fails."""

    left, fault = 0, FailCall("perform", NoRoom("no room"))

    def fail(self, number, fault):
        self.left, self.fault = number, fault

    async def perform(self, step):
        self.left -= 1
        if self.left == 0:
            await self.misbehave(self.fault)
        return await super().perform(step)
