"""The log says what changed, and nothing where nothing did."""

from __future__ import annotations

from dataclasses import replace

from partage.agent.report import GpuReport, Neighbours, PolicyReport, PolicyState, Report, ResourceReport
from partage.agent.telling import told
from partage.model.health import Phase, State
from partage.model.ids import ResourceName
from partage.model.policy import Strategy
from partage.plan.ledger import Degree, Entry, Holder

GPU = ResourceName("nvidia.com/gpu")
ONE = GpuReport(
    uuid="GPU-a",
    index=0,
    product="A100",
    health=Phase(),
    instances={},
    lost="",
    strategy=Strategy.EXCLUSIVE,
    wanted=Strategy.EXCLUSIVE,
    draining=False,
    waiting=None,
    pending="",
    offer=(),
    held=0,
)
FIRST = Report(
    at_s=0.0,
    clock_s=0.0,
    number=1,
    took_s=0.0,
    node=None,
    offer={},
    gpus=(ONE,),
    resources=(ResourceReport(GPU, 1, 1, 0),),
    entries=(),
    policy=PolicyReport(PolicyState.BUILT_IN),
    neighbours=Neighbours(),
)


def events(before: Report | None, now: Report) -> list[tuple[str, bool]]:
    return [(one.event, one.grave) for one in told(before, now)]


def test_the_first_report_tells_what_is_offered() -> None:
    assert events(None, FIRST) == [("shares listed", False)]


def test_a_report_that_says_the_same_is_no_event() -> None:
    assert events(FIRST, replace(FIRST, at_s=5.0, number=2)) == []


def test_a_fault_is_grave_and_a_recovery_is_not() -> None:
    ill = replace(FIRST, gpus=(replace(ONE, health=Phase(State.UNHEALTHY, "XID 79")),))
    assert events(FIRST, ill) == [("gpu health changed", True)]
    assert events(ill, FIRST) == [("gpu health changed", False)]


def test_a_gpu_that_waits_names_the_pods_once() -> None:
    entry = Entry(GPU, "GPU-a", Degree.OBSERVED, (Holder("default", "trainer", "main"),), 0.0)
    waits = replace(FIRST, gpus=(replace(ONE, draining=True, waiting=(entry,), held=1),))
    [one] = told(FIRST, waits)
    assert one.event == "gpu waits"
    assert one.facts["for"] == ["trainer"]
    assert events(waits, replace(waits, number=3)) == []


def test_a_change_of_strategy_is_told_with_both() -> None:
    now = replace(FIRST, gpus=(replace(ONE, strategy=Strategy.MPS),))
    [one] = told(FIRST, now)
    assert (one.event, one.facts["from"], one.facts["to"]) == ("gpu changed", "exclusive", "mps")
