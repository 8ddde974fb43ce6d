"""Integer programs over choices: how many GPUs of each group take which choice. Solved by HiGHS through
scipy.

scipy is an extra: nothing here imports it before a program is solved.

The number of GPUs is mostly found by prices instead of search. The linear relaxation gives every
demanded profile a price at which hardly any GPU is worth more than one; the price of the demand is then
a bound that plain arithmetic proves. The integer part of the relaxed solution, completed by a small
program, usually reaches that bound. Otherwise a choice that wastes more than the distance between a
target and the bound is in no solution that reaches the target, and a program over the other choices
finds a solution or excludes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from operator import mul
from typing import Any

from msgspec.structs import replace

from partage.errors import missing_library
from partage.values import Frozen

_OPTIMAL, _INFEASIBLE = 0, 2
_SLACK = 1e-6
"""Tolerance for the solver's bounds, which should be whole numbers."""
_DENOMINATOR = 2520
"""Prices are rounded to fractions with at most this denominator: 1/1 to 1/10 are among them."""
_TARGETS = 2
"""How many numbers of GPUs are tried by price before the whole program is searched."""


class Column(Frozen):
    """One choice of one group. served: of each demanded profile. costs: for each objective; the first one
    is 1 GPU.
    """

    group: int
    served: tuple[int, ...]
    costs: tuple[int, ...]


Taken = tuple[tuple[Column, int], ...]
"""Choices, and how many GPUs take each."""


class IntegerProgram(Frozen):
    """sizes: GPUs in each group. demand: of each profile. exact: exactly the demand must be served."""

    sizes: tuple[int, ...]
    columns: tuple[Column, ...]
    demand: tuple[int, ...]
    exact: bool = False


class Prices(Frozen):
    """The price of a device of each demanded profile, and a bound that can be checked by arithmetic.

    whole: the price of one GPU (prices are whole numbers). excess: by how much the best choice of each
    group is worth more than that. n GPUs are worth at most n wholes plus the excess of the available GPUs,
    so a packing needs at least ``floor / whole`` GPUs, where floor is the price of the demand minus all
    excess. That holds for any prices; the solver finds good ones.
    """

    prices: tuple[int, ...]
    whole: int
    excess: tuple[int, ...]
    floor: int

    @property
    def bound(self) -> Fraction:
        """No packing has fewer GPUs."""
        return Fraction(self.floor, self.whole)

    @property
    def fractions(self) -> tuple[Fraction, ...]:
        """The prices in GPUs."""
        return tuple(Fraction(price, self.whole) for price in self.prices)

    def possible(self, group: int, served: Sequence[int], gpus: int) -> bool:
        """Whether a GPU of that group may serve this in a packing with so few GPUs, judged by what it
        wastes.
        """
        least = self.floor + self.whole + self.excess[group] - _worth(served, self.prices)
        return least <= gpus * self.whole


class _Relaxed(Frozen):
    """A solution of the linear relaxation. least: its objective. duals: cost of one more of each profile.

    start: its integer part, which usually lacks not much more than one GPU for each profile.
    """

    least: float
    duals: tuple[float, ...]
    start: Taken


class Packed(Frozen):
    """A solution. taken: choices, and how many GPUs take them. bounds: for each objective the proven minimum,
    given the values of the objectives before it. prices: the proof for the first one, if they reach it.
    """

    taken: Taken
    bounds: tuple[int, ...]
    prices: Prices


class _Solved(Frozen):
    taken: Taken
    bound: int


class Infeasible(Exception):
    """There is no solution; that is proven."""


class Undecided(Exception):
    """Time ran out before a solution or a proof was found."""


class Deadline:
    """Time that several programs share. clock: returns seconds."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def left_s(self, part: float = 1.0) -> float:
        """That part of the remaining time; never 0, which means no limit for the solver."""
        return max((self._end - self._clock()) * part, 0.01)


def need_solver() -> None:
    """Raise Unsatisfiable with the command to install scipy if it is missing."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError as error:
        raise missing_library("--demand", "scipy", "scipy") from error


def solve(program: IntegerProgram, objectives: int, deadline: Deadline) -> Packed:
    """The fewest GPUs; among those solutions the least of the second objective, and so on.

    The bounds show what could not be proven in time. Raises Infeasible or Undecided.
    """
    relaxed = _relaxed(program, 0, (), deadline.left_s(0.4))
    prices = find_prices(program, relaxed.duals)
    fewest, taken = _fewest(program, prices, relaxed, deadline)
    gpus = cost_of(taken, 0)
    bounds, ceilings = [fewest], [gpus]
    narrow = _within(program, prices, gpus)
    for _ in range(1, objectives):
        best = _improved(narrow, ceilings, deadline, taken)
        taken = best.taken
        bounds.append(best.bound)
        ceilings.append(cost_of(taken, len(ceilings)))
    return Packed(taken, tuple(bounds), prices)


