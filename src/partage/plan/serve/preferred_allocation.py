"""Which shares a request should get. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from partage.model.gpu import Link
from partage.model.ids import DeviceUuid, GpuUuid, ShareId
from partage.model.policy import AllocationPolicy
from partage.model.share import AllocationRefused, DeviceOffer, Resource
from partage.plan.serve.linked_gpus import LinkedGpus
from partage.values import Frozen


class _Device(Frozen):
    """One GPU or MIG device of the resource, and its shares.

    ids: of its shares, lowest first. first: number of its first share; the shares of a resource are
    numbered device by device. gpu: number of the GPU that it is part of. whole: UUID of the GPU that its one
    share is; else None.
    group: devices whose shares one container can hold together. Each GPU under MPS is its own group,
    because a container's MPS shares must come from one GPU; all other devices are group -1.
    """

    ids: tuple[ShareId, ...]
    first: int
    gpu: int
    whole: GpuUuid | None
    group: int

    @property
    def end(self) -> int:
        """One after the number of its last share."""
        return self.first + len(self.ids)


class PreferredAllocator:
    """GetPreferredAllocation for one resource. Built when the resource changes; called during admission.

    links: of the node; whole GPUs are chosen by them (not GPUs in MIG mode).
    """

    def __init__(self, resource: Resource, links: Sequence[Link], policy: AllocationPolicy) -> None:
        self._devices = _devices_of(resource)
        self._numbers = [number for number, device in enumerate(self._devices) for _ in device.ids]
        ids = (id_ for device in self._devices for id_ in device.ids)
        self._places = {id_: place for place, id_ in enumerate(ids)}
        self._grouped = any(device.group != -1 for device in self._devices)
        self._fullest_first = policy is AllocationPolicy.PACKED
        self._linked = LinkedGpus([device.whole for device in self._devices], links)

    def prefer(
        self, available: Sequence[ShareId], must_include: Sequence[ShareId], size: int
    ) -> list[ShareId]:
        """``size`` ids out of ``available``, with ``must_include`` first.

        Ids in ``available`` that the resource does not have are ignored: the kubelet's list may be older.

        Raises
        ------
        AllocationRefused: not enough available, ``must_include`` unknown or too long.

        """
        unknown = [id_ for id_ in must_include if id_ not in self._places]
        if unknown:
            raise _refusal(f"device {unknown[0]!r} has to be included, but is unknown")
        if len(must_include) > size:
            raise _refusal(f"{len(must_include)} devices have to be included, but {size} are wanted")
        free = self._free(available, must_include)
        counts = [free.count(1, device.first, device.end) for device in self._devices]
        taken = [self._numbers[self._places[id_]] for id_ in must_include]
        missing = size - len(must_include)
        if sum(counts) < missing:
            raise _refusal("not enough available devices to satisfy allocation")
        if missing == 0:
            return list(must_include)
        involved = [number for number, count in enumerate(counts) if count or number in taken]
        if all(self._devices[number].whole for number in involved):
            return [*must_include, *self._best_linked(counts, taken, size)]
        return [*must_include, *self._by_policy(free, counts, taken, missing)]

    def _free(self, available: Sequence[ShareId], must_include: Sequence[ShareId]) -> bytearray:
        """For each share 1 if it can be chosen; the byte after the last one is for unknown ids.

        Bytes instead of a set: each call has hundreds of ids, and this looks up each of them only once.
        """
        nowhere = len(self._places)
        free = bytearray(nowhere + 1)
        for place in map(self._places.get, available, repeat(nowhere)):
            free[place] = 1
        for id_ in must_include:
            free[self._places[id_]] = 0
        return free

    # --- whole GPUs ---------------------------------------------------------------------------

    def _best_linked(self, counts: list[int], taken: list[int], size: int) -> list[ShareId]:
        free = [number for number, count in enumerate(counts) if count]
        fixed = set(taken)
        best = self._linked.best(free, fixed, size - len(taken) + len(fixed))
        return [self._devices[number].ids[0] for number in best if number not in fixed]

    # --- shares and MIG devices ---------------------------------------------------------------

    def _by_policy(self, free: bytearray, counts: list[int], taken: list[int], missing: int) -> list[ShareId]:
        """One share after the other, each from the device that ranks first at that moment."""
        ranking = _Ranking(self._devices, counts, taken, fullest_first=self._fullest_first)
        if self._grouped:
            ranking.keep_group(taken, missing)
        chosen = []
        for _ in range(missing):
            device = self._devices[ranking.take_first()]
            place = free.index(1, device.first, device.end)
            free[place] = 0
            chosen.append(device.ids[place - device.first])
        return chosen


class _Ranking:
    """The devices with free shares, best first, during one request.

    NVIDIA's rule: fewest allocated shares first (packed: most), including those of this request; then the
    device from which this request took fewest. Where NVIDIA chooses randomly: the device on the GPU with
    the fewest (most) allocated shares, which spreads (packs) MIG devices over GPUs; then the lowest index.
    """

    def __init__(
        self, devices: Sequence[_Device], counts: Sequence[int], taken: Sequence[int], *, fullest_first: bool
    ) -> None:
        self._devices = devices
        self._left = list(counts)
        self._sign = -1 if fullest_first else 1
        self._picked = [0] * len(devices)
        for number in taken:
            self._picked[number] += 1
        self._gpu_allocated: dict[int, int] = {}
        for device, count in zip(devices, counts, strict=True):
            held = self._gpu_allocated.get(device.gpu, 0)
            self._gpu_allocated[device.gpu] = held + len(device.ids) - count
        self._keys = {number: self._key(number) for number, count in enumerate(counts) if count}

    def _key(self, number: int) -> tuple[int, int, int, int]:
        device = self._devices[number]
        allocated = len(device.ids) - self._left[number]
        on_gpu = self._gpu_allocated[device.gpu]
        return self._sign * allocated, self._picked[number], self._sign * on_gpu, number

    def keep_group(self, taken: Sequence[int], missing: int) -> None:
        """Keep only devices whose shares one container can hold together, if that is possible."""
        groups = {self._devices[number].group for number in taken}
        for _, _, _, number in sorted(self._keys.values()):
            group = self._devices[number].group
            members = [other for other in self._keys if self._devices[other].group == group]
            if groups <= {group} and sum(self._left[other] for other in members) >= missing:
                self._keys = {other: self._keys[other] for other in members}
                return

    def take_first(self) -> int:
        """The device that ranks first; one of its shares is allocated now."""
        number = min(self._keys.values())[-1]
        gpu = self._devices[number].gpu
        self._left[number] -= 1
        self._picked[number] += 1
        self._gpu_allocated[gpu] += 1
        if not self._left[number]:
            del self._keys[number]
        for other in self._keys:
            if self._devices[other].gpu == gpu:
                self._keys[other] = self._key(other)
        return number


def _refusal(reason: str) -> AllocationRefused:
    """With the words that NVIDIA's plugin puts in front."""
    return AllocationRefused(f"error getting list of preferred allocation devices: {reason}")


def _devices_of(resource: Resource) -> list[_Device]:
    """The devices of a resource in its order; several rows of one device (MPS clients) become one."""
    rows: dict[DeviceUuid, list[DeviceOffer]] = {}
    for offering in resource.offerings:
        rows.setdefault(offering.device, []).append(offering)
    gpus = {gpu: number for number, gpu in enumerate(dict.fromkeys(row.gpu for row in resource.offerings))}
    devices: list[_Device] = []
    for number, offerings in enumerate(rows.values()):
        place = devices[-1].end if devices else 0
        devices.append(_device(number, place, gpus, offerings))
    return devices


def _device(number: int, place: int, gpus: dict[GpuUuid, int], offerings: list[DeviceOffer]) -> _Device:
    first = offerings[0]
    ids = tuple(id_ for offering in offerings for id_ in offering.share_ids)
    # Allocate refuses several shares of a ``single`` device; here they are answered as by NVIDIA's plugin.
    grouped = first.traits.through_daemon and not first.single
    return _Device(
        ids=ids,
        first=place,
        gpu=gpus[first.gpu],
        whole=None if first.traits.in_shares or first.profile is not None else first.gpu,
        group=number if grouped else -1,
    )
