"""While another device plugin offers GPUs of the node, nothing of the node is changed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.model.gpu import ComputeMode
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import share_id
from partage.model.mps import DaemonPhase
from partage.plan.reconcile.blocked import BlockKind
from partage.plan.reconcile.node_plan import FailedAttempt, Phase
from partage.plan.reconcile.planner import plan_node
from tests.examples import examples
from tests.plan.reconcile.test_planner import (
    GPU,
    HALVES,
    HALVES_MPS,
    MPS,
    SHORT,
    SLICED,
    WHOLE,
    blocked_by_a_fixed_slice,
    blocked_by_a_lost_gpu,
    changing,
    desired_of,
    entry,
    failed,
    first,
    observe,
    ready_for_a_daemon,
    ready_for_a_layout,
    serving,
    settled,
    snapshot,
    unknown_daemons,
    waiting_for_a_pod,
    waiting_for_a_process,
    with_mps,
    withdrawing,
)

OTHER = "another process serves /dp/nvidia-gpu.sock (nvidia-device-p, pid 12)"
POLICIES = [WHOLE, SLICED, SHORT, MPS, HALVES, HALVES_MPS]


@pytest.mark.parametrize(
    ("case", "phase"),
    [
        (settled, Phase.SETTLED),
        (waiting_for_a_pod, Phase.WAITING),
        (waiting_for_a_process, Phase.WAITING),
        (withdrawing, Phase.WAITING),
        (ready_for_a_layout, Phase.WAITING),
        (ready_for_a_daemon, Phase.WAITING),
        (failed, Phase.WAITING),
        (changing, Phase.CHANGING),
        (blocked_by_a_lost_gpu, Phase.BLOCKED),
        (blocked_by_a_fixed_slice, Phase.BLOCKED),
        (unknown_daemons, Phase.UNKNOWN),
    ],
)
def test_phases(case, phase) -> None:
    inventory = observe()
    text, now = case(inventory)
    desired = desired_of(text, inventory)
    without = first(plan_node(desired, now, geometry_of))
    plan = plan_node(desired, replace(now, other_plugin=OTHER), geometry_of)
    one = first(plan)
    assert (one.phase, plan.ready) == (phase, ())
    assert one.steps == without.steps, "what remains to be done stays the same"
    assert one.offer == without.offer
    if phase is Phase.WAITING:
        assert one.reason == f"{OTHER}; no GPU is changed before that has ended"
        assert one.blocked is not None
        assert one.blocked.kind is BlockKind.OTHER_PLUGIN
        assert (one.waiting_for, one.again_s) == ((), None), "nobody is asked to leave"
    else:
        assert one == without


def test_a_time_slice_and_a_daemon_that_died_wait_too() -> None:
    inventory = observe()
    desired = desired_of(SHORT, inventory)
    now = snapshot(inventory, served=serving(desired))
    assert plan_node(desired, now, geometry_of).ready
    assert not plan_node(desired, replace(now, other_plugin=OTHER), geometry_of).ready
    desired, now = with_mps(inventory)
    (daemon,) = now.observed.daemons or ()
    dead = replace(now, observed=replace(now.observed, daemons=(replace(daemon, phase=DaemonPhase.DEAD),)))
    assert plan_node(desired, dead, geometry_of).ready
    assert not plan_node(desired, replace(dead, other_plugin=OTHER), geometry_of).ready


@given(st.data())
@settings(deadline=None, max_examples=examples(60))
def test_nothing_is_ever_ready_and_the_rest_of_the_plan_is_the_same(data) -> None:
    inventory = observe()
    if data.draw(st.booleans()):
        gpu = replace(inventory.gpus[0], compute_mode=ComputeMode.EXCLUSIVE_PROCESS)
        inventory = replace(inventory, gpus=(gpu, *inventory.gpus[1:]))
    desired = desired_of(data.draw(st.sampled_from(POLICIES)), inventory)
    before = desired_of(data.draw(st.sampled_from(POLICIES)), inventory)
    shares = [entry(GPU, share_id(gpu.uuid)) for gpu in inventory]
    held = data.draw(st.lists(st.sampled_from(shares), unique=True))
    uses = (GpuUse(inventory.gpus[0].uuid, UseKind.PROCESS, "python", 4711),)
    now = snapshot(
        inventory,
        *held,
        uses=data.draw(st.sampled_from([(), uses])),
        served=data.draw(st.sampled_from([{}, serving(before)])),
        attempts=data.draw(st.sampled_from([{}, {inventory.gpus[0].uuid: FailedAttempt("no", 1, 1.0)}])),
    )
    without = plan_node(desired, now, geometry_of)
    plan = plan_node(desired, replace(now, other_plugin=OTHER), geometry_of)
    assert plan.ready == ()
    assert (plan.serving, plan.transactions, plan.settled) == (
        without.serving,
        without.transactions,
        without.settled,
    )
    for uuid, one in plan.gpus.items():
        assert one.offer == without.gpus[uuid].offer
        assert (one.phase is Phase.SETTLED) == (without.gpus[uuid].phase is Phase.SETTLED)
