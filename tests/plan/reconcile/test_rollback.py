"""Whether a GPU has its layout of before again, after a change that failed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.model.geometry import Placement
from partage.model.gpu import EmptyInstance, Gpu, MigMode
from partage.plan.reconcile.mig_plan import live_layout
from partage.plan.reconcile.rollback import ForeignPart, is_as_it_was
from tests.plan.offers import gpu

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
        "ours left",
        "theirs left",
        "another GPU's",
    ],
)
def test_a_gpu_is_as_it_was(now: Gpu, foreign: tuple[ForeignPart, ...], same: bool) -> None:
    assert is_as_it_was(now, live_layout(WAS), foreign) is same
