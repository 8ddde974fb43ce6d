"""Which shares a request should get, and what a kubelet does with that. Pure and deterministic.

Whole GPUs are the best-linked set, without trying all sets. A pair of GPUs scores as in NVIDIA's best-effort
policy: the value of its PCIe path, and 100 for each NVLink (here including those through an NVSwitch). The
best set has the greatest sum over its pairs. Of equal sets, the one is chosen that leaves the best-linked
rest for the next request; then the one with the lowest indexes.

Both criteria form one sum. Let deg(g) be the score of g with all free GPUs. The pairs of the rest score
total + chosen - sum(deg of the chosen), so of equal sets the one with the smallest sum of degrees leaves
the most. A large factor puts the first criterion before the second.

Search: greedy growth from several starts, improved by swaps, gives a good set. Branch and bound in the
order of the indexes then looks for a better set, or an equal one with lower indexes, and stops after a
fixed number of nodes. Up to ten free GPUs this is a complete proof. Larger sets are usually proven at the
first nodes, because real topologies have few different scores; otherwise the result is the best set found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from partage.model.gpu import Link
from partage.model.ids import GpuUuid, ShareId
from partage.model.policy import AllocationPolicy
from partage.model.share import AllocationRefused, DeviceOffer, Resource
from partage.plan.serve.allocate_response import check_together
from partage.plan.serve.unit_allocation import UnitAllocator
from partage.values import Frozen, grouped

_NVLINK_SCORE = 100
_STARTS_MOST = 16
_SWAPPED_MOST = 3
_NODES_TIMES_GPUS = 4800
"""Limit of the search. The time for one node is proportional to the free GPUs: 480 nodes for 10 GPUs, whose
largest tree has 252; 300 for 16.
"""


def pair_score(link: Link) -> int:
    """How well two GPUs are linked (as in NVIDIA's go-gpuallocator: the path and every NVLink count)."""
    return int(link.path) + _NVLINK_SCORE * link.nvlinks


class LinkedGpus:
    """The GPUs of a resource, by position, and the scores of their pairs. None: not a whole GPU, no links."""

    def __init__(self, gpus: Sequence[GpuUuid | None], links: Iterable[Link]) -> None:
        positions = {gpu: position for position, gpu in enumerate(gpus)}
        self._scores = [[0] * len(gpus) for _ in gpus]
        for link in links:
            a, b = positions.get(link.a), positions.get(link.b)
            if a is not None and b is not None:
                self._scores[a][b] = self._scores[b][a] = pair_score(link)

    def best(self, free: Iterable[int], must: Iterable[int], size: int) -> list[int]:
        """``size`` positions out of free and must, including those of must; ascending.

        free and must together have at least ``size`` positions.
        """
        fixed = set(must)
        gpus = sorted(fixed.union(free))
        if size >= len(gpus) or size <= len(fixed):
            return gpus if size >= len(gpus) else sorted(fixed)
        chosen = _Search([[self._scores[a][b] for b in gpus] for a in gpus], size).best(
            [place for place, gpu in enumerate(gpus) if gpu in fixed]
        )
        return [gpus[place] for place in sorted(chosen)]


class _Search:
    """One choice of ``size`` out of the free GPUs, numbered 0 to n - 1.

    worth: gain of a pair; cost: of a single GPU. Both are doubled, so that half a pair is a whole number.
    """

    def __init__(self, scores: list[list[int]], size: int) -> None:
        degrees = [sum(row) for row in scores]
        factor = sum(degrees) + 1
        self.size = size
        self.places = range(len(scores))
        self.worth = [[2 * factor * score for score in row] for row in scores]
        self.cost = [2 * degree for degree in degrees]
        self.half_best = [_halves(row, place) for place, row in enumerate(self.worth)]

    def best(self, must: list[int]) -> tuple[int, ...]:
        gains = [-cost for cost in self.cost]
        value = 0
        for place in must:
            value += gains[place]
            gains = self.after(gains, place)
        good_value, good = self._good(must, value, gains)
        proof = _Proof(self, good_value)
        proof.descend(tuple(must), value, gains, [place for place in self.places if place not in must])
        return proof.best or good

    def after(self, gains: list[int], place: int) -> list[int]:
        """The gain of each GPU after ``place`` is chosen too."""
        return [gain + pair for gain, pair in zip(gains, self.worth[place], strict=True)]

    def _good(self, must: list[int], value: int, gains: list[int]) -> tuple[int, tuple[int, ...]]:
        """A good set and its value: the best of several, grown and swapped."""
        others = [place for place in self.places if place not in must]
        step = -(-len(others) // _STARTS_MOST)
        grown = {self._grown([*must, start], value + gains[start], self.after(gains, start))
                 for start in others[::step]}  # fmt: skip
        ranked = sorted(grown, key=lambda found: (-found[0], found[1]))
        swapped = (self._swapped(*found, fixed=must) for found in ranked[:_SWAPPED_MOST])
        return min(swapped, key=lambda found: (-found[0], found[1]))

    def _grown(self, chosen: list[int], value: int, gains: list[int]) -> tuple[int, tuple[int, ...]]:
        """Repeatedly add the GPU with the largest gain."""
        left = [place for place in self.places if place not in chosen]
        while len(chosen) < self.size:
            place = max(left, key=gains.__getitem__)
            left.remove(place)
            chosen.append(place)
            value += gains[place]
            gains = self.after(gains, place)
        return value, tuple(sorted(chosen))

    def _swapped(self, value: int, chosen: tuple[int, ...], fixed: list[int]) -> tuple[int, tuple[int, ...]]:
        """Exchange GPUs while that improves the value; this ends, because each improvement is a whole
        number.
        """
        inside = set(chosen)
        while True:
            gains = [sum(self.worth[a][b] for b in inside) - self.cost[a] for a in self.places]
            exchanges = (
                (gains[new] - gains[old] - self.worth[new][old], -old, -new)
                for old in inside.difference(fixed)
                for new in self.places
                if new not in inside
            )
            gain, old, new = max(exchanges)
            if gain <= 0:
                return value, tuple(sorted(inside))
            inside.symmetric_difference_update((-old, -new))
            value += gain


class _Proof:
    """Branch and bound in ascending order; sets that cannot be better, or equal and lower, are skipped."""

    def __init__(self, search: _Search, value: int) -> None:
        self._search = search
        self._value = value
        self._nodes_left = _NODES_TIMES_GPUS // len(search.places)
        self.best: tuple[int, ...] = ()

    def descend(self, chosen: tuple[int, ...], value: int, gains: list[int], left: list[int]) -> None:
        """All sets that continue ``chosen`` with places of ``left``."""
        missing = self._search.size - len(chosen)
        if missing == 0:
            if self._improves(value):
                self._value, self.best = value, chosen
            return
        self._nodes_left -= 1
        for position in range(len(left) - missing + 1):
            if self._nodes_left < 0 or not self._promises(value, gains, left[position:], missing):
                return
            place = left[position]
            rest = left[position + 1 :]
            self.descend((*chosen, place), value + gains[place], self._search.after(gains, place), rest)

    def _promises(self, value: int, gains: list[int], left: list[int], missing: int) -> bool:
        """Whether ``missing`` GPUs of left could improve the result, by an estimate that is never too low."""
        halves = self._search.half_best
        promised = sorted((gains[place] + halves[place][missing - 1] for place in left), reverse=True)
        return self._improves(value + sum(promised[:missing]))

    def _improves(self, value: int) -> bool:
        """The first set found has the lowest indexes of its value, so it replaces an equal one."""
        return value > self._value or (value == self._value and not self.best)


def _halves(row: list[int], place: int) -> list[int]:
    """Half of the sum of the n best pairs of one GPU, for each n from 0."""
    sums = [0]
    for pair in sorted(row[:place] + row[place + 1 :], reverse=True):
        sums.append(sums[-1] + pair // 2)
    return sums


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
    rows = grouped((offering.device, offering) for offering in resource.offerings)
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


def allocator_of(
    resource: Resource, links: Sequence[Link], policy: AllocationPolicy
) -> PreferredAllocator | UnitAllocator:
    """Units of memory come from one device; all other shares are chosen by links and policy."""
    if any(row.by_memory for row in resource.offerings):
        return UnitAllocator(resource)
    return PreferredAllocator(resource, links, policy)


class KubeletChoice:
    """What the kubelet does for a container and one resource, where no kubelet is asked: it takes what its
    plugin prefers, and asks Allocate (pkg/kubelet/cm/devicemanager). Both are the agent's functions.
    """

    def __init__(self, resource: Resource, links: Sequence[Link], policy: AllocationPolicy) -> None:
        self._name = resource.name
        self._prefer = allocator_of(resource, links, policy).prefer
        self._row_of = {share: row for row in resource.offerings for share in row.share_ids}

    def shares(self, free: Sequence[ShareId], count: int, reusable: Sequence[ShareId] = ()) -> list[ShareId]:
        """So many of the free ones. reusable: what init containers of the pod had; these come first.

        Raises AllocationRefused with the agent's words.
        """
        again = reusable[:count]
        ids = self._prefer([*free, *again], again, count)
        check_together(self._name, [self._row_of[share] for share in ids])
        return ids
