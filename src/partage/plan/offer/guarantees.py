"""Which GPUs must be watched, and what weakens the guarantees of an offer. Pure.

A guarded share needs three things: the MPS daemon, which limits each process; tenants that cannot command
that daemon; and the watchdog, which adds up the processes of a container. Without one of them the guarantee
is only advisory. And where pods can set NVIDIA_VISIBLE_DEVICES themselves, no share is more than advisory.
Nothing else changes: offers and holds stay (docs/adr/0054, 0131).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.model.policy import WatchAction
from partage.model.share import DeviceOffer, Guarantee, NodeOffer
from partage.plan.offer.mps_command import why_not_promised
from partage.plan.offer.settings import GpuSettings


def gpus_to_watch(offer: NodeOffer, watch_of: Mapping[GpuUuid, WatchAction]) -> frozenset[GpuUuid]:
    """GPUs with shares that a container can exceed, unless the policy says ``off``. watch_of: by GPU UUID."""
    return frozenset(
        gpu
        for gpu, rows in offer.items()
        if watch_of.get(gpu, WatchAction.WARN) is not WatchAction.OFF and any(map(_can_be_exceeded, rows))
    )


def _can_be_exceeded(offering: DeviceOffer) -> bool:
    """The hardware limits exclusive devices, but compute instances of one GPU instance share its memory."""
    return offering.traits.in_shares or offering.guarantee is Guarantee.NONE


def gpus_unwatched(offer: NodeOffer, seen: Collection[GpuUuid]) -> frozenset[GpuUuid]:
    """GPUs with guarded shares that are not watched. seen: GPUs whose processes are watched and visible."""
    return frozenset(
        gpu
        for gpu, rows in offer.items()
        if gpu not in seen and any(row.guarantee is Guarantee.GUARDED for row in rows)
    )


def served_by_own_users(settings: Mapping[GpuUuid, GpuSettings]) -> frozenset[GpuUuid]:
    """GPUs where each user is to have an MPS server of its own (``users: single``), and commands it."""
    return frozenset(
        gpu
        for gpu, gpu_settings in settings.items()
        if any(spec.multi_user is False for spec in gpu_settings.daemons)
    )


def promised(
    offer: NodeOffer,
    watch_of: Mapping[GpuUuid, WatchAction],
    inventory: Inventory,
    settings: Mapping[GpuUuid, GpuSettings] | None = None,
) -> NodeOffer:
    """What a policy's shares guarantee on a node if the watchdog works: under ``watch: off`` nothing is
    watched. settings: what the policy wants GPUs to be set to.
    """
    unwatched = gpus_unwatched(offer, gpus_to_watch(offer, watch_of))
    return with_current_guarantees(offer, unwatched | served_by_own_users(settings or {}), inventory)


def with_current_guarantees(offer: NodeOffer, unheld: Collection[GpuUuid], inventory: Inventory) -> NodeOffer:
    """The offer with its current guarantees: advisory are guarded shares of GPUs that are not watched or
    whose servers their users command (unheld), those that tenants of this node may command, and where pods
    can take any GPU, all that were more.
    """
    if inventory.open_to_env:
        stronger = Guarantee.GUARDED, Guarantee.HARD
        return {gpu: tuple(_advisory(row, *stronger) for row in rows) for gpu, rows in offer.items()}
    commanded = bool(why_not_promised(inventory.driver, restricted=inventory.restricted_mps))
    return {
        gpu: tuple(
            _advisory(row, Guarantee.GUARDED) if gpu in unheld or (commanded and not row.pipe) else row
            for row in rows
        )
        for gpu, rows in offer.items()
    }


def _advisory(row: DeviceOffer, *stronger: Guarantee) -> DeviceOffer:
    """Advisory if it has one of these guarantees."""
    return replace(row, guarantee=Guarantee.ADVISORY) if row.guarantee in stronger else row
