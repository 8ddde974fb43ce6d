"""After an amount was refused, the node lists what the scheduler may believe."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.model.ids import MEMORY_RESOURCE, ResourceName, ShareId, device_of
from partage.model.share import DeviceRow
from partage.plan.serve.unit_allocation import (
    FIRST_S,
    LONGEST_S,
    MOST_AMOUNTS,
    SETTLED_S,
    Refusals,
    RefusedAmounts,
    one_device_where_needed,
)
from tests.plan.offers import unit_row


def _refused(*units: int, ignored: bool = False) -> RefusedAmounts:
    return RefusedAmounts(frozenset(units), ignored)


def _node(sizes: list[int], held: list[int]) -> tuple[list[DeviceRow], frozenset[ShareId]]:
    """Cards of these sizes, of each of which the first ids are held."""
    cards = [unit_row(index, units) for index, units in enumerate(sizes)]
    rows = [DeviceRow(id_, healthy=True) for card in cards for id_ in card.share_ids]
    return rows, frozenset(chain(*(card.share_ids[:n] for card, n in zip(cards, held, strict=True))))


def _free(rows: tuple[DeviceRow, ...], held: frozenset[ShareId]) -> dict[str, int]:
    """What the kubelet counts as free, by device."""
    free: dict[str, int] = {}
    for row in rows:
        if row.healthy and row.id not in held:
            free[device_of(row.id)] = free.get(device_of(row.id), 0) + 1
    return free


def test_as_long_as_an_amount_would_be_refused_one_card_is_listed() -> None:
    rows, held = _node([10, 10, 10], [7, 6, 6])
    listed = one_device_where_needed(rows, held, _refused(5))
    assert list(_free(listed, held).values()) == [4]
    assert device_of(next(row.id for row in listed if row.healthy and row.id not in held)) == device_of(
        rows[10].id
    )
    assert [row.id for row in listed] == [row.id for row in rows], "the capacity of the node stays"
    assert all(row.healthy for row in listed if row.id in held), "who holds a unit keeps it"


def test_what_fits_or_what_the_scheduler_does_not_send_changes_nothing() -> None:
    rows, held = _node([10, 10], [7, 5])
    assert one_device_where_needed(rows, held, None) == tuple(rows)
    assert one_device_where_needed(rows, held, _refused(5)) == tuple(rows)
    assert one_device_where_needed(rows, held, _refused(9)) == tuple(rows)
    assert one_device_where_needed(rows, held, _refused(6)) != tuple(rows)


def test_a_kubelet_that_chooses_by_itself_is_left_no_choice() -> None:
    rows, held = _node([10, 10], [7, 5])
    listed = one_device_where_needed(rows, held, _refused(2, ignored=True))
    assert len(_free(listed, held)) == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5), st.integers(1, 20))
def test_what_is_listed_after_a_refusal_fits(cards: list[tuple[int, int]], units: int) -> None:
    sizes, taken = [size for size, _ in cards], [min(pair) for pair in cards]
    rows, held = _node(sizes, taken)
    free = [size - n for size, n in zip(sizes, taken, strict=True)]
    listed = _free(one_device_where_needed(rows, held, _refused(units)), held)
    if sum(listed.values()) >= units:
        assert max(listed.values()) >= units, "the scheduler sends it, and a card has it"
    assert max(listed.values(), default=0) == max(free, default=0), (
        "the largest amount that fits stays possible"
    )


def test_an_amount_that_is_refused_again_although_it_fitted_leaves_no_choice() -> None:
    """Three containers of a pod want 10, 12 and 10 of cards with 20 and 12: the first takes the 12, the last
    is refused, and then the pod has gone and both cards are free. Without an end the next one does the same.
    """
    rows, held = _node([20, 12], [0, 0])
    refusals = Refusals()
    for now_s in (0.0, 1.0, 10.0):  # the API server does not know the list yet
        refusals.noted(MEMORY_RESOURCE, 10, now_s)
        refused = refusals.in_force(now_s)[MEMORY_RESOURCE]
        assert one_device_where_needed(rows, held, refused) == tuple(rows)
    refusals.noted(MEMORY_RESOURCE, 10, 10.0 + SETTLED_S + 1.0)
    refusals.noted(MEMORY_RESOURCE, 10, 10.0 + SETTLED_S + 2.0)
    refused = refusals.in_force(40.0)[MEMORY_RESOURCE]
    assert _free(one_device_where_needed(rows, held, refused), held) == {device_of(rows[0].id): 20}


def test_what_was_refused_for_the_kubelets_choice_is_not_forgotten_by_the_next_refusal() -> None:
    refusals = Refusals()
    refusals.noted(MEMORY_RESOURCE, 5, 0.0, ignored=True)
    refusals.noted(MEMORY_RESOURCE, 5, 1.0)
    assert refusals.in_force(2.0)[MEMORY_RESOURCE].ignored
    refusals.noted(MEMORY_RESOURCE, 5, FIRST_S + 10.0)
    assert refusals.in_force(FIRST_S + 11.0)[MEMORY_RESOURCE].ignored
    later = Refusals()
    later.noted(MEMORY_RESOURCE, 5, 0.0)
    later.noted(MEMORY_RESOURCE, 5, FIRST_S + 1.0, ignored=True)
    assert later.in_force(FIRST_S + 2.0)[MEMORY_RESOURCE].ignored


@pytest.mark.parametrize(
    ("again_s", "ignored", "counts"),
    [(1.0, False, False), (1.0, True, True), (SETTLED_S, False, False), (SETTLED_S + 1.0, False, True)],
)
def test_a_refusal_is_the_kubelets_choice_if_it_says_so_or_comes_after_the_list_is_known(
    again_s: float, ignored: bool, counts: bool
) -> None:
    refusals = Refusals()
    refusals.noted(MEMORY_RESOURCE, 5, 0.0)
    refusals.noted(MEMORY_RESOURCE, 5, again_s, ignored=ignored)
    assert refusals.in_force(again_s)[MEMORY_RESOURCE].ignored is counts


@pytest.mark.parametrize(("again_s", "lasts_s"), [(2 * FIRST_S - 1.0, 2 * FIRST_S), (2 * FIRST_S, FIRST_S)])
def test_a_refusal_counts_longer_only_if_it_comes_soon_after_the_last(again_s: float, lasts_s: float) -> None:
    refusals = Refusals()
    refusals.noted(MEMORY_RESOURCE, 9, 0.0)
    refusals.noted(MEMORY_RESOURCE, 9, again_s)
    assert refusals.due_s(again_s) == again_s + lasts_s
    assert refusals.due_s(again_s + lasts_s) is None, "it has ended"


def test_units_that_cannot_be_used_are_not_free() -> None:
    rows, held = _node([10, 10, 10], [4, 4, 0])
    ill = [replace(row, healthy=device_of(row.id) != device_of(rows[-1].id)) for row in rows]
    assert _free(one_device_where_needed(ill, held, _refused(9)), held) == {device_of(rows[0].id): 6}


OTHER = ResourceName("example.com/pairs")


def test_a_refusal_counts_for_a_while() -> None:
    refusals = Refusals()
    refusals.noted(MEMORY_RESOURCE, 9, 0.0)
    refusals.noted(MEMORY_RESOURCE, 5, 1.0)
    refusals.noted(MEMORY_RESOURCE, 5, 2.0)
    assert refusals.in_force(3.0) == {MEMORY_RESOURCE: RefusedAmounts(frozenset({5, 9}))}
    refusals.noted(OTHER, 1, 100.0, ignored=True)
    assert refusals.in_force(100.0)[OTHER].ignored
    assert refusals.due_s(100.0) == FIRST_S
    assert refusals.in_force(FIRST_S)[MEMORY_RESOURCE].units == {5}
    assert set(refusals.in_force(FIRST_S + 2.0)) == {OTHER}
    assert refusals.due_s(5_000.0) is None


def test_every_amount_that_was_refused_counts() -> None:
    """5 would fit, 9 would not, and the scheduler would send it."""
    rows, held = _node([10, 10], [4, 4])
    assert one_device_where_needed(rows, held, _refused(5)) == tuple(rows)
    assert list(_free(one_device_where_needed(rows, held, _refused(5, 9)), held).values()) == [6]


def test_the_oldest_amount_is_forgotten() -> None:
    refusals = Refusals()
    for units in range(1, 200):
        refusals.noted(MEMORY_RESOURCE, units, float(units))
    assert min(refusals.in_force(200.0)[MEMORY_RESOURCE].units) == 200 - MOST_AMOUNTS


def test_one_that_comes_again_in_the_moment_in_which_it_ends_counts_longer() -> None:
    refusals = Refusals()
    refusals.noted(MEMORY_RESOURCE, 9, 0.0)
    refusals.noted(MEMORY_RESOURCE, 9, FIRST_S)
    assert refusals.due_s(FIRST_S) == FIRST_S + 2 * FIRST_S


def test_one_that_comes_again_counts_longer() -> None:
    refusals, now_s, times = Refusals(), 0.0, []
    for _ in range(20):
        refusals.noted(MEMORY_RESOURCE, 9, now_s)
        due_s = refusals.due_s(now_s)
        assert due_s is not None
        times.append(due_s - now_s)
        now_s = due_s + 1.0
    assert times[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert times[-1] == LONGEST_S
    refusals.noted(MEMORY_RESOURCE, 9, now_s + 2 * LONGEST_S)
    assert refusals.due_s(now_s + 2 * LONGEST_S) == now_s + 2 * LONGEST_S + FIRST_S
