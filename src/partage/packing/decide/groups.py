"""Groups of GPUs that can do the same for a demand, and the integer programs over these groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from partage.packing.decide.candidates import CandidateGpu, State
from partage.packing.decide.choices import ChoiceFinder, Choices, Served
from partage.packing.decide.demand import Demand
from partage.packing.decide.integer_program import Column, IntegerProgram, Prices
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
