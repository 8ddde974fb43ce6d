"""The log says what changed, and nothing where nothing did."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.errors import Problem
from partage.model.gpu_use import LeftProcess
from partage.model.health import HealthState, HealthStatus
from partage.model.ids import ContainerId, GpuUuid, PodUid, ResourceName, ShareId
from partage.model.mps import DaemonPhase, DaemonState
from partage.model.strategy import Strategy
from partage.plan.reconcile.known_node import UNSEEN
from partage.plan.reconcile.node_plan import GpuPlan, Phase
from partage.plan.report import (
    DependencyProblems,
    GpuReport,
    MigConfigReport,
    MigConfigState,
    PolicyReason,
    PolicyReport,
    PolicyState,
    Report,
    ReportTime,
    ResourceReport,
    diff_reports,
)
from partage.plan.serve.ledger_entry import Certainty, Holder, LedgerEntry

GPU = ResourceName("nvidia.com/gpu")
ONE = GpuReport(
    uuid=GpuUuid("GPU-a"),
    index=0,
    product="A100",
    health=HealthStatus(),
    instances={},
    lost="",
    strategy=Strategy.EXCLUSIVE,
    wanted=Strategy.EXCLUSIVE,
    plan=GpuPlan(Phase.SETTLED),
    offer=(),
    held=0,
)
FIRST = Report(
    made=ReportTime(at_s=0.0, clock_s=0.0, number=1, took_s=0.0),
    node=UNSEEN,
    offer={},
    gpus=(ONE,),
    resources=(ResourceReport(GPU, 1, 1, 0),),
    entries=(),
    policy=PolicyReport(PolicyState.BUILT_IN),
    dependencies=DependencyProblems(),
)


def events(before: Report | None, now: Report) -> list[tuple[str, bool]]:
    return [(one.event, one.warning) for one in diff_reports(before, now)]


def test_the_first_report_tells_what_is_offered() -> None:
    assert events(None, FIRST) == [("shares listed", False)]


def test_a_report_that_says_the_same_is_no_event() -> None:
    assert events(FIRST, replace(FIRST, made=ReportTime(5.0, 5.0, 2, 0.0))) == []


def test_a_fault_is_grave_and_a_recovery_is_not() -> None:
    ill = replace(FIRST, gpus=(replace(ONE, health=HealthStatus(HealthState.UNHEALTHY, "XID 79")),))
    assert events(FIRST, ill) == [("gpu health changed", True)]
    assert events(ill, FIRST) == [("gpu health changed", False)]
    [fault], [recovery] = diff_reports(FIRST, ill), diff_reports(ill, FIRST)
    assert (fault.facts["reason"], recovery.facts["reason"]) == ("XID 79", None)


def test_a_gpu_that_waits_names_the_pods_once() -> None:
    entry = LedgerEntry(
        GPU, ShareId("GPU-a"), Certainty.OBSERVED, (Holder("default", "trainer", "main"),), 0.0
    )
    waits = replace(FIRST, gpus=(replace(ONE, plan=GpuPlan(Phase.WAITING, waiting_for=(entry,)), held=1),))
    [one] = diff_reports(FIRST, waits)
    assert one.event == "gpu waits"
    assert one.facts["for"] == ["default/trainer"]
    assert events(replace(FIRST, gpus=(replace(ONE, plan=None),)), waits) == [("gpu waits", False)]
    nobody = GpuPlan(Phase.WAITING, waiting_for=(replace(entry, holders=()),))
    [one] = diff_reports(FIRST, replace(FIRST, gpus=(replace(ONE, plan=nobody),)))
    assert one.facts == {"gpu": "GPU-a", "index": 0, "for": None, "held": 1}
    assert events(waits, replace(waits, made=ReportTime(5.0, 5.0, 3, 0.0))) == []


def test_a_gpu_that_waits_for_nobody_is_no_news() -> None:
    settles = replace(FIRST, gpus=(replace(ONE, plan=GpuPlan(Phase.WITHDRAWING)),))
    assert events(FIRST, settles) == []


def test_what_befalls_gpus_alike_is_one_event_that_names_them() -> None:
    gpus = tuple(replace(ONE, uuid=f"GPU-{index}", index=index) for index in range(3))
    silent = HealthStatus(HealthState.SUSPECT, "the helper is away")
    *two, last = (replace(gpu, health=silent) for gpu in gpus)
    now = replace(FIRST, gpus=(*two, replace(last, health=HealthStatus(HealthState.UNHEALTHY, "XID 79"))))
    alike, other = diff_reports(replace(FIRST, gpus=gpus), now)
    assert (alike.facts["gpus"], alike.facts["reason"], alike.warning) == (
        [0, 1],
        "the helper is away",
        False,
    )
    assert (other.facts["gpu"], other.facts["index"], other.warning) == ("GPU-2", 2, True)


def test_a_fault_of_one_instance_names_it() -> None:
    ill = replace(FIRST, gpus=(replace(ONE, instances={3: HealthStatus(HealthState.UNHEALTHY, "XID 94")}),))
    [one] = diff_reports(FIRST, ill)
    assert (one.event, one.facts["gi"], one.warning) == ("gpu instance health changed", 3, True)
    assert events(ill, FIRST) == [("gpu instance health changed", False)]


def test_a_change_of_strategy_is_told_with_both() -> None:
    now = replace(FIRST, gpus=(replace(ONE, strategy=Strategy.MPS),))
    [one] = diff_reports(FIRST, now)
    assert (one.event, one.facts["from"], one.facts["to"]) == ("gpu changed", "exclusive", "mps")


def test_shares_in_conflict_are_told_once() -> None:
    def conflict(text: str) -> Report:
        return replace(FIRST, gpus=(replace(ONE, plan=GpuPlan(Phase.WAITING, conflict=text)),))

    unplanned = replace(FIRST, gpus=(replace(ONE, plan=None),))
    for before in (FIRST, unplanned):
        [one] = diff_reports(before, conflict("two ways at once"))
        assert (one.event, one.facts["reason"], one.warning) == (
            "shares in conflict",
            "two ways at once",
            True,
        )
    assert events(conflict("two ways at once"), conflict("two ways at once")) == []
    assert events(conflict("two ways at once"), conflict("")) == []
    assert events(unplanned, FIRST) == []


def test_a_gpu_that_goes_on_waiting_is_no_news_when_it_waits_for_nobody_any_more() -> None:
    entry = LedgerEntry(GPU, ShareId("GPU-a"), Certainty.TENTATIVE, (), 0.0)
    waits, free = (
        replace(FIRST, gpus=(replace(ONE, plan=GpuPlan(Phase.WAITING, waiting_for=found)),))
        for found in ((entry,), ())
    )
    assert events(waits, free) == []


@pytest.mark.parametrize(
    ("plan", "waits"),
    [
        (None, False),
        (GpuPlan(Phase.SETTLED), False),
        (GpuPlan(Phase.WAITING), True),
        (GpuPlan(Phase.WITHDRAWING), True),
    ],
)
def test_a_gpu_waits_for_holders_or_for_the_kubelet(plan: GpuPlan | None, waits: bool) -> None:
    assert replace(ONE, plan=plan).waits is waits


PROBLEM = Problem("gpus[0]", "", "error", "no GPU 8")
WRONG = PolicyReport(PolicyState.LAST_GOOD, "p.yaml", problems=(PROBLEM,), reason=PolicyReason.DOES_NOT_FIT)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (PolicyReport(PolicyState.BUILT_IN), "the policy in force is every GPU exclusive"),
        (PolicyReport(PolicyState.FILE, "p.yaml"), "the policy in force is p.yaml"),
        (
            PolicyReport(PolicyState.FILE, "policies", config="training", chosen_by="default"),
            "the policy in force is training, by default",
        ),
        (WRONG, f"p.yaml stays in force: {PROBLEM}"),
        (replace(WRONG, problems=(PROBLEM,) * 3), f"p.yaml stays in force: {PROBLEM} (and 2 more)"),
        (replace(WRONG, problems=()), "p.yaml stays in force: does-not-fit"),
        (replace(WRONG, state=PolicyState.NONE), f"no policy is in force: {PROBLEM}"),
        (
            replace(WRONG, reason=PolicyReason.ROLLOUT_WAITS),
            "the policy of before stays in force for now: no GPU 8",
        ),
    ],
)
def test_one_sentence_says_which_policy_is_in_force_and_why(policy: PolicyReport, said: str) -> None:
    assert policy.message == said


def test_the_layout_of_a_label_is_told_when_it_stands_otherwise() -> None:
    def said(*states: MigConfigState, reason: str = "", name: str = "all-balanced") -> list[object]:
        first, then = (replace(FIRST, mig_config=MigConfigReport(name, state, reason)) for state in states)
        return [(one.facts["state"], one.facts["reason"], one.warning) for one in diff_reports(first, then)]

    pending, failed = MigConfigState.PENDING, MigConfigState.FAILED
    assert said(pending, pending) == []
    assert said(pending, failed, reason="it is held") == [(failed, "it is held", True)]
    assert said(failed, pending) == [(pending, None, False)]
    now = replace(FIRST, mig_config=MigConfigReport("all-balanced", pending))
    assert ("mig layout of the label", False) in events(None, now)
    other = replace(FIRST, mig_config=MigConfigReport("all-1g.10gb", pending))
    assert events(FIRST, now) == events(now, other) == [("mig layout of the label", False)]
    assert events(now, FIRST) == []


def test_shares_are_listed_anew_when_there_are_others_or_others_are_healthy() -> None:
    for resource in (ResourceReport(GPU, 2, 1, 0), ResourceReport(GPU, 1, 0, 0)):
        assert events(FIRST, replace(FIRST, resources=(resource,))) == [("shares listed", False)]


def test_processes_that_are_left_of_a_hold_are_told_once() -> None:
    left = LeftProcess(PodUid("uid"), ContainerId("3f" * 32), 4711)
    held = LedgerEntry(GPU, ShareId("GPU-a"), Certainty.OBSERVED, (), 0.0)
    running = replace(FIRST, entries=(held,))
    ending = replace(FIRST, entries=(replace(held, left=(left,)),))
    assert events(FIRST, running) == []
    assert events(running, ending) == [("processes left", True)]
    assert events(ending, replace(ending, made=ReportTime(5.0, 5.0, 2, 0.0))) == []


@pytest.mark.parametrize(
    ("gpu", "settled"),
    [
        (ONE, True),
        (replace(ONE, plan=None), False),
        (replace(ONE, plan=GpuPlan(Phase.WAITING)), False),
        (replace(ONE, health=HealthStatus(HealthState.SUSPECT)), False),
        (replace(ONE, instances={1: HealthStatus(HealthState.SUSPECT)}), False),
        (replace(ONE, lost="it does not answer"), False),
        (replace(ONE, daemons=(DaemonState(ONE.uuid, ONE.uuid, DaemonPhase.SERVING, None),)), False),
    ],
)
def test_a_gpu_is_settled_when_nothing_of_it_is_to_change(gpu: GpuReport, settled: bool) -> None:
    assert replace(FIRST, gpus=(gpu,)).is_settled is settled


@pytest.mark.parametrize(
    "change",
    [
        {"entries": (LedgerEntry(GPU, ShareId("GPU-a"), Certainty.TENTATIVE, (), 0.0),)},
        {"dependencies": DependencyProblems(kubelet="it does not answer")},
        {"doubts": {ONE.uuid: "who may have changed its limits"}},
    ],
)
def test_a_report_is_settled_when_nothing_in_it_is_known_for_a_time_only(change: dict[str, object]) -> None:
    assert FIRST.is_settled
    assert not replace(FIRST, **change).is_settled
