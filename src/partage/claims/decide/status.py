"""What a claim's ``status.devices`` says of each share: what it has, and how that is held. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from partage.claims.decide.asked import configured
from partage.claims.decide.devices import ClaimDevices
from partage.claims.model.grant import ClaimRecord, EnforcedBy, GrantedShare
from partage.model.ids import DeviceUuid
from partage.model.share import Guarantee, weakest

_ENFORCED = (Guarantee.HARD, Guarantee.GUARDED)


def held_now(
    record: ClaimRecord,
    devices: ClaimDevices,
    *,
    guard: bool,
    limits_read: Collection[DeviceUuid] = (),
) -> ClaimRecord:
    """With what each share guarantees now: at most what was promised, and less while the node holds less.

    guard: the guard's files are on the node. limits_read: devices where the driver's limit of every holder
    was read: before that it guarantees nothing. A device that is not offered now says what it said.
    """
    shares = (_held_now(share, devices, guard=guard) for share in record.shares)
    return replace(record, shares=tuple(_as_read(share, limits_read, guard=guard) for share in shares))


def _as_read(share: GrantedShare, limits_read: Collection[DeviceUuid], *, guard: bool) -> GrantedShare:
    if share.enforced is not EnforcedBy.DRIVER_LIMIT or share.uuid in limits_read:
        return share
    left = Guarantee.ADVISORY if guard and share.config.guard else Guarantee.NONE
    return replace(share, guarantee=weakest([left, share.guarantee]))


def _held_now(share: GrantedShare, devices: ClaimDevices, *, guard: bool) -> GrantedShare:
    row = devices.named(share.device)
    if row is None or row.device != share.uuid or row.resource != share.resource:
        return share
    now = configured(row, share.config, guard=guard).guarantee
    return replace(share, guarantee=weakest([now, share.guarantee]))


def device_status(record: ClaimRecord, driver: str, now: str) -> list[dict[str, Any]]:
    """The entries of this driver. now: RFC 3339."""
    return [_entry(share, driver, now) for share in record.shares]


def _entry(share: GrantedShare, driver: str, now: str) -> dict[str, Any]:
    """``Enforced`` is true where more than the share cannot be had: the hardware or the daemon refuses."""
    enforced = share.guarantee in _ENFORCED
    entry = {"driver": driver, "pool": share.pool, "device": share.device}
    if share.share_id is not None:
        entry["shareID"] = share.share_id
    condition = {
        "type": "Enforced",
        "status": str(enforced),
        "reason": share.guarantee.value.capitalize(),
        "message": share.guarantee.means,
        "lastTransitionTime": now,
    }
    data = {
        "uuid": share.uuid,
        "memoryBytes": share.memory_bytes,
        "cores": share.cores,
        "coresEnforced": bool(share.cores and share.slot),
        "guarantee": share.guarantee.value,
        "means": share.enforced.value,
    }
    return {**entry, "conditions": [condition], "data": data}
