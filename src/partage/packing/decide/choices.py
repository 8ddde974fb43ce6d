"""Every combination of demanded MIG devices that one GPU can serve, with its least cost.

The cost is the number of destroyed live devices, then of new devices, then of new GPU instances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from operator import add, le

from partage.model.geometry import Geometry, MigProfile, ProfileSpec
from partage.model.layout import compute_choices
from partage.packing.decide.candidates import CandidateDevice, CandidateGpu, CandidateInstance
from partage.packing.decide.demand import Demand
from partage.packing.decide.openings import NewInstances, Quota, openings
from partage.values import Frozen, grouped

Served = tuple[int, ...]
"""Number of each demanded profile, in the order of the demand."""


class InstanceUse(Frozen):
    """What happens to one GPU instance.

    instance: position of the live one; None for a new one of ``spec`` at ``start``. serving, destroyed:
    positions of its live devices. gone: the instance itself is destroyed. created: new devices in it.
    """

    spec: ProfileSpec
    start: int
    instance: int | None = None
    serving: tuple[int, ...] = ()
    destroyed: tuple[int, ...] = ()
    created: tuple[MigProfile, ...] = ()
    gone: bool = False


class Choice(Frozen):
    """One way to use a GPU. Only instances that serve or change are in ``uses``.

    disturbed: destroyed live devices; an instance without devices counts as one. created: new devices.
    opened: new GPU instances; none is needed if a device fits into an existing one.
    """

    disturbed: int
    created: int
    opened: int = 0
    uses: tuple[InstanceUse, ...] = ()

    @property
    def cost(self) -> tuple[int, int, int]:
        """To be minimised, the first number before the second."""
        return self.disturbed, self.created, self.opened


Choices = dict[Served, Choice]


class ChoiceFinder:
    """Finds what GPUs can do for one demand. Caches partial results, because GPUs of one model have many in
    common.
    """

    def __init__(self, demand: Demand) -> None:
        self._profiles = demand.profiles
        self._most = demand.counts
        self._nothing = (0,) * len(self._most)
        self._new: dict[NewInstances, Choices] = {}
        self._live: dict[object, Choices] = {}
        self._fillings: dict[tuple[MigProfile, int], tuple[Served, ...]] = {}

    def choices(self, candidate: CandidateGpu) -> Choices:
        """The cheapest way to serve each combination that the GPU can serve, without the empty one.

        Combinations that leave slices free are included: the number served is exact.
        """
        kept = [self._of_live(position, live) for position, live in enumerate(candidate.instances)]
        gone = [
            {self._nothing: _removal(position, live)} for position, live in enumerate(candidate.instances)
        ]
        found: Choices = {}
        ways = openings(candidate.geometry, candidate.instances, self._quota(candidate.geometry))
        for removed, new_sets in ways.items():
            old: Choices = {self._nothing: Choice(0, 0)}
            for position, stays in enumerate(kept):
                old = self._both(old, gone[position] if removed >> position & 1 else stays)
            new: Choices = {}
            for new_instances in new_sets:
                _keep_cheapest(new, self._of_new(new_instances))
            _keep_cheapest(found, self._both(old, new))
        found.pop(self._nothing, None)
        return found

    def _quota(self, geometry: Geometry) -> Quota:
        """How many new GPU instances of each profile can be useful: not more than devices are demanded."""
        quota: Counter[MigProfile] = Counter()
        for profile, count in zip(self._profiles, self._most, strict=True):
            spec = geometry.spec(profile)
            if spec is not None:
                quota[profile.gpu_instance] += min(count, spec.max_count * spec.compute_slices)
        return tuple(quota.items())

    def _of_new(self, new_instances: NewInstances) -> Choices:
        """What new GPU instances can hold; none of them stays empty."""
        if new_instances not in self._new:
            result: Choices = {self._nothing: Choice(0, 0)}
            for new in new_instances.instances:
                part = {
                    served: Choice(
                        0, sum(served), 1, (InstanceUse(new.spec, new.start, created=self._named(served)),)
                    )
                    for served in self._filled(new.spec, new.spec.compute_slices)
                    if any(served)
                }
                result = self._both(result, part)
            self._new[new_instances] = result
        return self._new[new_instances]

    def _of_live(self, position: int, instance: CandidateInstance) -> Choices:
        """What an existing GPU instance can do without being destroyed."""
        devices = tuple((device.profile, device.held) for device in instance.devices)
        key = position, instance.spec.profile, instance.start, devices
        if key not in self._live:
            result: Choices = {}
            for served, choice in self._uses(position, instance):
                _keep_cheapest(result, {served: choice})
            self._live[key] = result
        return self._live[key]

    def _uses(self, position: int, instance: CandidateInstance) -> Iterator[tuple[Served, Choice]]:
        """Its devices serve, or are destroyed to create others in their place."""
        free = [at for at, device in enumerate(instance.devices) if not device.held]
        for destroyed in _subsets(free, instance):
            rest = [at for at in range(len(instance.devices)) if at not in destroyed]
            taken = sum(instance.devices[at].profile.compute_slices for at in rest)
            for created in self._filled(instance.spec, instance.spec.compute_slices - taken):
                if destroyed and not any(created):
                    continue
                for serving in _subsets([at for at in free if at in rest], instance):
                    reused = self._count([instance.devices[at] for at in serving])
                    if reused is None:
                        continue
                    served = tuple(map(add, reused, created))
                    use = InstanceUse(
                        instance.spec, instance.start, position, serving, destroyed, self._named(created)
                    )
                    yield served, Choice(len(destroyed), sum(created), 0, (use,) if any(served) else ())

    def _filled(self, spec: ProfileSpec, room: int) -> tuple[Served, ...]:
        """Every combination of demanded devices that fits into ``room`` compute slices of a GPU instance."""
        key = spec.profile, room
        if key not in self._fillings:
            allowed = compute_choices(spec.compute_slices)
            sizes = [
                p.compute_slices if p.gpu_instance == spec.profile and p.compute_slices in allowed else 0
                for p in self._profiles
            ]
            self._fillings[key] = tuple(_fillings(sizes, room, self._most))
        return self._fillings[key]

    def _count(self, devices: Sequence[CandidateDevice]) -> Served | None:
        """How many of each demanded profile these are; None if one of them is not demanded."""
        counts = Counter(device.profile for device in devices)
        known = counts.keys() <= set(self._profiles)
        return tuple(counts[profile] for profile in self._profiles) if known else None

    def _named(self, served: Served) -> tuple[MigProfile, ...]:
        return tuple(p for p, amount in zip(self._profiles, served, strict=True) for _ in range(amount))

    def _both(self, left: Choices, right: Choices) -> Choices:
        """Every choice of the one combined with every choice of the other, within the demand."""
        result: Choices = {}
        costs: dict[Served, tuple[int, int, int]] = {}
        for a, choice in left.items():
            for b, other in right.items():
                served = tuple(map(add, a, b))
                cost = (
                    choice.disturbed + other.disturbed,
                    choice.created + other.created,
                    choice.opened + other.opened,
                )
                if (served not in costs or cost < costs[served]) and all(map(le, served, self._most)):
                    costs[served] = cost
                    result[served] = Choice(*cost, choice.uses + other.uses)
        return result


def _removal(position: int, instance: CandidateInstance) -> Choice:
    everything = tuple(range(len(instance.devices)))
    use = InstanceUse(instance.spec, instance.start, position, destroyed=everything, gone=True)
    return Choice(max(len(everything), 1), 0, 0, (use,))


def _fillings(sizes: Sequence[int], room: int, most: Served) -> Iterator[Served]:
    """Every combination of items of these sizes that fits; size 0: the item cannot be used."""
    if not sizes:
        yield ()
        return
    for amount in range((min(room // sizes[0], most[0]) if sizes[0] else 0) + 1):
        for rest in _fillings(sizes[1:], room - amount * sizes[0], most[1:]):
            yield (amount, *rest)


def _keep_cheapest(found: Choices, more: Choices) -> None:
    for served, choice in more.items():
        if served not in found or choice.cost < found[served].cost:
            found[served] = choice


def _subsets(positions: Sequence[int], instance: CandidateInstance) -> Iterator[tuple[int, ...]]:
    """Every selection of live devices; devices of one profile that differ in nothing else are
    interchangeable.
    """
    alike = grouped((instance.devices[at].profile, at) for at in positions)
    for amounts in product(*(range(len(group) + 1) for group in alike.values())):
        yield tuple(
            at for group, amount in zip(alike.values(), amounts, strict=True) for at in group[:amount]
        )
