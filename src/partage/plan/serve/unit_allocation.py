"""Which units of memory a container gets: all of one device; and what is listed after an amount was refused,
so that the next pod is not refused, too. Pure and deterministic.

The scheduler knows how many units of a node are free, and not of which device. A pod that it sends here, and
whose units no device has, fails for good; its controller makes the next one, which the scheduler sends here
again. So after a refusal only the free units of one device are listed as healthy, the one with most of them:
whatever the scheduler thinks fits, fits (docs/adr/0110).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from partage.model.ids import DeviceUuid, ResourceName, ShareId, device_of
from partage.model.share import AllocationRefused, DeviceOffer, DeviceRow, Resource
from partage.text import listed
from partage.units import format_exactly
from partage.values import Frozen

_MOST_SHOWN = 8


class NoRoom(AllocationRefused):
    """A container cannot have so many units: no device has them free, or the kubelet chose of several.

    units: what the container asked for. ignored: the kubelet chose the device, or had bound the container to
    one before: another device may have so many free.
    """

    def __init__(self, reason: str, units: int, *, ignored: bool = False) -> None:
        super().__init__(reason)
        self.units = units
        self.ignored = ignored


class UnitAllocator:
    """GetPreferredAllocation for a resource of units. Built when the resource changes; called during
    admission.

    binpack: the device where least is free that is enough; spread: where most is free. Among equals the
    lowest index.
    """

    def __init__(self, resource: Resource) -> None:
        self._rows = {row.device: row for row in resource.offerings}
        self._ids = {row.device: row.share_ids for row in resource.offerings}
        self._device_of = {id_: device for device, ids in self._ids.items() for id_ in ids}
        self._order = {device: place for place, device in enumerate(self._rows)}
        self._spread = any(row.spread for row in resource.offerings)

    def prefer(
        self, available: Sequence[ShareId], must_include: Sequence[ShareId], size: int
    ) -> list[ShareId]:
        """``size`` ids of one device out of ``available``, with ``must_include`` first.

        must_include: the kubelet gives a container the units of its pod's init containers again.

        Raises
        ------
        NoRoom: no device has so many free, or not the one of ``must_include``.
        AllocationRefused: ``must_include`` is unknown or too long.

        """
        for id_ in must_include:
            if id_ not in self._device_of:
                raise AllocationRefused(f"device {id_!r} has to be included, but is unknown")
        if len(must_include) > size:
            raise AllocationRefused(f"{len(must_include)} devices have to be included, but {size} are wanted")
        missing = size - len(must_include)
        if not missing:
            return list(must_include)
        free = self._free(available, must_include)
        fixed = {self._device_of[id_] for id_ in must_include}
        fitting = [device for device, ids in free.items() if len(ids) >= missing and fixed <= {device}]
        if not fitting:
            raise NoRoom(self._no_room(free, fixed, must_include, size), size, ignored=bool(fixed))
        sign = -1 if self._spread else 1
        chosen = min(fitting, key=lambda device: (sign * len(free[device]), self._order[device]))
        return [*must_include, *free[chosen][:missing]]

    def _free(
        self, available: Sequence[ShareId], must_include: Collection[ShareId]
    ) -> dict[DeviceUuid, list[ShareId]]:
        """The free ids of every device, lowest first."""
        choosable = set(available).difference(must_include)
        return {device: [id_ for id_ in ids if id_ in choosable] for device, ids in self._ids.items()}

    def _no_room(
        self,
        free: dict[DeviceUuid, list[ShareId]],
        fixed: Collection[DeviceUuid],
        must_include: Sequence[ShareId],
        size: int,
    ) -> str:
        asked = f"this container asks for {_amount(size, self._rows.values())} of GPU memory"
        if fixed:
            where = ", ".join(sorted(name_of(self._rows[device]) for device in fixed))
            held = _amount(len(must_include), self._rows.values())
            return (
                f"{asked}; an init container of its pod had {held} of {where}, which Kubernetes gives it "
                "again, and the rest is not free there. Let the init container ask for nothing, or for as "
                "much as the pod's first container"
            )
        largest = max((row.count for row in self._rows.values()), default=0)
        if size > largest:
            return f"{asked}, and the largest GPU of this node has {_amount(largest, self._rows.values())}"
        here = [f"{name_of(row)}: {_amount(len(free[device]), [row])}" for device, row in self._rows.items()]
        return (
            f"{asked}, all of one GPU, and no GPU of this node has that much free "
            f"({listed(here, _MOST_SHOWN)}). Ask for less, or wait until memory is free"
        )


def scattered(offerings: Sequence[DeviceOffer]) -> NoRoom:
    """The refusal of units of several devices. offerings: of each unit."""
    counts = Counter(name_of(row) for row in offerings)
    parts = [f"{_amount(count, offerings)} of {name}" for name, count in counts.items()]
    asked = f"this container asks for {_amount(len(offerings), offerings)} of GPU memory"
    chose = f"the kubelet chose {listed(parts, _MOST_SHOWN)}"
    reason = f"{asked}, and {chose}: a container's memory has to be of one GPU"
    return NoRoom(reason, len(offerings), ignored=True)


def memory_in_units(row: DeviceOffer, memory_bytes: int | None) -> int:
    """All memory of the device, that which is promised to nobody too, in its units and rounded up.

    Programs for gpushare take the part CONTAINER / DEV of the device's memory: rounded up, that is never more
    than their amount. (gpushare rounds down: 12/22 of 22.5 GiB are 12.3 GiB.) memory_bytes: None while the
    device does not answer; then its units are all that is known.
    """
    return row.replicas if memory_bytes is None else -(-memory_bytes // row.memory_bytes)


def name_of(row: DeviceOffer) -> str:
    """``GPU 0``, ``GPU 0 3g.40gb``."""
    return f"GPU {row.gpu_index}" + (f" {row.profile}" if row.profile else "")


def _amount(units: int, rows: Iterable[DeviceOffer]) -> str:
    """``5 GiB``; ``5 units`` where the unit is not the same everywhere, while a policy changes."""
    if not units:
        return "nothing"
    sizes = {row.memory_bytes for row in rows if row.by_memory}
    return format_exactly(units * sizes.pop()) if len(sizes) == 1 else f"{units} units"


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
    if refused is None:
        return tuple(rows)
    free = Counter(device_of(row.id) for row in rows if row.healthy and row.id not in held)
    if not _would_be_refused(refused, free):
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
