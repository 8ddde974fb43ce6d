"""What a Node says of its GPUs, and with what it is tainted: only where it is asked for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.codec.values import decode
from partage.model.gpu import NoDriver
from partage.model.health import HealthState, HealthStatus
from partage.model.node_labels import NodeTaint
from partage.plan.cluster.conditions import (
    PendingGpu,
    PendingPlan,
    certain_holder,
    faults_of,
    node_taints,
    pending_gpus,
    plan_annotation,
    standing,
)
from partage.plan.reconcile.node_plan import GpuPlan, Phase
from partage.plan.report import DependencyProblems, GpuReport
from partage.plan.serve.ledger_entry import Certainty
from tests.kubernetes.decide.test_events import ILL, WELL, entry
from tests.plan.reconcile.test_planner import observe, snapshot
from tests.plan.test_report import ONE

READY, HEALTHY = NodeTaint.NOT_READY, NodeTaint.GPU_UNHEALTHY
BOTH = frozenset(NodeTaint)
SICK = replace(WELL, gpus=(ONE, replace(ONE, health=ILL)))
SILENT = replace(WELL, dependencies=DependencyProblems(hardware="it hangs"))


@pytest.mark.parametrize(
    ("now", "asked", "taints"),
    [
        (WELL, BOTH, {READY: False, HEALTHY: False}),
        (SICK, BOTH, {READY: False, HEALTHY: True}),
        (SICK, {READY}, {READY: False, HEALTHY: False}),
        (SILENT, BOTH, {READY: True}),
        (SILENT, frozenset(), {READY: False, HEALTHY: False}),
    ],
    ids=["well", "ill", "ill, not asked for", "not ready, and health is not known", "nothing is asked for"],
)
def test_taints(now, asked, taints) -> None:
    assert node_taints(now, asked) == taints


def test_without_a_driver_the_node_is_not_ready() -> None:
    inventory = replace(WELL.node.inventory, driver=NoDriver("driver-missing", "no driver"))
    now = replace(WELL, node=replace(WELL.node, inventory=inventory))
    assert node_taints(now, BOTH) == {READY: True}


def test_while_another_plugin_serves_the_gpus_there_are_none() -> None:
    now = replace(SICK, snapshot=snapshot(observe(), other_plugin="another process"))
    assert node_taints(now, BOTH) == {READY: False, HEALTHY: False}
    alone = replace(SICK, snapshot=snapshot(observe()))
    assert node_taints(alone, BOTH) == {READY: False, HEALTHY: True}


MUTE = HealthStatus(HealthState.UNHEALTHY)


@pytest.mark.parametrize(
    ("gpu", "faults"),
    [
        (ONE, ()),
        (replace(ONE, health=ILL, lost="no answer"), ("XID 79",)),
        (replace(ONE, health=MUTE, lost="no answer"), ("no answer",)),
        (replace(ONE, health=MUTE), ("unhealthy",)),
        (replace(ONE, instances={2: MUTE, 1: ILL}), ("GPU instance 1: XID 79", "GPU instance 2: unhealthy")),
        (replace(ONE, instances={1: HealthStatus(HealthState.SUSPECT, "XID 13")}), ()),
    ],
)
def test_what_is_known_best_is_said_of_a_fault(gpu: GpuReport, faults: tuple[str, ...]) -> None:
    assert faults_of(gpu) == faults


def test_a_gpu_waits_for_pods_or_for_what_its_reason_says() -> None:
    waits = GpuPlan(Phase.WAITING, "its shares are held", waiting_for=(entry("train"),))
    assert standing(waits) == "waits for pod default/train"
    assert standing(replace(waits, waiting_for=())) == "waits: its shares are held"
    assert standing(replace(waits, conflict="they exclude each other")) == "waits: its shares are held"


def test_a_gpu_without_a_plan_is_not_pending() -> None:
    assert pending_gpus(replace(WELL, gpus=(replace(ONE, plan=None),))) == ()


def test_a_gpu_is_pending_unless_it_is_settled_or_unknown() -> None:
    gpus = tuple(replace(ONE, plan=GpuPlan(phase, "")) for phase in Phase)
    found = {row.phase for row in pending_gpus(replace(WELL, gpus=gpus))}
    assert found == set(Phase) - {Phase.SETTLED, Phase.UNKNOWN}


def test_a_gpu_waits_since_it_was_first_told() -> None:
    zero, one = (PendingGpu(index, Phase.WAITING, "") for index in (0, 1))
    first = plan_annotation((zero,), "", "first")
    both = plan_annotation((zero, one), first, "later")
    assert [gpu.since for gpu in decode(PendingPlan, both.encode()).gpus] == ["first", "later"]
    assert plan_annotation((), both, "later") == ""


def test_a_holder_is_certain_while_the_kubelet_names_it() -> None:
    certain = {certainty for certainty in Certainty if certain_holder(entry("train", certainty))}
    assert certain == {Certainty.OBSERVED, Certainty.PROVEN, Certainty.CLAIMED}
    assert certain_holder(entry("")) is None
