"""How a GPU passes from one offer to the next: only when nobody holds a share of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from partage.model.ids import ResourceName
from partage.model.share import GpuOffer, Offer, Offering
from partage.plan.ledger import Entry
from partage.plan.ledger import Held as Held


@dataclass(frozen=True, slots=True)
class Serving:
    """What one GPU offers at this moment.

    offer: what its held ids belong to, and its free ids too unless draining.
    leaving: MIG devices that are no longer wanted, while the rest of the GPU goes on: only held ids stay listed.
    draining: the GPU waits to change: only held ids stay listed. draining_since_s: clock of the caller, None
    where it does not drain.
    empty_since_s: since when nobody holds a share that is waited for; None while somebody does.
    """

    offer: GpuOffer
    leaving: GpuOffer = ()
    draining: bool = False
    draining_since_s: float | None = None
    empty_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One id that the kubelet shall know.

    offering: what it belongs to. None for a foreign hold: somebody holds it, and we do not know what it was
    part of; it is listed as unhealthy, so that the kubelet keeps it and gives it to nobody.
    """

    resource: ResourceName
    id: str
    gpu: str
    offering: Offering | None


def transition(
    serving: Mapping[str, Serving],
    wanted: Offer,
    held: Held,
    now_s: float,
    settle_s: float,
    gpu_of: Mapping[str, str] | None = None,
) -> dict[str, Serving]:
    """One step from ``serving`` towards ``wanted``, GPU by GPU.

    A GPU whose offer is as wanted is left alone (and stops draining). One that nobody serves yet starts with what
    is wanted. One that differs drains; once nobody has held a share of it for settle_s, it changes. A GPU that
    is no longer wanted drains and is dropped. A GPU with a foreign hold (``foreign_holds``) drains too.
    settle_s covers the kubelet's view: an Allocate for an id that was just withdrawn may be under way, and is still
    answered meanwhile (``answerable``). Planned MIG devices are not served.
    gpu_of: MIG device UUID to GPU UUID, for held ids of devices that are in no offer.
    """
    raise NotImplementedError


def foreign_holds(
    serving: Mapping[str, Serving], held: Held, gpu_of: Mapping[str, str] | None = None
) -> dict[str, list[tuple[ResourceName, str]]]:
    """GPU UUID to held ids on it that belong to nothing it serves; key ``""``: nobody knows on which GPU."""
    raise NotImplementedError


def listed(
    serving: Mapping[str, Serving], held: Held, gpu_of: Mapping[str, str] | None = None
) -> dict[ResourceName, list[Row]]:
    """The rows to publish, per resource in the order of ``resources_of``; foreign holds last."""
    raise NotImplementedError


def answerable(serving: Mapping[str, Serving]) -> Offer:
    """All offerings for whose ids Allocate is answered, listed or not: choosers and answerers are built of it."""
    raise NotImplementedError


def waiting(
    serving: Mapping[str, Serving], entries: Iterable[Entry], gpu_of: Mapping[str, str] | None = None
) -> dict[str, tuple[Entry, ...]]:
    """For every GPU that waits to change: the held ids, with holders, that it waits for.

    Empty tuple: nobody holds one any more, and it waits for settle_s.
    """
    raise NotImplementedError


def due_s(serving: Mapping[str, Serving], settle_s: float) -> float | None:
    """When the next step can change something by the passing of time alone; None: never."""
    raise NotImplementedError
