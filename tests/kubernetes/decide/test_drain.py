"""Whom ``change: drain`` asks to leave, and when it is given up."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.kubernetes.decide.drain import (
    DrainState,
    NotEvicted,
    RunningPod,
    after_asking,
    next_drain,
    pods_to_evict,
    spared_pods,
    spared_sentence,
)
from partage.kubernetes.decide.events import PodName
from partage.model.ids import GpuUuid, ShareId
from partage.model.policy import Drain, Policy, SparedPods
from partage.plan.reconcile.node_plan import GpuPlan, Phase
from partage.plan.report import Report
from partage.plan.serve.ledger_entry import Certainty, Holder, LedgerEntry
from tests.kubernetes.decide.test_events import TWO, WELL, entry
from tests.plan.test_report import GPU, ONE

POLICY = Policy(source="p.yaml")


PODS = {PodName("default", name): RunningPod(f"u-{name}", f"rs-{name}") for name in "abcz"}


DRAIN = Drain()


def waiting(*entries: LedgerEntry, drain: Drain | None = DRAIN, phase: Phase = Phase.WAITING) -> Report:
    plan = GpuPlan(phase, waiting_for=entries)
    gpu = replace(ONE, plan=plan, drain=drain, held=len(entries))
    return replace(WELL, gpus=(gpu, TWO), policy_in_force=POLICY)


def then(before: DrainState, report: Report, now_s: float = 0.0) -> DrainState:
    return next_drain(before, report, now_s, PODS)


def evicted(report: Report, pods: Mapping[PodName, RunningPod] = PODS) -> set[str]:
    return {pod.name for pod in pods_to_evict(then(DrainState(), report), report, pods)}


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
        (waiting(entry("a"), drain=None), set()),
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
    began = then(DrainState(), report, 100.0)
    assert (began.began_s, began.due_s) == ({gpu: 100.0}, 700.0)
    assert then(began, report, 699.0).began_s == {gpu: 100.0}
    over = then(began, report, 700.0)
    assert over.due_s is None
    assert pods_to_evict(over, report, PODS) == frozenset()
    assert over.gave_up[gpu].startswith("after a drain of 10 min it still waited for pod default/a;")
    offers_again = waiting(entry("a"), phase=Phase.FAILED)
    assert then(over, offers_again, 9e9).gave_up == over.gave_up
    edited = replace(report, policy_in_force=replace(POLICY, source="q.yaml"))
    assert then(over, edited, 800.0).began_s == {gpu: 800.0}
    assert then(over, waiting(), 800.0).gave_up == {}, "nothing is held any more"


@given(st.lists(st.tuples(st.sampled_from(["held", "free", "unknown"]), st.integers(0, 400)), max_size=30))
def test_no_gpu_is_drained_for_longer_than_its_deadline(steps: list[tuple[str, int]]) -> None:
    """Also where its shares are free for a moment, again and again."""
    reports = {
        "held": waiting(entry("a")),
        "free": waiting(phase=Phase.WITHDRAWING),
        "unknown": waiting(entry("a"), phase=Phase.UNKNOWN),
    }
    state, now_s, first_s = DrainState(), 0.0, None
    for seen, pause_s in steps:
        now_s += pause_s
        report = reports[seen]
        state = then(state, report, now_s)
        if pods_to_evict(state, report, PODS):
            first_s = now_s if first_s is None else first_s
            assert now_s - first_s < 600
        assert state.due_s is None or state.due_s > now_s, "a deadline that has passed is not waited for"
        assert seen == "held" or not pods_to_evict(state, report, PODS)


def test_a_change_that_is_done_leaves_nothing_for_the_next_one() -> None:
    report = waiting(entry("a"))
    began = then(DrainState(), report, 100.0)
    began = after_asking(began, report, PODS, PodName("default", "a"))
    between = then(began, waiting(phase=Phase.WITHDRAWING), 110.0)
    assert (between.began_s, between.asked) == (began.began_s, began.asked)
    done = then(between, waiting(phase=Phase.SETTLED), 120.0)
    assert (done.began_s, done.asked) == ({}, {})


# --- who is spared -------------------------------------------------------------------------------

BARE, CRITICAL = SparedPods.BARE, SparedPods.SYSTEM_CRITICAL


@pytest.mark.parametrize(
    ("pod", "also", "why_not"),
    [
        (RunningPod("u", "rs"), (), None),
        (RunningPod("u"), (), NotEvicted.BARE),
        (RunningPod("u"), (CRITICAL,), NotEvicted.BARE),
        (RunningPod("u"), (BARE,), None),
        (RunningPod("u", "rs", critical=True), (), NotEvicted.SYSTEM_CRITICAL),
        (RunningPod("u", "rs", critical=True), (BARE,), NotEvicted.SYSTEM_CRITICAL),
        (RunningPod("u", "rs", critical=True), (CRITICAL,), None),
        (RunningPod("u", critical=True), (CRITICAL,), NotEvicted.BARE),
        (RunningPod("u", critical=True), (BARE, CRITICAL), None),
        (RunningPod("u", "node", static=True), (BARE, CRITICAL), NotEvicted.STATIC),
    ],
)
def test_who_is_lost_for_good_stays_unless_the_policy_says_so(
    pod: RunningPod, also: tuple[SparedPods, ...], why_not: NotEvicted | None
) -> None:
    name, report = PodName("default", "a"), waiting(entry("a"), drain=Drain(also=also))
    pods = {name: pod}
    state = next_drain(DrainState(), report, 0.0, pods)
    assert pods_to_evict(state, report, pods) == (frozenset() if why_not else {name})
    assert spared_pods(state, report, pods) == ({ONE.uuid: {name: why_not}} if why_not else {})


def test_who_is_spared_is_said_also_when_the_drain_is_given_up() -> None:
    pods = {PodName("default", "a"): RunningPod("u")}
    report = waiting(entry("a"))
    state = next_drain(DrainState(), report, 0.0, pods)
    said = spared_sentence(spared_pods(state, report, pods)[ONE.uuid])
    assert said == "not evicted: pod default/a has no controller that would make it again"
    assert (
        f"for pod default/a ({said}); it offers" in next_drain(state, report, 600.0, pods).gave_up[ONE.uuid]
    )


# --- no pod after the other without end ----------------------------------------------------------


class _Gpu:
    """A GPU with shares that pods hold; all of one controller."""

    def __init__(self) -> None:
        self.state = DrainState()

    def now(self, *names: str) -> list[str]:
        """These hold a share each: who is asked then."""
        pods = {PodName("default", name): RunningPod(f"u-{name}", "rs") for name in names}
        report = waiting(*(entry(name, share=f"GPU-a::{name}") for name in names))
        self.state = next_drain(self.state, report, 0.0, pods)
        asked = list[str]()
        while found := sorted(
            pods_to_evict(self.state, report, pods) - {PodName("default", n) for n in asked}
        ):
            self.state = after_asking(self.state, report, pods, found[0])
            asked.append(found[0].name)
        return asked


def test_a_pod_that_takes_the_share_of_one_that_was_evicted_stays() -> None:
    gpu = _Gpu()
    assert gpu.now("a") == ["a"]
    assert gpu.now("a") == ["a"], "one that has not left is asked again"
    assert gpu.now() == []
    assert gpu.now("b") == []
    assert gpu.now("c") == []


def test_all_pods_that_were_there_are_asked_and_others_when_fewer_shares_are_held() -> None:
    gpu = _Gpu()
    assert gpu.now("a", "b", "c", "d") == ["a", "b", "c", "d"]
    assert gpu.now("b", "c", "d", "e") == ["b", "c", "d"], "e has come: as many shares are held"
    assert gpu.now("e", "f", "g") == ["e", "f", "g"], "one less than at first"
    assert gpu.now("h", "i", "j") == []
    assert gpu.now("j") == ["j"]


@given(st.integers(1, 5), st.data())
def test_a_controller_whose_pods_take_every_share_again_loses_few_of_them(
    held: int, data: st.DataObject
) -> None:
    """Whatever comes, so many rounds as shares and no more."""
    gpu, asked, number = _Gpu(), set[str](), 0
    there = [f"p{number + i}" for i in range(held)]
    number = held
    for _ in range(30):
        asked |= set(gpu.now(*there))
        left = [name for name in there if data.draw(st.booleans()) or name not in asked]
        new = data.draw(st.integers(0, len(there) - len(left)))
        there = [*left, *(f"p{number + i}" for i in range(new))]
        number += new
    assert len(asked) <= held * (held + 1) // 2


def test_another_controller_is_asked_and_another_gpu_is_its_own() -> None:
    report = waiting(entry("a"))
    state = after_asking(then(DrainState(), report), report, PODS, PodName("default", "a"))
    other = waiting(entry("b"))
    assert pods_to_evict(then(state, other), other, PODS) == {PodName("default", "b")}
    assert state.asked.keys() == {GpuUuid("GPU-a")}


def test_another_policy_asks_again() -> None:
    gpu = _Gpu()
    assert gpu.now("a") == ["a"]
    assert gpu.now("b") == []
    gpu.state = replace(gpu.state, policy=Policy(source="before.yaml"))
    assert gpu.now("b") == ["b"]
