"""Which GPU instances a GPU has, who uses them, and which one has to be made again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.errors import InsufficientResources, PartageError
from partage.model.geometry import Placement
from partage.model.gpu import EmptyInstance
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.step import CreateCompute, CreateInstance, Step
from partage.plan.reconcile.instances import live_instances, to_renew
from tests.plan.offers import gpu, node

EMPTY = EmptyInstance(3, "1g.10gb", Placement(2, 1))
GPU = replace(gpu(0, migs=2), empty_instances=(EMPTY,))
FIRST, SECOND = GPU.mig_devices


def use(**of: object) -> GpuUse:
    return replace(GpuUse(GPU.uuid, UseKind.PROCESS, "python", 4711), **of)


@pytest.mark.parametrize(
    ("of", "used"),
    [
        (use(), (7, 8, 3)),
        (use(gi_id=8), (8,)),
        (use(gi_id=8, ci_id=0), (8,)),
        (use(gi_id=8, ci_id=1), ()),
        (use(gi_id=3), (3,)),
        (use(device=FIRST.uuid), (7,)),
        (use(gpu=gpu(1).uuid), ()),
        (use(kind=UseKind.MONITOR), ()),
    ],
)
def test_a_use_is_of_those_instances_that_it_may_be_in(of: GpuUse, used: tuple[int, ...]) -> None:
    """One of the whole GPU may be in each, empty ones included."""
    instances = live_instances(GPU, [of])
    assert [instance.gi_id for instance in instances] == [7, 8, 3]
    assert tuple(instance.gi_id for instance in instances if instance.busy) == used


NO_ROOM = InsufficientResources("no room")


def create(start: int) -> CreateCompute:
    return CreateCompute(GPU.uuid, "1g.10gb", Placement(start, 1), "1g.10gb")


@pytest.mark.parametrize(
    ("step", "error", "instance"),
    [
        (create(1), NO_ROOM, 8),
        (create(2), NO_ROOM, 3),
        (create(1), PartageError("refused"), None),
        (create(5), NO_ROOM, None),
        (replace(create(1), instance="2g.20gb"), NO_ROOM, None),
        (replace(create(1), gpu=gpu(1).uuid), NO_ROOM, None),
        (CreateInstance(GPU.uuid, "1g.10gb", Placement(1, 1)), NO_ROOM, None),
    ],
)
def test_an_instance_without_room_for_a_compute_instance_is_made_again(
    step: Step, error: PartageError, instance: int | None
) -> None:
    expected = {} if instance is None else {GPU.uuid: frozenset([instance])}
    assert to_renew(node(GPU), step, error) == expected