def improve(
    program: IntegerProgram, ceilings: Sequence[int], deadline: Deadline, at_hand: int
) -> Taken | None:
    """A solution with less than ``at_hand`` of the objective after those with a ceiling; None if none was
    found in time.
    """
    found = _improved(program, ceilings, deadline, None)
    return found.taken if found.taken and cost_of(found.taken, len(ceilings)) < at_hand else None


def most_served(
    program: IntegerProgram, wanted: int, full: Sequence[int], deadline: Deadline
) -> tuple[int, int]:
    """How many of profile ``wanted`` can be served while those of ``full`` are served completely.

    The best number found and the proven maximum, neither above the demand. Raises Infeasible or Undecided.
    """
    demand = tuple(count if p in full else 0 for p, count in enumerate(program.demand))
    costs = [-column.served[wanted] for column in program.columns]
    solved = _solve(replace(program, demand=demand), costs, (), deadline.left_s(0.5))
    found = sum(column.served[wanted] * count for column, count in solved.taken)
    return min(found, program.demand[wanted]), min(-solved.bound, program.demand[wanted])


def find_prices(program: IntegerProgram, duals: Sequence[float]) -> Prices:
    """The prices of the relaxation, rounded to simple fractions, and what they prove."""
    fractions = [Fraction(max(dual, 0.0)).limit_denominator(_DENOMINATOR) for dual in duals]
    whole = math.lcm(*(price.denominator for price in fractions))
    prices = tuple(int(price * whole) for price in fractions)
    excess = [0] * len(program.sizes)
    for column in program.columns:
        excess[column.group] = max(excess[column.group], _worth(column.served, prices) - whole)
    spared = sum(n * more for n, more in zip(program.sizes, excess, strict=True))
    return Prices(prices, whole, tuple(excess), _worth(program.demand, prices) - spared)


def cost_of(taken: Taken, objective: int) -> int:
    """The cost of a solution for one objective."""
    return sum(column.costs[objective] * count for column, count in taken)


def _fewest(
    program: IntegerProgram, prices: Prices, relaxed: _Relaxed, deadline: Deadline
) -> tuple[int, Taken]:
    """A bound on the number of GPUs, and a solution that reaches it if one was found in time."""
    low = max(math.ceil(prices.bound), 1)
    rounded = _rounded(program, 0, (), relaxed.start, deadline.left_s(0.2))
    if rounded is not None and cost_of(rounded, 0) == low:
        return low, rounded
    try:
        for target in range(low, low + _TARGETS):
            if rounded is not None and cost_of(rounded, 0) == target:
                return target, rounded
            try:
                narrow = _within(program, prices, target)
                return target, _minimised(narrow, 1, [target], deadline.left_s(0.4)).taken
            except Infeasible:
                low = target + 1
        solved = _minimised(program, 0, (), deadline.left_s(0.4))
    except Undecided:
        if rounded is None:
            raise
        return low, rounded
    return max(low, solved.bound), solved.taken


def _improved(
    program: IntegerProgram, ceilings: Sequence[int], deadline: Deadline, at_hand: Taken | None
) -> _Solved:
    """The least of the next objective, by rounding if that reaches the bound, else by search."""
    objective = len(ceilings)
    if at_hand is not None and not cost_of(at_hand, objective):
        return _Solved(at_hand, 0)
    found, bound = [at_hand] if at_hand else [], 0
    try:
        relaxed = _relaxed(program, objective, ceilings, deadline.left_s(0.3))
        bound = max(math.ceil(relaxed.least - _SLACK), 0)
        rounded = _rounded(program, objective, ceilings, relaxed.start, deadline.left_s(0.2))
        if rounded is not None:
            found.append(rounded)
        if rounded is None or cost_of(rounded, objective) > bound:
            solved = _minimised(program, objective, ceilings, deadline.left_s(0.7))
            bound = max(bound, solved.bound)
            found.append(solved.taken)
    except (Undecided, Infeasible):  # infeasible because of rounding only: the caller has a solution
        pass
    best = min(found, key=lambda taken: cost_of(taken, objective), default=())
    return _Solved(best, min(bound, cost_of(best, objective)))


def _rounded(
    program: IntegerProgram, objective: int, ceilings: Sequence[int], start: Taken, seconds: float
) -> Taken | None:
    """The integer part of a relaxed solution, completed by a small program; None if that is not possible."""
    free, missing = list(program.sizes), list(program.demand)
    for column, count in start:
        free[column.group] -= count
        missing = [max(n - count * k, 0) for n, k in zip(missing, column.served, strict=True)]
    if not any(missing):
        return start
    rest = replace(program, sizes=tuple(free), demand=tuple(missing))
    left = [ceiling - cost_of(start, at) for at, ceiling in enumerate(ceilings)]
    try:
        return start + _minimised(rest, objective, left, seconds).taken
    except (Infeasible, Undecided):
        return None


