"""Which GPUs have to be watched, and what it is worth that they are. Pure.

A guarded share is guarded by two: the MPS daemon, which limits each process, and the watchdog, which adds the
processes of a container up. Where nobody watches, what is left is advisory: two processes may have twice the
share. That is said, and nothing else follows: what is offered and held does not change (docs/adr/0054).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from partage.model.policy import Strategy, WatchAction
from partage.model.share import DeviceOffer, GpuOffer, Guarantee, NodeOffer


def to_watch(offer: NodeOffer, watch_of: Mapping[str, WatchAction]) -> frozenset[str]:
    """GPUs with shares that a container can exceed, unless the policy says ``off``. watch_of: by GPU UUID."""
    return frozenset(
        gpu
        for gpu, rows in offer.items()
        if watch_of.get(gpu, WatchAction.WARN) is not WatchAction.OFF and any(map(_can_be_exceeded, rows))
    )


def _can_be_exceeded(offering: DeviceOffer) -> bool:
    """Exclusive devices end where the hardware ends; those of one GPU instance share its memory."""
    return offering.shared is not Strategy.EXCLUSIVE or offering.guarantee is Guarantee.NONE


def unwatched(offer: NodeOffer, seen: Collection[str]) -> frozenset[str]:
    """GPUs with guarded shares that nobody watches. seen: GPUs that are watched, by somebody who sees."""
    return frozenset(
        gpu
        for gpu, rows in offer.items()
        if gpu not in seen and any(row.guarantee is Guarantee.GUARDED for row in rows)
    )


def promised(offer: NodeOffer, watch_of: Mapping[str, WatchAction]) -> NodeOffer:
    """What a policy's shares guarantee where the watchdog sees: under ``watch: off`` nobody does."""
    return believed(offer, unwatched(offer, to_watch(offer, watch_of)))


def believed(offer: NodeOffer, unwatched: Collection[str]) -> NodeOffer:
    """The offer with what can be said of it: on GPUs that nobody watches, guarded shares are advisory."""
    if not unwatched:
        return offer
    return {gpu: _weakened(rows) if gpu in unwatched else rows for gpu, rows in offer.items()}


def _weakened(rows: GpuOffer) -> GpuOffer:
    return tuple(
        replace(row, guarantee=Guarantee.ADVISORY) if row.guarantee is Guarantee.GUARDED else row
        for row in rows
    )
