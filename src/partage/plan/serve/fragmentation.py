"""Amounts that no device had free: what is listed afterwards, so that the next pod is not refused, too. Pure.

The scheduler knows how many units of a node are free, and not of which device. A pod that it sends here, and
whose units no device has, fails for good; its controller makes the next one, which the scheduler sends here
again. So after a refusal only the free units of one device are listed as healthy, the one with most of them:
whatever the scheduler thinks fits, fits (docs/adr/0110).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from partage.model.ids import DeviceUuid, ResourceName, ShareId, device_of
from partage.model.share import DeviceRow
from partage.values import Frozen

FIRST_S, LONGEST_S = 600.0, 4 * 3600.0
"""How long a refusal counts, in seconds: at first, and at most. It doubles when the next one comes soon
after, so that a pod that can never fit costs few."""

SETTLED_S = 15.0
"""After so long the API server knows the list, which the kubelet tells it every 10 s. An amount that is
refused again later fails for another reason than a sum over devices: containers of a pod take each
other's room.
"""

MOST_AMOUNTS = 64
"""Different amounts that are remembered for each resource; the oldest one goes."""


class RefusedAmounts(Frozen):
    """Numbers of units that containers asked for and no device had free.

    ignored: a device had them free, and they were refused all the same: the kubelet chose of several, or
    other containers of the pod were in the way. Then one device is listed in any case: the next pod is on it
    whole, or the scheduler keeps it.
    """

    units: frozenset[int]
    ignored: bool = False


class _Refusal(Frozen):
    """noted_s, until_s: since when and how long it counts, on the caller's clock; lasts_s: how long that was
    from the start.
    """

    ignored: bool
    noted_s: float
    until_s: float
    lasts_s: float


class Refusals:
    """The refused amounts of each resource. The caller passes the time."""

    def __init__(self) -> None:
        self._last: dict[ResourceName, dict[int, _Refusal]] = {}

    def noted(self, resource: ResourceName, units: int, now_s: float, *, ignored: bool = False) -> None:
        """A container was refused so many units. ignored: as in ``RefusedAmounts``."""
        amounts = self._last.setdefault(resource, {})
        last = amounts.pop(units, None)
        lasts_s = FIRST_S
        if last is not None and now_s < last.until_s:
            lasts_s = last.lasts_s
            ignored = ignored or last.ignored or now_s - last.noted_s > SETTLED_S
        elif last is not None and now_s < last.until_s + last.lasts_s:
            lasts_s = min(LONGEST_S, 2 * last.lasts_s)
            ignored = ignored or last.ignored
        amounts[units] = _Refusal(ignored, now_s, now_s + lasts_s, lasts_s)
        if len(amounts) > MOST_AMOUNTS:
            del amounts[next(iter(amounts))]

    def in_force(self, now_s: float) -> dict[ResourceName, RefusedAmounts]:
        """The amounts that count now, by resource."""
        found = {}
        for name, amounts in self._last.items():
            now = {units: refusal for units, refusal in amounts.items() if now_s < refusal.until_s}
            if now:
                found[name] = RefusedAmounts(frozenset(now), any(refusal.ignored for refusal in now.values()))
        return found

    def due_s(self, now_s: float) -> float | None:
        """When the next one ends to count; None: none does."""
        ends = (amount.until_s for amounts in self._last.values() for amount in amounts.values())
        return min((until_s for until_s in ends if until_s > now_s), default=None)


def one_device_where_needed(
    rows: Sequence[DeviceRow], held: Collection[ShareId], refused: RefusedAmounts | None
) -> tuple[DeviceRow, ...]:
    """The rows of a resource. After a refusal, and as long as that amount would be refused again, the free
    units of one device only are healthy. Held ones stay as they are.
    """
    free: dict[DeviceUuid, int] = {}
    for row in rows if refused is not None else ():
        if row.healthy and row.id not in held:
            device = device_of(row.id)
            free[device] = free.get(device, 0) + 1
    if refused is None or not _would_be_refused(refused, free):
        return tuple(rows)
    kept = max(free, key=free.__getitem__)  # the first among equals
    return tuple(
        row if row.id in held or device_of(row.id) == kept else replace(row, healthy=False) for row in rows
    )


def _would_be_refused(refused: RefusedAmounts, free: Mapping[DeviceUuid, int]) -> bool:
    """The scheduler would send such a pod here, and no device has so many units free."""
    if len(free) < 2:
        return False
    most, all_free = max(free.values()), sum(free.values())
    return refused.ignored or any(most < units <= all_free for units in refused.units)
