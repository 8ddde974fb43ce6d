"""How much memory a tenant is asked to allocate, so that the answer says something about a limit.

A limit counts what CUDA itself needs, too. NVIDIA's Dynamo project measured clients under limits of 2 to
30 GiB on driver 615.71: 250 to 820 MiB of the limit were not to be had. Drivers give memory out in pieces of
2 MiB.
"""

from __future__ import annotations

from partage.units import GIB, MIB

CUDA_NEEDS_BYTES = GIB
"""More than any process was seen to lose to CUDA's own needs."""

_GRANULE_BYTES = 2 * MIB
_PIECES = 16


def data_bytes(limit_bytes: int) -> int:
    """What a client surely has for its data: five sixths of its limit, of a small one all but 1 GiB.

    0 where the limit may be used up before any data.
    """
    return _whole(max(min(limit_bytes * 5 // 6, limit_bytes - CUDA_NEEDS_BYTES), 0))


def piece_bytes(limit_bytes: int) -> int:
    """About a sixteenth of a limit, in whole granules: so many pieces tell a limit from its neighbourhood."""
    return max(_whole(limit_bytes // _PIECES), _GRANULE_BYTES)


def beyond_bytes(limit_bytes: int) -> int:
    """How far beyond a limit is tried: a quarter of it."""
    return limit_bytes * 5 // 4


def has_room(amount_bytes: int, device_bytes: int) -> bool:
    """Whether a device has so much besides what CUDA needs: then it is not the device that refuses."""
    return amount_bytes <= min(device_bytes * 9 // 10, device_bytes - CUDA_NEEDS_BYTES)


def _whole(amount_bytes: int) -> int:
    return amount_bytes // _GRANULE_BYTES * _GRANULE_BYTES
