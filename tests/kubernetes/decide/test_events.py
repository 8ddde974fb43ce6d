"""What an admin reads of a node: conditions, events, and the annotation of its plan."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.errors import Problem
from partage.kubernetes.decide.events import BURST, NODE_BURST, EventBudget, NodeEvent, PodName, node_events
from partage.model.gpu import Driver, Inventory
from partage.model.health import HealthState, HealthStatus
from partage.model.ids import GpuUuid, ShareId
from partage.plan.cluster.conditions import node_conditions, pending_gpus, plan_annotation
from partage.plan.reconcile.known_node import KnownNode
from partage.plan.reconcile.node_plan import GpuPlan, Phase
from partage.plan.report import (
    MigConfigReport,
    MigConfigState,
    PolicyReason,
    PolicyReport,
    PolicyState,
    Report,
)
from partage.plan.serve.ledger_entry import Certainty, Holder, LedgerEntry
from tests.plan.test_report import FIRST, GPU, ONE

NODE = KnownNode(Inventory(Driver("580.1", "13.0"), ()))
WELL = replace(FIRST, node=NODE)
TWO = replace(ONE, uuid=GpuUuid("GPU-b"), index=1)
ILL = HealthStatus(HealthState.UNHEALTHY, "XID 79")
BAD = (Problem("policy.yaml", "gpus[0]", "error", "no such GPU"),)


def entry(pod: str, certainty: Certainty = Certainty.OBSERVED, share: str = "GPU-a") -> LedgerEntry:
    holders = (Holder("default", pod, "main"),) if pod else ()
    return LedgerEntry(GPU, ShareId(share), certainty, holders, 0.0)


def planned(phase: Phase, *entries: LedgerEntry, reason: str = "") -> Report:
    return replace(WELL, gpus=(replace(ONE, plan=GpuPlan(phase, reason, waiting_for=entries)),))


def told(before: Report | None, now: Report) -> list[tuple[str, str, bool]]:
    return [(one.reason, one.note, one.warning) for one in node_events(before, now)]


def test_a_fault_of_several_gpus_is_one_event_and_so_is_its_end() -> None:
    ill = replace(WELL, gpus=(replace(ONE, health=ILL), replace(TWO, health=ILL)))
    well = replace(WELL, gpus=(ONE, TWO))
    assert told(well, ill) == [("GpuUnhealthy", "GPUs 0-1: XID 79; no container gets it", True)]
    assert told(ill, well) == [("GpuHealthy", "GPUs 0-1: healthy again", False)]
    assert told(ill, ill) == []


def test_a_policy_is_told_when_it_is_refused_and_when_it_is_in_force() -> None:
    first = replace(WELL, policy=PolicyReport(PolicyState.FILE, "p.yaml", digest="a"))
    refused = replace(
        WELL,
        policy=PolicyReport(
            PolicyState.LAST_GOOD, "p.yaml", digest="a", problems=BAD, reason=PolicyReason.WRONG
        ),
    )
    second = replace(WELL, policy=PolicyReport(PolicyState.FILE, "p.yaml", digest="b"))
    [(reason, note, warning)] = told(first, refused)
    assert (reason, warning) == ("PolicyRefused", True)
    assert "p.yaml stays in force" in note
    assert "no such GPU" in note
    assert told(refused, second) == [("PolicyInForce", "the policy in force is p.yaml", False)]
    assert told(first, second) == [("PolicyInForce", "the policy in force is p.yaml", False)]
    assert told(None, first) == []
    assert [one[0] for one in told(None, refused)] == ["PolicyRefused"]


def test_a_policy_that_waits_for_labels_is_no_event() -> None:
    waits = PolicyReport(PolicyState.NONE, "d", problems=BAD, reason=PolicyReason.LABELS_UNKNOWN)
    assert told(None, replace(WELL, policy=waits)) == []


def test_a_layout_of_a_label_that_cannot_be_made_is_told_once() -> None:
    failed = replace(WELL, mig_config=MigConfigReport("all-9g", MigConfigState.FAILED, "no such layout"))
    [(reason, note, _)] = told(WELL, failed)
    assert (reason, note) == (
        "MigLayoutFailed",
        "label nvidia.com/mig.config asks for all-9g: no such layout",
    )
    assert told(failed, failed) == []


def test_a_wait_is_told_on_the_node_and_on_the_pod_that_is_certain() -> None:
    waits = planned(Phase.WAITING, entry("train"), entry("maybe", Certainty.UNCONFIRMED, "GPU-a::1"))
    events = node_events(WELL, waits)
    assert [(one.reason, one.about) for one in events] == [
        ("ChangeWaits", None),
        ("ChangeWaitsForPod", PodName("default", "train")),
    ]
    assert events[0].note == "GPU 0 waits for pods default/maybe, default/train"


def test_one_pod_less_is_no_news_and_one_more_is() -> None:
    both = planned(Phase.WAITING, entry("a"), entry("b", share="GPU-a::1"))
    one = planned(Phase.WAITING, entry("a"))
    assert told(both, one) == []
    assert [reason for reason, _, _ in told(one, both)] == ["ChangeWaits", "ChangeWaitsForPod"]


@pytest.mark.parametrize(
    ("before", "now", "reasons"),
    [
        (planned(Phase.WAITING), planned(Phase.SETTLED), ["ChangeDone"]),
        (planned(Phase.VERIFYING), planned(Phase.SETTLED), ["ChangeDone"]),
        (planned(Phase.UNKNOWN), planned(Phase.SETTLED), []),
        (None, planned(Phase.SETTLED), []),
        (planned(Phase.CHANGING), planned(Phase.FAILED, reason="busy"), ["ChangeFailed"]),
        (planned(Phase.FAILED, reason="busy"), planned(Phase.FAILED, reason="busy"), []),
        (planned(Phase.SETTLED), planned(Phase.BLOCKED, reason="needs a reboot"), ["ChangeImpossible"]),
    ],
)
def test_how_a_change_ends(before: Report | None, now: Report, reasons: list[str]) -> None:
    assert [reason for reason, _, _ in told(before, now)] == reasons


@given(st.lists(st.sampled_from([WELL, replace(WELL, gpus=(replace(ONE, health=ILL),))]), max_size=40))
def test_what_does_not_change_is_never_told_twice(reports: list[Report]) -> None:
    changes = sum(before != now for before, now in itertools.pairwise(reports))
    events = [one for before, now in itertools.pairwise(reports) for one in node_events(before, now)]
    assert len(events) == changes


# --- no storm -------------------------------------------------------------------------------------


def _made(events: list[NodeEvent], seconds: float) -> list[NodeEvent]:
    budget, made = EventBudget(), []
    for number, event in enumerate(events):
        budget, taken = budget.take(event, number * seconds)
        made += [taken] if taken else []
    return made


def test_a_gpu_that_flaps_for_an_hour_makes_few_events() -> None:
    flaps = [NodeEvent("GpuUnhealthy", f"GPU 0: XID {number}", "WithdrawGpu") for number in range(3600)]
    made = _made(flaps, 1.0)
    assert len(made) == BURST + 3600 // 120 - 1
    assert made[BURST].note.endswith("like this not shown)")


def test_a_node_full_of_pods_makes_a_limited_number_of_events() -> None:
    pods = [NodeEvent("W", "waits", "W", about=PodName("a", f"p{number}")) for number in range(1000)]
    assert len(_made(pods, 0.0)) == NODE_BURST


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 30)), max_size=200))
def test_no_budget_is_ever_exceeded(steps: list[tuple[str, float]]) -> None:
    budget, now_s, made = EventBudget(), 0.0, {"a": 0, "b": 0}
    for reason, pause_s in steps:
        now_s += pause_s
        budget, taken = budget.take(NodeEvent(reason, "x", "X"), now_s)
        made[reason] += taken is not None
    assert all(count <= BURST + now_s / 120.0 for count in made.values())


# --- conditions -----------------------------------------------------------------------------------


def conditions(report: Report) -> dict[str, tuple[bool, str, str]]:
    return {one.type: (one.status == "True", one.reason, one.message) for one in node_conditions(report)}


def test_a_node_that_is_well() -> None:
    assert conditions(WELL) == {
        "PartageReady": (True, "Ready", "1 GPU as nvidia.com/gpu"),
        "PartageGpusHealthy": (True, "AllHealthy", "no GPU has a fault"),
        "PartagePolicyInForce": (True, "InForce", "the policy in force is every GPU exclusive"),
    }


def test_nothing_is_said_of_a_node_that_was_not_seen() -> None:
    assert node_conditions(FIRST) == ()
    broken = replace(FIRST, dependencies=replace(FIRST.dependencies, hardware="the helper has died"))
    assert conditions(broken) == {"PartageReady": (False, "HardwareNotAnswering", "the helper has died")}


def test_a_node_whose_kubelet_does_not_ask_is_not_ready() -> None:
    said = "nvidia.com/gpu is not registered: the kubelet answered UNKNOWN: device plugin already connected"
    silent = replace(WELL, dependencies=replace(WELL.dependencies, kubelet=said))
    assert conditions(silent)["PartageReady"] == (False, "NotRegistered", said)


def test_what_needs_a_person_comes_before_what_ends_by_itself() -> None:
    failed = replace(ONE, plan=GpuPlan(Phase.FAILED, "no room"))
    waits = replace(TWO, plan=GpuPlan(Phase.WAITING, waiting_for=(entry("a"),)))
    status, reason, message = conditions(replace(WELL, gpus=(failed, waits)))["PartagePolicyInForce"]
    assert (status, reason) == (False, "ChangeFailed")
    assert "GPU 0 could not be changed: no room, GPU 1 waits for pod default/a" in message


@given(st.integers(0, 3000))
def test_no_message_is_too_long_for_people(length: int) -> None:
    ill = replace(ONE, health=HealthStatus(HealthState.UNHEALTHY, "x" * length))
    assert all(len(one.message) <= 1024 for one in node_conditions(replace(WELL, gpus=(ill,))))


# --- the annotation -------------------------------------------------------------------------------


def test_the_plan_is_there_while_something_is_pending() -> None:
    waits = planned(Phase.WAITING, *(entry(f"p{i}", share=f"GPU-a::{i}") for i in range(10)))
    text = plan_annotation(pending_gpus(waits), "", "2026-01-01T00:00:00Z")
    [gpu] = json.loads(text)["gpus"]
    assert (gpu["index"], gpu["phase"], gpu["since"], gpu["more"]) == (
        0,
        "waiting",
        "2026-01-01T00:00:00Z",
        2,
    )
    assert gpu["pods"][0] == "default/p0"
    later = plan_annotation(pending_gpus(planned(Phase.CHANGING)), text, "2027-01-01T00:00:00Z")
    assert json.loads(later)["gpus"][0]["since"] == "2026-01-01T00:00:00Z"
    assert plan_annotation(pending_gpus(planned(Phase.SETTLED)), later, "2027") == ""


@pytest.mark.parametrize("before", ["", "{", '{"gpus": 3}', '{"gpus":[{"index":0}]}', "\udcff"])
def test_what_someone_else_wrote_there_does_no_harm(before: str) -> None:
    assert '"since":"now"' in plan_annotation(pending_gpus(planned(Phase.WAITING, entry("a"))), before, "now")