def _within(program: IntegerProgram, prices: Prices, gpus: int) -> IntegerProgram:
    """The program without choices that are in no solution with so few GPUs."""
    possible = (c for c in program.columns if prices.possible(c.group, c.served, gpus))
    return replace(program, columns=tuple(possible))


def _minimised(program: IntegerProgram, objective: int, ceilings: Sequence[int], seconds: float) -> _Solved:
    """The least of an objective, with ceilings for those before it. Raises Infeasible or Undecided."""
    fits = _under(program, ceilings)
    return _solve(fits, [column.costs[objective] for column in fits.columns], ceilings, seconds)


def _under(program: IntegerProgram, ceilings: Sequence[int]) -> IntegerProgram:
    """The program without choices that have no GPU, or that exceed a ceiling alone."""
    fit = (
        column
        for column in program.columns
        if program.sizes[column.group]
        and all(cost <= ceiling for cost, ceiling in zip(column.costs, ceilings, strict=False))
    )
    return replace(program, columns=tuple(fit))


def _worth(served: Sequence[int], prices: Sequence[int]) -> int:
    return sum(map(mul, served, prices))


# --- scipy -------------------------------------------------------------------------------------


def _relaxed(program: IntegerProgram, objective: int, ceilings: Sequence[int], seconds: float) -> _Relaxed:
    """Raises Infeasible or Undecided."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, vstack

    fits = _under(program, ceilings)
    if not fits.columns:
        raise Infeasible
    groups, profiles = _matrices(fits)
    rows = [csr_array([[column.costs[at] for column in fits.columns]]) for at in range(len(ceilings))]
    result = linprog(
        [column.costs[objective] for column in fits.columns],
        A_ub=vstack([-profiles, groups, *rows]),
        b_ub=[*(-count for count in fits.demand), *fits.sizes, *ceilings],
        A_eq=profiles if fits.exact else None,
        b_eq=fits.demand if fits.exact else None,
        method="highs",
        options={"time_limit": seconds},
    )
    if result.status == _INFEASIBLE:
        raise Infeasible
    if result.status != _OPTIMAL:
        raise Undecided
    duals = tuple(-float(marginal) for marginal in result.ineqlin.marginals[: len(fits.demand)])
    counts = (math.floor(float(share) + _SLACK) for share in result.x)
    start = tuple((column, count) for column, count in zip(fits.columns, counts, strict=True) if count > 0)
    return _Relaxed(float(result.fun), duals, start)


def _solve(program: IntegerProgram, costs: Sequence[int], ceilings: Sequence[int], seconds: float) -> _Solved:
    """Raises Infeasible or Undecided."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    if not program.columns:
        raise Infeasible
    groups, profiles = _matrices(program)
    constraints = [
        LinearConstraint(groups, ub=program.sizes),
        LinearConstraint(profiles, program.demand, program.demand if program.exact else math.inf),
        *(
            LinearConstraint([[c.costs[at] for c in program.columns]], 0, ceiling)
            for at, ceiling in enumerate(ceilings)
        ),
    ]
    # Without presolve: it can take 20 s for a program that search solves in 0.2 s, and it ignores the time
    # limit (HiGHS 1.12). Prices and relaxation already give what it would find.
    result = milp(
        costs,
        integrality=[1] * len(costs),
        bounds=Bounds(0, [program.sizes[column.group] for column in program.columns]),
        constraints=constraints,
        options={"time_limit": seconds, "mip_rel_gap": 0.0, "presolve": False},
    )
    if result.status == _INFEASIBLE:
        raise Infeasible
    if result.x is None:
        raise Undecided
    counts = [round(float(x)) for x in result.x]
    value = sum(cost * count for cost, count in zip(costs, counts, strict=True))
    taken = tuple((column, count) for column, count in zip(program.columns, counts, strict=True) if count)
    return _Solved(taken, value if result.status == _OPTIMAL else _whole_bound(program, costs, result))


def _whole_bound(program: IntegerProgram, costs: Sequence[int], result: Any) -> int:  # noqa: ANN401  untyped
    """The bound that the solver had proven when time ran out, as a whole number."""
    dual = result.mip_dual_bound
    if dual is not None and math.isfinite(dual):
        return math.ceil(float(dual) - _SLACK)
    return sum(min(cost, 0) * program.sizes[c.group] for cost, c in zip(costs, program.columns, strict=True))


def _matrices(program: IntegerProgram) -> tuple[Any, Any]:
    """GPUs of each group that the columns take, and devices of each profile that they serve; both sparse."""
    from scipy.sparse import csr_array

    width = len(program.columns)
    rows = [column.group for column in program.columns]
    groups = csr_array(([1.0] * width, (rows, range(width))), shape=(len(program.sizes), width))
    cells = [
        (float(amount), profile, at)
        for at, column in enumerate(program.columns)
        for profile, amount in enumerate(column.served)
        if amount
    ]
    values, down, across = zip(*cells, strict=True) if cells else ((), (), ())
    return groups, csr_array((values, (down, across)), shape=(len(program.demand), width))
