"""The size in bytes of the kubelet's device list, without creating the list.

The kubelet receives one ``ListAndWatchResponse`` for each resource and change, and its gRPC client accepts
messages of at most 4 MiB. Sizes follow from protobuf's wire format, so ten thousand million replicas are
refused as fast as ten.
"""

from __future__ import annotations

from collections.abc import Sequence

from partage.model.share import DeviceOffer

MESSAGE_LIMIT_BYTES = 4 * 2**20
"""Default limit of a gRPC client for one message; the kubelet uses the default."""

SLACK_BYTES = 16 * 2**10
"""Reserve: a later version of the kubelet's API may add a field to the message."""

_HEALTH_BYTES = 2 + len("Unhealthy")
_SEPARATOR_BYTES, _UNIT_SEPARATOR_BYTES = len("::"), len("-_-")


def list_bytes(offerings: Sequence[DeviceOffer]) -> int:
    """Bytes of the message that lists all shares of these offers as unhealthy, which is the longer word."""
    return sum(_offering_bytes(offering, offering.count) for offering in offerings)


def most_for_each(offerings: Sequence[DeviceOffer], budget_bytes: int) -> int:
    """How many shares each of these devices can have, so that the list stays within budget_bytes."""
    low, high = 0, max((offering.count for offering in offerings), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if (
            sum(_offering_bytes(offering, min(offering.count, middle)) for offering in offerings)
            <= budget_bytes
        ):
            low = middle
        else:
            high = middle - 1
    return low


def _offering_bytes(offering: DeviceOffer, count: int) -> int:
    """Bytes of the rows of the first ``count`` shares of one offer."""
    topology = _topology_bytes(offering.numa_node)
    bare = len(offering.device.encode())
    if not offering.traits.in_shares:
        return count * _row_bytes(bare, topology)
    separator = _UNIT_SEPARATOR_BYTES if offering.by_memory else _SEPARATOR_BYTES
    first, last = offering.first, offering.first + count
    return sum(
        _overlap(first, last, low, high) * _row_bytes(bare + separator + digits, topology)
        for digits, low, high in _decades(last)
    )


def _decades(end: int) -> list[tuple[int, int, int]]:
    """``(digits, first, after the last)`` for the numbers below end, by their number of digits."""
    longest = len(str(max(end - 1, 0)))
    return [(digits, 10 ** (digits - 1) if digits > 1 else 0, 10**digits) for digits in range(1, longest + 1)]


def _overlap(first: int, last: int, low: int, high: int) -> int:
    return max(0, min(last, high) - max(first, low))


def _row_bytes(id_bytes: int, topology_bytes: int) -> int:
    """One ``Device``, including its tag and length in the list."""
    device = _field_bytes(id_bytes) + _HEALTH_BYTES + topology_bytes
    return _field_bytes(device)


def _topology_bytes(numa_node: int | None) -> int:
    """``TopologyInfo{nodes: [NUMANode{ID}]}``; an ID of 0 is omitted."""
    if numa_node is None:
        return 0
    number = 1 + _varint_bytes(numa_node) if numa_node else 0
    return _field_bytes(_field_bytes(number))


def _field_bytes(length: int) -> int:
    """A field with a length: one byte for the tag, the length, the content."""
    return 1 + _varint_bytes(length) + length


def _varint_bytes(number: int) -> int:
    return max(1, (number.bit_length() + 6) // 7)
