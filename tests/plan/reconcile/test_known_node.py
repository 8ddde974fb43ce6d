"""The node as it is known: what was observed, and GPUs that answered before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.model.gpu import Gpu, LostGpu
from partage.model.ids import GpuUuid
from partage.plan.reconcile.known_node import GONE, with_observed
from tests.plan.offers import gpu, node

FIRST, SECOND = gpu(0), gpu(1)
BOTH = with_observed(None, node(FIRST, SECOND))


def test_a_gpu_that_is_no_longer_listed_keeps_its_place_unless_another_has_it() -> None:
    found = with_observed(BOTH, node(SECOND))
    assert (found.inventory.gpus, found.lost) == ((FIRST, SECOND), {FIRST.uuid: GONE})
    moved, at_its_address = replace(SECOND, index=0), replace(SECOND, pci_bus_id=FIRST.pci_bus_id)
    for other in (moved, at_its_address):
        found = with_observed(BOTH, node(other))
        assert (found.inventory.gpus, found.lost) == ((other,), {})


def test_a_gpu_that_is_listed_elsewhere_too_is_lost_once() -> None:
    """The entry of a lost GPU names its address, another GPU has its index."""
    lost = LostGpu(0, None, SECOND.pci_bus_id, "it fell off the bus")
    found = with_observed(BOTH, replace(node(FIRST), lost=(lost,)))
    assert found.lost == {SECOND.uuid: "it fell off the bus"}


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (LostGpu(5, SECOND.uuid, FIRST.pci_bus_id, "x"), SECOND),
        (LostGpu(5, GpuUuid("GPU-9"), FIRST.pci_bus_id, "x"), None),
        (LostGpu(0, None, SECOND.pci_bus_id, "x"), SECOND),
        (LostGpu(0, None, gpu(9).pci_bus_id, "x"), None),
        (LostGpu(1, None, None, "x"), SECOND),
        (LostGpu(9, None, None, "x"), None),
    ],
)
def test_a_lost_gpu_is_known_by_its_uuid_else_by_its_address_else_by_its_index(
    entry: LostGpu, found: Gpu | None
) -> None:
    known = with_observed(BOTH, replace(node(), lost=(entry,)))
    assert {uuid for uuid, why in known.lost.items() if why == "x"} == ({found.uuid} if found else set())
    assert known.inventory.lost == (() if found else (entry,))


def test_a_gpu_is_replaced_once_another_one_answers_at_its_address() -> None:
    assert BOTH.replaced == frozenset()
    assert with_observed(BOTH, node(SECOND)).replaced == frozenset()
    other = replace(gpu(7), pci_bus_id=FIRST.pci_bus_id)
    assert with_observed(BOTH, node(other, SECOND)).replaced == {FIRST.uuid}
