"""The node as it is known: what was observed, and GPUs that answered before."""

from __future__ import annotations

from msgspec.structs import replace

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
