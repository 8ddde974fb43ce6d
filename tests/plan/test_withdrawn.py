"""Ids that nobody may get any more: unhealthy first, left out later, not given on when their holders end."""

from __future__ import annotations

import pytest

from partage.model.ids import ResourceName, ShareId, share_id
from partage.model.share import ContainerHold
from tests.plan.test_turn import EXCLUSIVE, GPU, SHARED, SHARED_ONES, WITHDRAW_S, Turning, desired


def hold(node: Turning, pods: dict[str, list[ShareId]], resource: ResourceName = GPU) -> None:
    """The kubelet names these pods, a moment after they were admitted, and no others."""
    node.now_s += 1
    node.ledger.observed(
        [ContainerHold("default", pod, "main", resource, tuple(ids)) for pod, ids in pods.items()], node.now_s
    )


def listed(node: Turning, resource: ResourceName = GPU) -> dict[ShareId, bool]:
    return {row.id: row.healthy for row in node.view.by_resource[resource]}


def whole_gpus(node: Turning) -> list[ShareId]:
    return [share_id(gpu.uuid) for gpu in node.inventory]


@pytest.fixture
def full() -> Turning:
    """Four exclusive GPUs, each held by a pod; the policy wants the first two shared."""
    node = Turning()
    node.turn()
    node.ledger.allocated(GPU, whole_gpus(node), node.now_s)
    hold(node, {f"pod-{number}": [share] for number, share in enumerate(whole_gpus(node))})
    node.desired = desired(SHARED_ONES, node.inventory)
    node.turn()
    return node


def changing(node: Turning) -> tuple[list[ShareId], list[ShareId]]:
    """The ids of the GPUs that wait to change, and of the others."""
    waits = [share_id(gpu) for gpu, now in node.state.serving.items() if now.draining]
    return waits, [share for share in whole_gpus(node) if share not in waits]


def test_an_id_that_is_given_back_long_after_draining_began_stays_listed_until_the_kubelet_has_seen_it():
    node = Turning(SHARED_ONES)
    node.turn()
    first, second = list(listed(node, SHARED))[:2]
    node.ledger.allocated(SHARED, [first, second], node.now_s)
    hold(node, {"one": [first], "two": [second]}, SHARED)
    node.desired = desired(EXCLUSIVE, node.inventory)
    node.turn()
    node.now_s += 100 * WITHDRAW_S
    node.turn(answered_s=node.now_s)
    assert listed(node, SHARED) == {first: False, second: False}
    hold(node, {"two": [second]}, SHARED)
    node.turn(answered_s=node.now_s)
    assert listed(node, SHARED) == {first: False, second: False}, "an Allocate of it may be under way"
    node.now_s += WITHDRAW_S / 2
    node.turn(answered_s=node.now_s)
    assert first in listed(node, SHARED)
    node.now_s += WITHDRAW_S / 2
    node.turn(answered_s=node.now_s)
    assert listed(node, SHARED) == {second: False}


def test_a_kubelet_that_stands_still_keeps_every_id_in_its_list(full: Turning):
    asked_s, ids, (_, others) = full.now_s, set(listed(full)), changing(full)
    hold(full, {})
    for _ in range(3):
        full.turn(answered_s=asked_s)
        assert set(listed(full)) == ids
        full.now_s += 100 * WITHDRAW_S
    full.turn(answered_s=full.now_s)
    assert set(listed(full)) == set(others)


def test_behind_a_full_queue_what_is_held_is_given_to_nobody_else(full: Turning):
    waits, others = changing(full)
    assert listed(full) == {**dict.fromkeys(waits, False), **dict.fromkeys(others, True)}
    assert not full.view.blocked


def test_while_another_gpu_is_free_held_ones_take_no_share_away(full: Turning):
    waits, others = changing(full)
    hold(full, {share: [share] for share in (*waits, others[0])})
    full.turn()
    assert all(listed(full).values())
    assert full.view.awaited == {GPU: frozenset(waits)}
    full.ledger.allocated(GPU, [others[1]], full.now_s)
    full.turn()
    assert listed(full) == {**dict.fromkeys(waits, False), **dict.fromkeys(others, True)}


def test_what_the_largest_pod_cannot_have_is_not_enough(full: Turning):
    """A pod of two GPUs would take the free one and one that waits."""
    waits, others = changing(full)
    hold(full, {"two": waits, "one": [others[0]]})
    full.turn()
    assert listed(full) == {**dict.fromkeys(waits, False), **dict.fromkeys(others, True)}
    assert full.view.blocked == {GPU: 1}


def test_gpus_that_wait_say_which_free_shares_cannot_be_given_until_then(full: Turning):
    waits, (free, foreign) = changing(full)
    hold(full, {"two": waits})
    full.ledger.allocated(ResourceName("example.com/other"), [foreign], full.now_s)
    done = full.turn()
    assert full.view.blocked == {GPU: 1}
    until_then = "until then 1 free share of nvidia.com/gpu cannot be given"
    said = {share_id(gpu): until_then in plan.reason for gpu, plan in done.plan.gpus.items()}
    assert said == {**dict.fromkeys(waits, True), free: False, foreign: False}
    assert "until then" not in done.plan.gpus[full.inventory.gpus[3].uuid].reason, "it waits for another one"
    full.desired = None  # type: ignore[assignment]
    assert full.turn().plan.gpus == {}


def test_after_a_registration_held_ids_are_healthy_until_their_holders_are_named_again(full: Turning):
    waits, _ = changing(full)
    full.ledger.registering(GPU, full.now_s)
    full.turn()
    assert all(listed(full).values()), "a kubelet that starts fails pods with an unhealthy id"
    full.ledger.observed([ContainerHold("default", "old", "main", GPU, (waits[0],))], full.now_s - 0.1)
    full.turn()
    assert all(listed(full).values()), "the answer is of the kubelet before"
    hold(full, {"pod-0": [waits[0]]})
    full.turn()
    assert [share for share, healthy in listed(full).items() if not healthy] == [waits[0]]


def test_an_init_container_that_is_never_named_counts_once_its_pod_must_be_admitted():
    node = Turning()
    node.turn()
    node.ledger.allocated(GPU, whole_gpus(node), node.now_s)
    node.desired = desired(SHARED_ONES, node.inventory)
    hold(node, {})
    node.turn()
    assert all(listed(node).values()), "the kubelet may still ask for the next container of the pod"
    node.now_s += 5
    hold(node, {})
    node.turn()
    assert listed(node)[changing(node)[0][0]] is False


def test_a_cordoned_gpu_is_given_to_nobody_else_either(full: Turning):
    full.desired = desired(EXCLUSIVE, full.inventory)
    full.turn()
    assert all(listed(full).values())
    gpu = full.inventory.gpus[3]
    full.turn(cordoned=frozenset({gpu.uuid}))
    assert [share for share, healthy in listed(full).items() if not healthy] == [share_id(gpu.uuid)]


def test_a_policy_that_is_taken_back_makes_all_healthy_again(full: Turning):
    full.desired = desired(EXCLUSIVE, full.inventory)
    full.turn()
    assert listed(full) == dict.fromkeys(whole_gpus(full), True)
