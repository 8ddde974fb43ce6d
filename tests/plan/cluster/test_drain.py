"""Whom ``change: drain`` asks to leave, and when it is given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.model.ids import ShareId
from partage.model.policy import Policy
from partage.plan.cluster.drain import DrainState, next_drain, pods_to_evict
from partage.plan.cluster.events import PodName
from partage.plan.reconcile.node_plan import GpuPlan, Phase
from partage.plan.report import Report
from partage.plan.serve.ledger_entry import Certainty, Holder, LedgerEntry
from tests.plan.cluster.test_events import TWO, WELL, entry
from tests.plan.test_report_events import GPU, ONE

POLICY = Policy(source="p.yaml")


def waiting(*entries: LedgerEntry, drain_s: int | None = 600, phase: Phase = Phase.WAITING) -> Report:
    plan = GpuPlan(phase, waiting_for=entries)
    gpu = replace(ONE, plan=plan, drain_s=drain_s, held=len(entries))
    return replace(WELL, gpus=(gpu, TWO), policy_in_force=POLICY)


def evicted(report: Report) -> set[str]:
    return {pod.name for pod in pods_to_evict(next_drain(DrainState(), report, 0.0), report)}


AMBIGUOUS = LedgerEntry(
    GPU, ShareId("GPU-a"), Certainty.OBSERVED, (Holder("d", "x", "m"), Holder("d", "y", "m")), 0.0
)


@pytest.mark.parametrize(
    ("report", "names"),
    [
        (waiting(entry("a")), {"a"}),
        (waiting(entry("a", Certainty.PROVEN)), {"a"}),
        (waiting(entry("a", Certainty.UNCONFIRMED)), set()),
        (waiting(entry("a", Certainty.TENTATIVE)), set()),
        (waiting(entry("")), set()),
        (waiting(AMBIGUOUS, entry("z", share="GPU-a::1")), {"z"}),
        (waiting(entry("a"), drain_s=None), set()),
        (waiting(entry("a"), phase=Phase.UNKNOWN), set()),
        (waiting(entry("a"), phase=Phase.BLOCKED), set()),
    ],
)
def test_only_a_pod_that_is_certain_is_asked_to_leave(report: Report, names: set[str]) -> None:
    assert evicted(report) == names


def test_nobody_is_while_holds_contradict_each_other_or_the_kubelet_is_silent() -> None:
    fine = waiting(entry("a"))
    contradiction = GpuPlan(Phase.WAITING, waiting_for=(entry("a"),), conflict="twice")
    conflict = replace(fine.gpus[0], plan=contradiction)
    assert evicted(replace(fine, gpus=(conflict,))) == set()
    assert evicted(replace(fine, dependencies=replace(fine.dependencies, pod_resources="busy"))) == set()


def test_a_drain_ends_at_its_deadline_and_begins_again_with_another_policy() -> None:
    report = waiting(entry("a"))
    gpu = ONE.uuid
    began = next_drain(DrainState(), report, 100.0)
    assert (began.began_s, began.due_s) == ({gpu: 100.0}, 700.0)
    assert next_drain(began, report, 699.0).began_s == {gpu: 100.0}
    over = next_drain(began, report, 700.0)
    assert (over.began_s, over.due_s) == ({}, None)
    assert over.gave_up[gpu].startswith("after a drain of 10 min it still waited for pod default/a;")
    offers_again = waiting(entry("a"), phase=Phase.FAILED)
    assert next_drain(over, offers_again, 9e9).gave_up == over.gave_up
    edited = replace(report, policy_in_force=replace(POLICY, source="q.yaml"))
    assert next_drain(over, edited, 800.0).began_s == {gpu: 800.0}
    assert next_drain(over, waiting(), 800.0).gave_up == {}, "nothing is held any more"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=30))
def test_no_gpu_is_drained_for_longer_than_its_deadline(steps: list[tuple[bool, int]]) -> None:
    state, now_s = DrainState(), 0.0
    for waits, pause_s in steps:
        now_s += pause_s
        state = next_drain(state, waiting(entry("a")) if waits else waiting(), now_s)
        assert all(now_s - since_s < 600 for since_s in state.began_s.values())
        assert not state.began_s.keys() & state.gave_up.keys()
        assert waits or not (state.began_s or state.gave_up)
    assert PodName("a", "b") not in pods_to_evict(state, waiting(entry("a")))
