"""Ids withdrawn while their GPU waits to change: an Allocate that was under way is still answered."""

from __future__ import annotations

from partage.model.allocation import ContainerHold
from partage.model.ids import ShareId
from tests.plan.test_turn import EXCLUSIVE, SHARED, SHARED_ONES, WITHDRAW_S, Turning, desired


def _given_back(node: Turning, kept: list[ShareId]) -> None:
    """The kubelet says that only ``kept`` are held any more."""
    holder = ContainerHold("default", "pod", "main", SHARED, tuple(kept))
    node.ledger.observed([holder] if kept else [], node.now_s)


def test_an_id_that_is_given_back_long_after_draining_began_is_answered_for_a_moment() -> None:
    node = Turning(SHARED_ONES)
    node.turn()
    first, second = (row.id for row in node.view.by_resource[SHARED][:2])
    node.ledger.allocated(SHARED, [first, second], node.now_s)
    node.now_s += 1
    _given_back(node, [first, second])
    node.desired = desired(EXCLUSIVE, node.inventory)
    node.turn()
    node.now_s += 100 * WITHDRAW_S
    _given_back(node, [second])
    node.turn()
    assert [row.id for row in node.view.by_resource[SHARED]] == [second]
    assert node.view.late[first] == node.now_s + WITHDRAW_S
    node.now_s += WITHDRAW_S / 2
    node.ledger.allocated(SHARED, [ShareId("somebody-elses")], node.now_s)
    node.turn()
    assert node.view.late[first] == node.now_s + WITHDRAW_S / 2, "later turns neither shorten nor lengthen it"
