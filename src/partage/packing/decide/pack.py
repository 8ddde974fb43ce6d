"""The layouts that serve a demand with the fewest GPUs, and then with the fewest destroyed instances.

GPUs of one model in one state are equal and form a group. For each group every combination that one of its
GPUs can serve is enumerated (``choices``); an integer program decides how many GPUs of each group take
which (``integer_program``). Of the packings with as few GPUs and as few destroyed instances, one is chosen
that turns MIG mode on for the fewest GPUs, and then one with the fewest new devices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction

from partage.errors import Problem, Unsatisfiable
from partage.model.geometry import MigProfile
from partage.model.ids import MigUuid
from partage.model.layout import LayoutItem
from partage.packing.decide.candidates import CandidateDevice, CandidateGpu, State
from partage.packing.decide.choices import Choice, ChoiceFinder, Choices, Served
from partage.packing.decide.demand import Demand, nearest_hint
from partage.packing.decide.integer_program import (
    Column,
    Deadline,
    Infeasible,
    IntegerProgram,
    Packed,
    Prices,
    Undecided,
    cost_of,
    improve,
    most_served,
    need_solver,
    solve,
)
from partage.values import Frozen


class CapableGpu(Frozen):
    """A candidate, and everything that it can do for the demand."""

    candidate: CandidateGpu
    choices: Choices

    @property
    def mode_changes(self) -> int:
        """1 if MIG mode must be turned on first."""
        return int(not self.candidate.gpu.mig_enabled)

    @property
    def best(self) -> Iterator[tuple[Served, int]]:
        """What it can serve, and the live devices that this destroys, without choices that another one
        dominates.

        Serving fewer never destroys more, so it is enough to compare with one device more of each profile.
        """
        for served, choice in self.choices.items():
            bigger = (
                self.choices.get((*served[:at], amount + 1, *served[at + 1 :]))
                for at, amount in enumerate(served)
            )
            if not any(more is not None and more.disturbed <= choice.disturbed for more in bigger):
                yield served, choice.disturbed


Group = tuple[CapableGpu, ...]
"""Members in the order of the candidates."""


def capable_gpus(demand: Demand, candidates: Iterable[CandidateGpu]) -> tuple[CapableGpu, ...]:
    """All candidates, in their order; each state is computed once."""
    allocator = ChoiceFinder(demand)
    known: dict[State, Choices] = {}
    result = []
    for candidate in candidates:
        state = candidate.state
        if state not in known:
            known[state] = allocator.choices(candidate)
        result.append(CapableGpu(candidate, known[state]))
    return tuple(result)


def groups_by(members: Sequence[CapableGpu], signature: Callable[[CapableGpu], object]) -> tuple[Group, ...]:
    """Groups of equal signature and MIG mode. Members with the same choices have the same signature."""
    signatures: dict[int, object] = {}
    groups: dict[object, list[CapableGpu]] = {}
    for member in members:
        key = id(member.choices)
        if key not in signatures:
            signatures[key] = signature(member)
        groups.setdefault((member.mode_changes, signatures[key]), []).append(member)
    return tuple(map(tuple, groups.values()))


def covering_groups(members: Sequence[CapableGpu]) -> tuple[Group, ...]:
    """Groups for a program that may serve more than demanded: members have equal best choices."""
    return groups_by(members, lambda member: frozenset(member.best))


def covering_program(demand: Demand, groups: Sequence[Group]) -> IntegerProgram:
    """Objectives: GPUs, destroyed instances, changes of MIG mode."""
    columns = [
        Column(at, served, (1, disturbed, group[0].mode_changes))
        for at, group in enumerate(groups)
        for served, disturbed in sorted(group[0].best, reverse=True)
    ]
    return IntegerProgram(tuple(map(len, groups)), tuple(columns), demand.counts)


def exact_groups(members: Sequence[CapableGpu]) -> tuple[Group, ...]:
    """Groups for a program that serves exactly the demand: members have equal choices."""

    def everything(member: CapableGpu) -> object:
        return frozenset(
            (served, choice.disturbed, choice.created) for served, choice in member.choices.items()
        )

    return groups_by(members, everything)


def exact_program(
    demand: Demand, groups: Sequence[Group], covering: Sequence[Group], prices: Prices, gpus: int
) -> IntegerProgram:
    """Objectives as before, then new devices; without choices that are in no solution with so few GPUs."""
    at_first = {id(member): at for at, group in enumerate(covering) for member in group}
    columns = tuple(
        Column(at, served, (1, choice.disturbed, group[0].mode_changes, choice.created))
        for at, group in enumerate(groups)
        for served, choice in sorted(group[0].choices.items(), reverse=True)
        if prices.possible(at_first[id(group[0])], served, gpus)
    )
    return IntegerProgram(tuple(map(len, groups)), columns, demand.counts, exact=True)


def assign_choices(
    groups: Sequence[Group], taken: Iterable[tuple[Column, int]]
) -> dict[int, tuple[CapableGpu, Served]]:
    """The choice of each GPU: the members of a group take its choices in their order. Keys: id() of the
    member.
    """
    waiting = [iter(group) for group in groups]
    return {
        id(member): (member, column.served)
        for column, count in taken
        for member in (next(waiting[column.group]) for _ in range(count))
    }


def without_surplus(
    demand: Demand, served: dict[int, tuple[CapableGpu, Served]]
) -> dict[int, tuple[CapableGpu, Served]]:
    """The same without what exceeds the demand; new devices are left out first."""
    result = dict(served)
    for at, count in enumerate(demand.counts):
        surplus = sum(amounts[at] for _, amounts in result.values()) - count
        for _ in range(surplus):
            _leave_one_away(result, at)
    return result


def _leave_one_away(served: dict[int, tuple[CapableGpu, Served]], at: int) -> None:
    def gain(key: int) -> tuple[int, int, int]:
        member, amounts = served[key]
        less = _one_less(amounts, at)
        if not any(less):
            return 0, 0, 0
        before, after = member.choices[amounts], member.choices[less]
        return after.disturbed - before.disturbed, after.created - before.created, sum(amounts)

    key = min((key for key, (_, amounts) in served.items() if amounts[at]), key=gain)
    member, amounts = served[key]
    less = _one_less(amounts, at)
    if any(less):
        served[key] = member, less
    else:
        del served[key]


def _one_less(amounts: Served, at: int) -> Served:
    return (*amounts[:at], amounts[at] - 1, *amounts[at + 1 :])


_GPUS, _DISTURBED = 0, 1
_COVERED = 3
"""Number of objectives for which serving too much is allowed."""


class Disturbed(Frozen):
    """A destroyed MIG device. uuid: None for a GPU instance without MIG devices."""

    item: LayoutItem
    uuid: MigUuid | None


class PackedGpu(Frozen):
    """What one GPU does for the demand. layout: all its MIG devices in the end, with starts.

    serves: those of ``layout`` that serve the demand. reused: those of them that exist already.
    """

    candidate: CandidateGpu
    serves: tuple[LayoutItem, ...]
    layout: tuple[LayoutItem, ...]
    reused: tuple[CandidateDevice, ...]
    disturbed: tuple[Disturbed, ...]


class PriceProof(Frozen):
    """Why fewer GPUs are not enough. At these prices, in GPUs, no available GPU is worth more than one,
    except for ``spared`` in total. The demand is worth ``worth``, so at least ``worth - spared`` GPUs
    are needed.
    """

    prices: tuple[tuple[MigProfile, Fraction], ...]
    worth: Fraction
    spared: Fraction


class Packing(Frozen):
    """The result. bound: fewer GPUs cannot serve the demand. disturbed_bound: with as few GPUs, fewer
    instances cannot be destroyed. proof: of ``bound``; None if only the solver's search proves it.
    """

    demand: Demand
    assignments: tuple[PackedGpu, ...]
    available: int
    bound: int
    disturbed_bound: int
    proof: PriceProof | None

    @property
    def gpus_used(self) -> int:
        """Number of GPUs that serve something."""
        return len(self.assignments)

    @property
    def disturbed(self) -> int:
        """Number of destroyed instances."""
        return sum(len(assignment.disturbed) for assignment in self.assignments)

    @property
    def optimal(self) -> bool:
        """Both bounds are reached."""
        return self.gpus_used == self.bound and self.disturbed == self.disturbed_bound


def pack(
    demand: Demand, candidates: Sequence[CandidateGpu], clock: Callable[[], float], time_limit_s: float
) -> Packing:
    """The best packing, or the best one found in time. clock: returns seconds.

    Raises Unsatisfiable with the profiles that cannot be served and how many are possible, and if time ran
    out before anything was found.
    """
    deadline = Deadline(clock, time_limit_s)
    check_profiles_exist(demand, candidates)
    need_solver()
    members = capable_gpus(demand, candidates)
    groups = covering_groups(members)
    program = covering_program(demand, groups)
    check_each_alone(demand, program)
    try:
        packed = solve(program, _COVERED, deadline)
    except Infeasible:
        raise why_not_together(demand, program, deadline) from None
    except Undecided:
        raise undecided_error(demand, time_limit_s) from None
    served = without_surplus(demand, assign_choices(groups, packed.taken))
    served = _with_fewer_new(demand, members, groups, packed.prices, served, deadline=deadline)
    assignments = tuple(
        _assignment(member.candidate, member.choices[served[id(member)][1]])
        for member in members
        if id(member) in served
    )
    total = Counter(item.profile for assignment in assignments for item in assignment.serves)
    assert total == Counter(dict(demand.wanted)), "the solver's answer is checked"
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
    """Use existing free instances first: as good as before, with the fewest new devices."""
    created = sum(member.choices[amounts].created for member, amounts in served.values())
    if created == _fewest_new(demand, members):
        return served
    disturbed = sum(member.choices[amounts].disturbed for member, amounts in served.values())
    modes = sum(member.mode_changes for member, _ in served.values())
    groups = exact_groups(members)
    program = exact_program(demand, groups, covering, prices, len(served))
    better = improve(program, (len(served), disturbed, modes), deadline, created)
    return served if better is None else assign_choices(groups, better)


def _fewest_new(demand: Demand, members: Sequence[CapableGpu]) -> int:
    """Number of new devices if all free devices of demanded profiles could be used."""
    free = Counter(
        device.profile
        for member in members
        for instance in member.candidate.instances
        for device in instance.devices
        if not device.held
    )
    return sum(max(count - free[profile], 0) for profile, count in demand.wanted)


def _packing(
    demand: Demand, candidates: Sequence[CandidateGpu], packed: Packed, assignments: tuple[PackedGpu, ...]
) -> Packing:
    as_solved = len(assignments) == cost_of(packed.taken, _GPUS)
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


def _assignment(candidate: CandidateGpu, choice: Choice) -> PackedGpu:
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


def check_profiles_exist(demand: Demand, candidates: Sequence[CandidateGpu]) -> None:
    """Raise Unsatisfiable for every profile that no GPU here has."""
    if not candidates:
        raise Unsatisfiable("no GPU of these machines can be used now")
    here = {spec.profile for geometry in {c.geometry for c in candidates} for spec in geometry.profiles}
    problems = [
        Problem("", "", "error", f"no available GPU here has a profile {name}", nearest_hint(name, here))
        for name in (profile.gpu_instance for profile in demand.profiles)
        if name not in here
    ]
    if problems:
        raise Unsatisfiable(problems)


def check_each_alone(demand: Demand, program: IntegerProgram) -> None:
    """Raise Unsatisfiable for every profile of which too few fit, even alone."""
    problems = []
    for at, (profile, count) in enumerate(demand.wanted):
        best = [0] * len(program.sizes)
        for column in program.columns:
            best[column.group] = max(best[column.group], column.served[at])
        capacity = sum(size * each for size, each in zip(program.sizes, best, strict=True))
        if capacity < count:
            message = f"{count} x {profile} demanded, and at most {capacity} fit on the available GPUs"
            problems.append(Problem("", "", "error", message))
    if problems:
        raise Unsatisfiable(problems)


def why_not_together(demand: Demand, program: IntegerProgram, deadline: Deadline) -> Unsatisfiable:
    """Which profile does not fit after those before it, the largest first, are served."""
    order = sorted(
        range(len(demand.wanted)), key=lambda at: (-demand.profiles[at].gpu_slices, str(demand.profiles[at]))
    )
    full: list[int] = []
    for at in order:
        profile, count = demand.wanted[at]
        try:
            found, bound = most_served(program, at, full, deadline)
        except (Undecided, Infeasible):  # infeasible: the number before was a bound, not a solution
            break
        if bound < count:
            beside = " + ".join(f"{demand.counts[other]} x {demand.profiles[other]}" for other in full)
            at_most = f"{found}" if found == bound else f"{bound} (a bound; {found} found)"
            where = f"beside {beside} at most {at_most} fit on the available GPUs"
            return Unsatisfiable(f"{count} x {profile} demanded, and {where}")
        full.append(at)
    return Unsatisfiable(f"{demand} does not fit on the available GPUs, though each profile alone does")


def undecided_error(demand: Demand, time_limit_s: float) -> Unsatisfiable:
    """Neither a solution nor a proof was found in time."""
    return Unsatisfiable(
        f"{demand}: neither a packing nor a proof that there is none was found in {time_limit_s:g} s",
        "give more time with --time-limit",
    )
