"""Which layouts on which GPUs serve a demand with the fewest GPUs, and then the fewest disturbed instances.

GPUs of one kind in one state are alike, so they form a group. For each group every combination that one of
its GPUs can serve is enumerated (``choices``); an integer program says how many GPUs of each group take which
(``integer``). Among the packings with as few GPUs and as few disturbed instances, one is taken that turns MIG
mode on at the fewest GPUs, and of those one that makes the fewest new devices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from partage.model.layout import LayoutItem
from partage.model.profile import MigProfile
from partage.plan.packing.candidates import Candidate, CandidateDevice
from partage.plan.packing.choices import Choice, Served
from partage.plan.packing.demand import Demand
from partage.plan.packing.groups import (
    CapableGpu,
    Group,
    assign_choices,
    capable_gpus,
    covering_groups,
    covering_program,
    exact_groups,
    exact_program,
    trimmed,
)
from partage.plan.packing.impossible import (
    check_each_alone,
    check_profiles_exist,
    undecided,
    why_not_together,
)
from partage.plan.packing.integer_program import (
    Deadline,
    Infeasible,
    Packed,
    Prices,
    Undecided,
    improved,
    least,
    need_solver,
    value,
)

_GPUS, _DISTURBED = 0, 1
_COVERED = 3
"""Objectives that do not ask whether too much is served."""


@dataclass(frozen=True, slots=True)
class Disturbed:
    """What is destroyed. uuid: of the MIG device; None for a GPU instance in which there is none."""

    item: LayoutItem
    uuid: str | None


@dataclass(frozen=True, slots=True)
class PackedGpu:
    """What one GPU does for the demand. layout: all MIG devices that it has in the end, starts fixed.

    serves: those of ``layout`` that the demand gets; reused: those of them that exist already.
    """

    candidate: Candidate
    serves: tuple[LayoutItem, ...]
    layout: tuple[LayoutItem, ...]
    reused: tuple[CandidateDevice, ...]
    disturbed: tuple[Disturbed, ...]


@dataclass(frozen=True, slots=True)
class PriceProof:
    """Why fewer GPUs cannot do. At these prices, in GPUs, no available GPU is worth more than one, but for
    ``spared`` in all; the demand is worth ``worth``; so at least ``worth - spared`` GPUs are needed.
    """

    prices: tuple[tuple[MigProfile, Fraction], ...]
    worth: Fraction
    spared: Fraction


@dataclass(frozen=True, slots=True)
class Packing:
    """The answer. bound: fewer GPUs cannot serve the demand; disturbed_bound: on as few GPUs, fewer instances
    cannot be disturbed. proof: of ``bound``; None where only the solver's search proves it.
    """

    demand: Demand
    assignments: tuple[PackedGpu, ...]
    available: int
    bound: int
    disturbed_bound: int
    proof: PriceProof | None

    @property
    def gpus_used(self) -> int:
        """GPUs that serve something."""
        return len(self.assignments)

    @property
    def disturbed(self) -> int:
        """Instances that are destroyed."""
        return sum(len(one.disturbed) for one in self.assignments)

    @property
    def optimal(self) -> bool:
        """Both bounds are reached."""
        return self.gpus_used == self.bound and self.disturbed == self.disturbed_bound


def pack(
    demand: Demand, candidates: Sequence[Candidate], clock: Callable[[], float], time_limit_s: float
) -> Packing:
    """The best packing, or the best that was found in the time. clock: seconds, from any beginning.

    Raises Unsatisfiable with the profiles that cannot be served, and how many at most; also where the time
    was over before anything was found.
    """
    deadline = Deadline(clock, time_limit_s)
    check_profiles_exist(demand, candidates)
    need_solver()
    members = capable_gpus(demand, candidates)
    groups = covering_groups(members)
    program = covering_program(demand, groups)
    check_each_alone(demand, program)
    try:
        packed = least(program, _COVERED, deadline)
    except Infeasible:
        raise why_not_together(demand, program, deadline) from None
    except Undecided:
        raise undecided(demand, time_limit_s) from None
    served = trimmed(demand, assign_choices(groups, packed.taken))
    served = _with_fewer_new(demand, members, groups, packed.prices, served, deadline=deadline)
    assignments = tuple(
        _assignment(member.candidate, member.choices[served[id(member)][1]])
        for member in members
        if id(member) in served
    )
    total = Counter(item.profile for one in assignments for item in one.serves)
    assert total == Counter(dict(demand.wanted)), "the solver's answer is checked, not believed"
    return _packing(demand, candidates, packed, assignments)


def _with_fewer_new(
    demand: Demand,
    members: Sequence[CapableGpu],
    covering: Sequence[Group],
    prices: Prices,
    served: dict[int, tuple[CapableGpu, Served]],
    *,
    deadline: Deadline,
) -> dict[int, tuple[CapableGpu, Served]]:
    """Free instances that exist are used first: as well as before, with the fewest new devices."""
    created = sum(member.choices[amounts].created for member, amounts in served.values())
    if created == _fewest_new(demand, members):
        return served
    disturbed = sum(member.choices[amounts].disturbed for member, amounts in served.values())
    modes = sum(member.mode_changes for member, _ in served.values())
    groups = exact_groups(members)
    program = exact_program(demand, groups, covering, prices, len(served))
    better = improved(program, (len(served), disturbed, modes), deadline, created)
    return served if better is None else assign_choices(groups, better)


def _fewest_new(demand: Demand, members: Sequence[CapableGpu]) -> int:
    """New devices, if all free ones of demanded profiles could serve."""
    free = Counter(
        device.profile
        for member in members
        for instance in member.candidate.instances
        for device in instance.devices
        if not device.held
    )
    return sum(max(count - free[profile], 0) for profile, count in demand.wanted)


def _packing(
    demand: Demand, candidates: Sequence[Candidate], packed: Packed, assignments: tuple[PackedGpu, ...]
) -> Packing:
    as_solved = len(assignments) == value(packed.taken, _GPUS)
    return Packing(
        demand=demand,
        assignments=assignments,
        available=len(candidates),
        bound=packed.bounds[_GPUS],
        disturbed_bound=packed.bounds[_DISTURBED] if as_solved else 0,
        proof=_proof(demand, packed),
    )


def _proof(demand: Demand, packed: Packed) -> PriceProof | None:
    prices = packed.prices
    if math.ceil(prices.bound) < packed.bounds[_GPUS]:
        return None
    named = tuple(zip(demand.profiles, prices.fractions, strict=True))
    worth = sum((count * price for count, (_, price) in zip(demand.counts, named, strict=True)), Fraction(0))
    return PriceProof(named, worth, worth - prices.bound)


# --- the assignments ---------------------------------------------------------------------------


def _assignment(candidate: Candidate, choice: Choice) -> PackedGpu:
    uses = {use.instance: use for use in choice.uses if use.instance is not None}
    serves: list[LayoutItem] = []
    layout: list[LayoutItem] = []
    reused: list[CandidateDevice] = []
    disturbed: list[Disturbed] = []
    for position, instance in enumerate(candidate.instances):
        use = uses.get(position)
        if use is not None and use.gone and not instance.devices:
            disturbed.append(Disturbed(LayoutItem(instance.spec.profile, instance.start), None))
        for at, device in enumerate(instance.devices):
            item = LayoutItem(device.profile, instance.start)
            if use is not None and at in use.destroyed:
                disturbed.append(Disturbed(item, device.uuid))
                continue
            layout.append(item)
            if use is not None and at in use.serving:
                serves.append(item)
                reused.append(device)
    for use in choice.uses:
        fresh = [LayoutItem(profile, use.start) for profile in use.created]
        serves.extend(fresh)
        layout.extend(fresh)
    return PackedGpu(candidate, _by_start(serves), _by_start(layout), tuple(reused), tuple(disturbed))


def _by_start(items: Sequence[LayoutItem]) -> tuple[LayoutItem, ...]:
    return tuple(sorted(items, key=lambda item: (item.start or 0, item.profile)))
