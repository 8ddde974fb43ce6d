"""Why a demand cannot be served: which profiles, and how many of them are possible."""

from __future__ import annotations

from collections.abc import Sequence

from partage.errors import Problem, Unsatisfiable
from partage.packing.decide.candidates import CandidateGpu
from partage.packing.decide.demand import Demand, nearest_hint
from partage.packing.decide.integer_program import (
    Deadline,
    Infeasible,
    IntegerProgram,
    Undecided,
    most_served,
)


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
