"""Whether a GPU has its layout of before again, after a change that failed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.errors import DriverUnavailable, HardwareTimeout, PartageError
from partage.model.geometry import MigProfile, Placement
from partage.model.gpu import EmptyInstance, Gpu, MigMode
from partage.model.layout import LayoutItem
from partage.model.policy import DesiredMig
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    Reset,
    SetMigMode,
    Step,
)
from partage.plan.reconcile.mig_plan import live_layout
from partage.plan.reconcile.rollback import (
    ForeignPart,
    foreign_parts,
    hit_by,
    is_as_it_was,
    layouts_beside,
    perhaps_ours,
)
from tests.plan.offers import gpu, node

WAS = gpu(0, migs=2)
LEFT = EmptyInstance(9, "1g.10gb", Placement(2, 1))
THEIRS = ForeignPart(WAS.uuid, LEFT)


@pytest.mark.parametrize(
    ("now", "foreign", "same"),
    [
        (WAS, (), True),
        (gpu(0, migs=1), (), False),
        (replace(WAS, mig_mode=MigMode(current=True, pending=False)), (), False),
        (replace(WAS, mig_mode=MigMode(current=False, pending=False), mig_devices=()), (), False),
        (replace(WAS, mig_mode=None, mig_devices=()), (), False),
        (replace(WAS, mig_mode=MigMode(current=False, pending=False)), (), False),
        (replace(WAS, empty_instances=(LEFT,)), (), False),
        (replace(WAS, empty_instances=(LEFT,)), (THEIRS,), True),
        (replace(WAS, empty_instances=(LEFT,)), (replace(THEIRS, gpu=gpu(1).uuid),), False),
    ],
    ids=[
        "the same",
        "a device less",
        "the mode will change",
        "the mode is off",
        "a GPU without MIG",
        "the mode is off, though it lists devices",
        "ours left",
        "theirs left",
        "another GPU's",
    ],
)
def test_a_gpu_is_as_it_was(now: Gpu, foreign: tuple[ForeignPart, ...], same: bool) -> None:
    assert is_as_it_was(now, live_layout(WAS), foreign) is same


FAILED = CreateInstance(WAS.uuid, LEFT.profile, LEFT.placement)


@pytest.mark.parametrize(
    ("step", "error", "ours"),
    [
        (FAILED, HardwareTimeout("no answer"), True),
        (FAILED, DriverUnavailable("it went"), True),
        (FAILED, PartageError("refused"), False),
        (SetMigMode(WAS.uuid, True), HardwareTimeout("no answer"), False),
        (replace(FAILED, placement=Placement(3, 1)), HardwareTimeout("no answer"), False),
    ],
)
def test_what_a_step_without_an_answer_may_have_made(step: Step, error: PartageError, ours: bool) -> None:
    assert perhaps_ours(step, error, [THEIRS]) == (THEIRS if ours else None)


def test_what_is_foreign_stays_beside_a_layout_that_comes_back() -> None:
    device = ForeignPart(WAS.uuid, WAS.mig_devices[0])
    on, off = DesiredMig((LayoutItem(MigProfile.parse("1g.10gb"), 5),)), DesiredMig(enabled=False)
    (layout,) = layouts_beside({WAS.uuid: on}, [device, THEIRS]).values()
    assert [str(item) for item in layout.items] == ["1g.10gb@5", "1g.10gb@0"]
    assert layouts_beside({WAS.uuid: off}, [device]) == {WAS.uuid: off}
    assert layouts_beside({}, [device]) == {}


DEVICE, FREE = ForeignPart(WAS.uuid, WAS.mig_devices[0]), ForeignPart(WAS.uuid, LEFT)
OF_DEVICE = (WAS.uuid, "1g.10gb", Placement(0, 1))
OF_FREE = (WAS.uuid, LEFT.profile, LEFT.placement)


@pytest.mark.parametrize(
    ("step", "hit"),
    [
        (SetMigMode(WAS.uuid, False), DEVICE),
        (SetMigMode(WAS.uuid, True), None),
        (SetMigMode(gpu(1).uuid, False), None),
        (Reset((WAS.uuid, gpu(1).uuid), ()), DEVICE),
        (Reset((gpu(1).uuid,), ()), None),
        (DestroyCompute(*OF_DEVICE, "1g.10gb", uuid=WAS.mig_devices[0].uuid), DEVICE),
        (DestroyCompute(*OF_DEVICE, "1g.10gb", uuid=WAS.mig_devices[1].uuid), None),
        (DestroyCompute(*OF_DEVICE, "1g.10gb"), DEVICE),
        (DestroyCompute(gpu(1).uuid, *OF_DEVICE[1:], "1g.10gb"), None),
        (DestroyInstance(*OF_FREE, gi_id=9), FREE),
        (DestroyInstance(*OF_FREE, gi_id=8), None),
        (DestroyInstance(*OF_FREE), DEVICE),
        (DestroyInstance(gpu(1).uuid, LEFT.profile, LEFT.placement), None),
        (CreateInstance(*OF_FREE), None),
    ],
)
def test_what_is_foreign_is_hit_by_a_step_that_takes_it_away(step: Step, hit: ForeignPart | None) -> None:
    assert hit_by(step, [DEVICE, FREE]) == hit


def test_what_no_step_made_is_foreign() -> None:
    one_less = node(replace(WAS, mig_devices=WAS.mig_devices[:1]))
    now, second = node(WAS), WAS.mig_devices[1]
    assert foreign_parts(now, one_less, []) == (ForeignPart(WAS.uuid, second),)
    assert foreign_parts(now, now, []) == ()
    left = node(replace(WAS, empty_instances=(LEFT,)))
    assert foreign_parts(left, now, []) == (FREE,)
    assert foreign_parts(left, left, []) == ()
    reset = Reset((WAS.uuid,), ())
    assert foreign_parts(left, left, [(reset, None)]) == (FREE,), "no instance outlives a reset"
    assert foreign_parts(left, left, [(replace(reset, gpus=(gpu(1).uuid,)), None)]) == ()


def test_what_a_step_says_that_it_made_is_not_foreign() -> None:
    empty, left = (
        node(replace(WAS, mig_devices=())),
        node(replace(WAS, mig_devices=(), empty_instances=(LEFT,))),
    )
    create = CreateInstance(*OF_FREE)
    assert foreign_parts(left, empty, [(create, Created(9))]) == ()
    assert foreign_parts(left, empty, [(create, Created(8))]) == (FREE,)
    assert foreign_parts(left, empty, [(create, None)]) == (FREE,)
    one, device = node(replace(WAS, mig_devices=WAS.mig_devices[:1])), WAS.mig_devices[0]
    compute = CreateCompute(*OF_DEVICE, "1g.10gb")
    assert foreign_parts(one, empty, [(compute, Created(7, 0, device.uuid))]) == ()
    assert foreign_parts(one, empty, [(compute, None)]) == (DEVICE,)
