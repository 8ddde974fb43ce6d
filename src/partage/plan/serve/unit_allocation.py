"""Which units of memory a container gets: all of one device. Pure and deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from partage.model.ids import DeviceUuid, ShareId
from partage.model.share import AllocationRefused, DeviceOffer, Resource
from partage.text import listed
from partage.units import format_exactly

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
        free = self._free(available, must_include)
        fixed = {self._device_of[id_] for id_ in must_include}
        missing = size - len(must_include)
        fitting = [device for device, ids in free.items() if len(ids) >= missing and fixed <= {device}]
        if not fitting and missing:
            raise NoRoom(self._no_room(free, fixed, must_include, size), size, ignored=bool(fixed))
        if not missing:
            return list(must_include)
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
