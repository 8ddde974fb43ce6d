"""Which GPUs must be watched, and how that and the container toolkit change the guarantees. Pure.

A guarded share needs two things: the MPS daemon, which limits each process, and the watchdog, which adds up
the processes of a container. Without the watchdog the guarantee is only advisory: two processes may use
twice the share. And where pods can set NVIDIA_VISIBLE_DEVICES themselves, no share is more than advisory.
Nothing else changes: offers and holds stay (docs/adr/0054).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.model.policy import Strategy, WatchAction
from partage.model.share import DeviceOffer, GpuOffer, Guarantee, NodeOffer


def gpus_to_watch(offer: NodeOffer, watch_of: Mapping[GpuUuid, WatchAction]) -> frozenset[GpuUuid]:
    """GPUs with shares that a container can exceed, unless the policy says ``off``. watch_of: by GPU UUID."""
    return frozenset(
        gpu
        for gpu, rows in offer.items()
        if watch_of.get(gpu, WatchAction.WARN) is not WatchAction.OFF and any(map(_can_be_exceeded, rows))
    )


def _can_be_exceeded(offering: DeviceOffer) -> bool:
    """The hardware limits exclusive devices, but compute instances of one GPU instance share its memory."""
    return offering.shared is not Strategy.EXCLUSIVE or offering.guarantee is Guarantee.NONE


def gpus_unwatched(offer: NodeOffer, seen: Collection[GpuUuid]) -> frozenset[GpuUuid]:
    """GPUs with guarded shares that are not watched. seen: GPUs whose processes are watched and visible."""
    return frozenset(
        gpu
        for gpu, rows in offer.items()
        if gpu not in seen and any(row.guarantee is Guarantee.GUARDED for row in rows)
    )


def promised(offer: NodeOffer, watch_of: Mapping[GpuUuid, WatchAction], inventory: Inventory) -> NodeOffer:
    """What a policy's shares guarantee on a node if the watchdog works: under ``watch: off`` nothing is
    watched.
    """
    unwatched = gpus_unwatched(offer, gpus_to_watch(offer, watch_of))
    return with_current_guarantees(offer, unwatched, inventory)


def with_current_guarantees(
    offer: NodeOffer, unwatched: Collection[GpuUuid], inventory: Inventory
) -> NodeOffer:
    """The offer with its current guarantees: on GPUs that are not watched, guarded shares are advisory; where
    pods can take any GPU, all that were more are.
    """
    if inventory.open_to_env:
        return {gpu: _advisory(rows, Guarantee.GUARDED, Guarantee.HARD) for gpu, rows in offer.items()}
    if not unwatched:
        return offer
    return {
        gpu: _advisory(rows, Guarantee.GUARDED) if gpu in unwatched else rows for gpu, rows in offer.items()
    }


def _advisory(rows: GpuOffer, *stronger: Guarantee) -> GpuOffer:
    """The rows, advisory where they have one of these guarantees."""
    return tuple(
        replace(row, guarantee=Guarantee.ADVISORY) if row.guarantee in stronger else row for row in rows
    )
