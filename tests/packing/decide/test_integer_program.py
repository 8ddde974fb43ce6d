"""Integer programs over choices, by themselves."""

from fractions import Fraction

import pytest

from partage.packing.decide.integer_program import (
    Column,
    Deadline,
    Infeasible,
    IntegerProgram,
    cost_of,
    most_served,
    solve,
)

ANY_TIME = Deadline(lambda: 0.0, 60.0)
PAIRS = IntegerProgram(
    (3,), (Column(0, (2, 0), (1, 0)), Column(0, (0, 2), (1, 0)), Column(0, (1, 1), (1, 1))), (3, 3)
)
"""GPUs that hold two things, of which there are three and three; two different ones disturb something."""


def test_the_first_objective_is_least_before_the_second_counts():
    packed = solve(PAIRS, 2, ANY_TIME)
    assert packed.bounds == (3, 1)
    assert (cost_of(packed.taken, 0), cost_of(packed.taken, 1)) == (3, 1)


def test_a_price_bound_below_the_truth_is_lifted_by_search():
    """Three GPUs take two of three kinds each, a third of one piece: by price 1.5 GPUs, in truth 2."""
    columns = tuple(Column(at, served, (1, 0)) for at, served in enumerate([(1, 1, 0), (0, 1, 1), (1, 0, 1)]))
    packed = solve(IntegerProgram((1, 1, 1), columns, (1, 1, 1)), 1, ANY_TIME)
    assert packed.bounds == (2,)
    assert packed.prices.bound <= 2


def test_a_demand_beyond_everything_is_infeasible():
    with pytest.raises(Infeasible):
        solve(IntegerProgram((1,), PAIRS.columns, (3, 3)), 1, ANY_TIME)


def test_scarce_gpus_are_worth_more_than_one_and_that_is_taken_off_the_bound():
    """One large GPU that holds four, small ones that hold one: ten devices need seven."""
    program = IntegerProgram((1, 9), (Column(0, (4,), (1, 0)), Column(1, (1,), (1, 0))), (10,))
    prices = solve(program, 1, ANY_TIME).prices
    assert prices.fractions == (Fraction(1),)
    assert prices.bound == Fraction(7)
    assert prices.excess == (3 * prices.whole, 0)


def test_the_most_of_one_beside_all_of_another():
    assert most_served(IntegerProgram((3,), PAIRS.columns, (4, 9)), 1, [0], ANY_TIME) == (2, 2)
    assert most_served(IntegerProgram((3,), PAIRS.columns, (4, 1)), 1, [0], ANY_TIME) == (1, 1)
