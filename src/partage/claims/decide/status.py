"""What a claim's ``status.devices`` says of each share: what it has, and how that is held. Pure."""

from __future__ import annotations

from typing import Any

from partage.claims.model.grant import GrantedShare
from partage.claims.model.record import ClaimRecord
from partage.model.share import Guarantee

_ENFORCED = (Guarantee.HARD, Guarantee.GUARDED)


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
        "guarantee": share.guarantee.value,
    }
    return {**entry, "conditions": [condition], "data": data}
