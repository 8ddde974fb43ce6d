"""A GPU whose pods were asked to leave in vain: what is free is given once more, what ends to nobody else."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.model.ids import ResourceName, ShareId, share_id
from partage.plan.reconcile.node_plan import Phase
from partage.plan.reconcile.planner import plan_node
from partage.plan.reconcile.transition import listed_shares
from tests.plan.reconcile.test_planner import (
    HALVES,
    HALVES_MPS,
    HOPPER,
    MPS,
    SLICED,
    WHOLE,
    blocked_by_a_lost_gpu,
    desired_of,
    entry,
    observe,
    serving,
    snapshot,
)

SHARED = ResourceName("nvidia.com/gpu.shared")
VAIN = "after a drain of 10 min it still waited for pod default/train"
ROOMY = SLICED.replace("replicas: 2", "replicas: 4")


def test_free_shares_come_back_and_the_gpu_says_why() -> None:
    inventory = observe(HOPPER)
    gpu = inventory.gpus[0].uuid
    held = entry(SHARED, share_id(gpu, 0))
    wanted = desired_of(MPS, inventory)
    drained = plan_node(
        wanted, snapshot(inventory, held, served=serving(desired_of(ROOMY, inventory))), geometry_of
    )
    assert drained.gpus[gpu].phase is Phase.WAITING
    assert [one.id for one in listed_shares(drained.serving, snapshot(inventory, held).held)[SHARED]] == [
        held.id
    ]
    now = snapshot(inventory, held, served=drained.serving, gave_up={gpu: VAIN})
    plan = plan_node(wanted, now, geometry_of)
    assert (plan.gpus[gpu].phase, plan.gpus[gpu].reason) == (Phase.FAILED, VAIN)
    assert len(listed_shares(plan.serving, now.held)[SHARED]) == 4
    assert not any(gpu in one.gpus for one in plan.ready)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["comes", "ends", "time"]), st.integers(0, 9)), max_size=40),
)
def test_behind_a_queue_it_changes_after_one_more_holder_of_each_free_share(
    first: int, happens: list[tuple[str, int]]
) -> None:
    """Nobody gets a share whose holder has ended; with the last one it changes, whoever waits."""
    inventory = observe(HOPPER)
    gpu = inventory.gpus[0].uuid
    wanted, served = desired_of(MPS, inventory), serving(desired_of(ROOMY, inventory))
    held = {share_id(gpu, number) for number in range(first)}
    ended, now_s = set[ShareId](), 0.0
    for what, which in [("time", 0), *happens]:
        now_s += 2
        entries = [entry(SHARED, share) for share in sorted(held)]
        now = replace(
            snapshot(inventory, *entries, served=served, gave_up={gpu: VAIN} if held else {}), now_s=now_s
        )
        plan = plan_node(wanted, now, geometry_of)
        served = dict(plan.serving)
        if not held:
            break
        listed = {one.id for one in listed_shares(plan.serving, now.held)[SHARED]}
        assert held <= listed
        assert not listed & ended, "given again"
        assert plan.gpus[gpu].phase is Phase.FAILED
        free = sorted(listed - held)
        if what == "comes" and free:
            held.add(free[which % len(free)])
        elif what == "ends":
            over = sorted(held)[which % len(held)]
            held.remove(over)
            ended.add(over)
    if not held:
        for _ in range(2):
            now_s += 2
            now = replace(snapshot(inventory, served=served), now_s=now_s)
            served = dict(plan_node(wanted, now, geometry_of).serving)
        assert SHARED not in listed_shares(served, now.held)


def test_who_is_not_evicted_is_said_beside_whom_it_waits_for() -> None:
    inventory = observe(HOPPER)
    gpu = inventory.gpus[0].uuid
    now = snapshot(inventory, entry(SHARED, share_id(gpu, 0)), served=serving(desired_of(ROOMY, inventory)))
    alone = plan_node(desired_of(MPS, inventory), now, geometry_of)
    said = plan_node(desired_of(MPS, inventory), replace(now, spared={gpu: "not evicted: a/b"}), geometry_of)
    assert said.gpus[gpu].reason == f"{alone.gpus[gpu].reason}; not evicted: a/b"
    assert said.gpus[gpu].phase is Phase.WAITING
    settled = plan_node(
        desired_of(ROOMY, inventory), replace(now, spared={gpu: "not evicted: a/b"}), geometry_of
    )
    assert settled.gpus[gpu].reason == "", "it waits for nobody"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (before, after)
        for before, after in itertools.product([WHOLE, SLICED, MPS], [WHOLE, SLICED, MPS, HALVES, HALVES_MPS])
        if before != after
    ],
)
def test_it_says_why_and_nothing_of_it_is_ever_ready(before: str, after: str) -> None:
    inventory = observe(HOPPER)
    gpu = inventory.gpus[0].uuid
    served = serving(desired_of(before, inventory))
    offering = served[gpu].offer[0]
    held = entry(offering.resource, offering.share_ids[0])
    for _ in range(3):
        now = snapshot(inventory, held, served=served, gave_up={gpu: VAIN})
        plan = plan_node(desired_of(after, inventory), now, geometry_of)
        assert (plan.gpus[gpu].phase, plan.gpus[gpu].reason) == (Phase.FAILED, VAIN)
        assert not any(gpu in one.gpus for one in plan.ready)
        assert held.id in {one.id for one in listed_shares(plan.serving, now.held)[offering.resource]}
        served = dict(plan.serving)


def test_what_blocks_a_gpu_is_said_rather_than_who_did_not_leave() -> None:
    inventory = observe(HOPPER)
    gpu = inventory.gpus[0].uuid
    text, now = blocked_by_a_lost_gpu(inventory)
    now = replace(now, served=serving(desired_of(WHOLE, inventory)), gave_up={gpu: VAIN})
    plan = plan_node(desired_of(text, inventory), now, geometry_of).gpus[gpu]
    assert plan.phase is Phase.BLOCKED
    assert VAIN not in plan.reason


def test_a_gpu_that_serves_nothing_yet_waits_for_nobody_who_did_not_leave() -> None:
    inventory = observe(HOPPER)
    gpu = inventory.gpus[0].uuid
    plan = plan_node(desired_of(HALVES, inventory), snapshot(inventory, gave_up={gpu: VAIN}), geometry_of)
    assert plan.gpus[gpu].phase is Phase.READY


def test_a_gpu_that_is_as_the_policy_wants_it_is_not_concerned() -> None:
    inventory = observe(HOPPER)
    gpu = inventory.gpus[0].uuid
    desired = desired_of(SLICED, inventory)
    now = snapshot(inventory, entry(SHARED, share_id(gpu, 0)), served=serving(desired), gave_up={gpu: VAIN})
    assert plan_node(desired, now, geometry_of).gpus[gpu].phase is Phase.SETTLED
