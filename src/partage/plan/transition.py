"""How a GPU passes from one offer to the next: only when nobody holds a share of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from partage.model.ids import ResourceName
from partage.model.share import GpuOffer, Offer


@dataclass(frozen=True, slots=True)
class Serving:
    """What one GPU offers at this moment.

    offer: what its held ids belong to, and its free ids too unless draining.
    draining: the GPU waits to change: only held ids stay listed. draining_since_s: clock of the caller, None
    where it does not drain.
    """

    offer: GpuOffer
    draining: bool = False
    draining_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Ids held now, by resource; of every GPU."""

    ids: Mapping[ResourceName, frozenset[str]] = field(default_factory=dict)


def transition(
    serving: Mapping[str, Serving], wanted: Offer, held: Held, now_s: float, settle_s: float
) -> dict[str, Serving]:
    """One step from ``serving`` towards ``wanted``, GPU by GPU.

    A GPU whose offer is as wanted is left alone (and stops draining). One that nobody serves yet starts with what
    is wanted. One that differs drains; once nobody holds a share of it and it has drained for settle_s, it changes.
    settle_s covers the kubelet's view: an Allocate for an id that was just withdrawn may be under way, and is still
    answered meanwhile.
    """
    raise NotImplementedError
