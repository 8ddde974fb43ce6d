"""How a node stands in a rollout, and what may be changed without one."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.errors import Problem
from partage.kubernetes.decide.events import node_events
from partage.plan.cluster.conditions import POLICY_IN_FORCE, node_conditions
from partage.plan.cluster.rollout import (
    CanaryNode,
    NodePhase,
    NodeProgress,
    RolloutNote,
    canary_of,
    disturbs,
    note_of,
    read_note,
    standing_of,
    written,
)
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.reconcile.node_plan import GpuPlan, Phase
from partage.plan.report import UNASKED, PolicyReason, PolicyReport, PolicyState, Report
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.kubernetes.decide.test_events import TWO, WELL
from tests.plan.test_report import ONE

IN_FORCE = PolicyReport(PolicyState.FILE, "p.yaml", revision="r2", wanted="r2", wanted_config="a")
BLOCKED = GpuPlan(Phase.BLOCKED, "no such profile")


def held(reason: PolicyReason, message: str, wanted: str = "r2") -> PolicyReport:
    problem = Problem("p.yaml", "", "warning", message)
    return PolicyReport(
        PolicyState.LAST_GOOD, "p.yaml", problems=(problem,), reason=reason, revision="r1", wanted=wanted
    )


def on(policy: PolicyReport, *phases: Phase) -> Report:
    gpus = tuple(
        replace(gpu, plan=GpuPlan(phase, "because")) for gpu, phase in zip((ONE, TWO), phases, strict=False)
    )
    return replace(WELL, policy=policy, gpus=gpus)


@pytest.mark.parametrize(
    ("report", "phase", "why"),
    [
        (on(IN_FORCE, Phase.SETTLED, Phase.SETTLED), NodePhase.DONE, ""),
        (on(IN_FORCE, Phase.SETTLED, Phase.WAITING), NodePhase.CHANGING, "GPU 1 waits"),
        (on(IN_FORCE, Phase.UNKNOWN), NodePhase.CHANGING, "GPU 0"),
        (on(IN_FORCE, Phase.CHANGING, Phase.FAILED), NodePhase.FAILED, "GPU 1 could not be changed"),
        (on(held(PolicyReason.ROLLOUT_WAITS, "its turn"), Phase.SETTLED), NodePhase.WAITING, "its turn"),
        (on(held(PolicyReason.WRONG, "a typo", ""), Phase.SETTLED), NodePhase.FAILED, "a typo"),
        (on(held(PolicyReason.DOES_NOT_FIT, "no GPU 7"), Phase.SETTLED), NodePhase.FAILED, "no GPU 7"),
    ],
)
def test_the_phase_of_a_node(report: Report, phase: NodePhase, why: str) -> None:
    note = note_of(report, "")
    assert note.phase is phase
    assert why in note.why
    assert read_note(written(note)) == note


def test_a_gpu_that_does_not_answer_says_nothing_about_the_policy() -> None:
    lost = replace(ONE, lost="fell off the bus", plan=BLOCKED)
    report = on(IN_FORCE, Phase.SETTLED, Phase.SETTLED)
    settled = replace(TWO, plan=GpuPlan(Phase.SETTLED))
    assert standing_of(replace(report, gpus=(lost, settled))).progress is NodeProgress.SETTLED
    unplanned = replace(TWO, plan=None)
    assert standing_of(replace(report, gpus=(lost, unplanned))).progress is NodeProgress.CHANGING
    answers = replace(lost, lost="")
    assert standing_of(replace(report, gpus=(answers, settled))).progress is NodeProgress.FAILED


def test_a_policy_that_no_longer_fits_is_not_a_failed_rollout() -> None:
    """A GPU has left the node: the edit is not to blame."""
    misfit = replace(IN_FORCE, reason=PolicyReason.DOES_NOT_FIT, problems=(Problem("", "", "error", "gone"),))
    assert standing_of(on(misfit, Phase.SETTLED)).refused == ""
    assert standing_of(on(replace(misfit, wanted="r3"), Phase.SETTLED)).refused != ""


@pytest.mark.parametrize(
    ("note", "done"),
    [
        (RolloutNote("p", "r2", "r2", NodePhase.DONE), True),
        (RolloutNote("p", "r2", "r2", NodePhase.CHANGING), False),
        (RolloutNote("p", "r1", "r2", NodePhase.FAILED), False),
        (RolloutNote("p", "r1", "r2", NodePhase.FAILED, accepted=True), True),
        (RolloutNote("p", "r1", "r2", NodePhase.WAITING), False),
    ],
)
def test_when_a_canary_holds_back_nobody(note: RolloutNote, done: bool) -> None:
    assert canary_of("c", note) == CanaryNode("c", "p", "r2", done)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"phase": "asleep"}', "\ud800"])
def test_an_annotation_that_somebody_else_has_written_says_nothing(text: str) -> None:
    assert read_note(text) is None


def test_events_and_condition_of_a_node_that_is_held_back() -> None:
    before = on(replace(IN_FORCE, revision="r1", wanted="r1"), Phase.SETTLED)
    unasked = on(held(PolicyReason.ROLLOUT_WAITS, UNASKED.message), Phase.SETTLED)
    waits = on(held(PolicyReason.ROLLOUT_WAITS, "its turn"), Phase.SETTLED)
    stopped = on(held(PolicyReason.ROLLOUT_STOPPED, "node n2: bad"), Phase.SETTLED)
    done = on(IN_FORCE, Phase.SETTLED)
    told = [
        [(one.reason, one.warning) for one in node_events(*two)]
        for two in [(before, unasked), (unasked, waits), (waits, waits), (waits, stopped), (stopped, done)]
    ]
    assert told == [
        [],
        [("RolloutWaits", False)],
        [],
        [("RolloutStopped", True)],
        [("PolicyInForce", False)],
    ]
    (condition,) = [one for one in node_conditions(stopped) if one.type == POLICY_IN_FORCE]
    assert (condition.status, condition.reason) == ("False", "RolloutStopped")
    assert "node n2: bad" in condition.message


# --- what disturbs a node --------------------------------------------------------------------------

INVENTORY = asyncio.run(SimulatedHardware(load_machine("2xh100-sxm5-80gb")).observe())


def desired(text: str) -> DesiredState:
    policy = parse_policy(f"version: partage/v1\n{text}", "p.yaml").policy
    return resolve(policy, INVENTORY, geometry_of)


SHARED = "gpus: [{select: all, time-slicing: {replicas: 2}}]"


@pytest.mark.parametrize(
    ("text", "disturbed"),
    [
        (f"# why\n{SHARED}", False),
        ("gpus: [{select: {index: [1, 0]}, time-slicing: {replicas: 2}}]", False),
        ("gpus: [{select: all, time-slicing: {replicas: 2}, change: drain}]", False),
        ("gpus: [{select: all, time-slicing: {replicas: 3}}]", True),
        ("gpus: [{select: all, time-slicing: {replicas: 2, interval: short}}]", True),
        ("gpus: [{select: all, name: nvidia.com/other, time-slicing: {replicas: 2}}]", True),
        ("gpus: [{select: {index: [0]}, time-slicing: {replicas: 2}}]", True),
        ("gpus: [{select: all, mps: {replicas: 2}}]", True),
        (f"{SHARED}\nresources: {{fail-requests-greater-than-one: false}}", True),
        ("gpus: [{select: all, mig: {layout: [7g.80gb]}}]", True),
    ],
)
def test_what_disturbs_a_node(text: str, disturbed: bool) -> None:
    assert disturbs(desired(SHARED), desired(text)) is disturbed
    assert disturbs(desired(text), desired(SHARED)) is disturbed


def test_only_a_policy_that_never_fitted_is_refused() -> None:
    no_gpu = held(PolicyReason.DOES_NOT_FIT, "no GPU 7")
    assert "no GPU 7" in standing_of(on(no_gpu, Phase.SETTLED)).refused
    for policy in (
        held(PolicyReason.WRONG, "a typo"),
        replace(no_gpu, wanted="r1"),
        replace(no_gpu, wanted=""),
    ):
        assert standing_of(on(policy, Phase.SETTLED)).refused == ""


@pytest.mark.parametrize(
    ("policy", "let_go", "accepted"),
    [
        (held(PolicyReason.DOES_NOT_FIT, "no GPU 7"), "r2", True),
        (held(PolicyReason.DOES_NOT_FIT, "no GPU 7"), "r3", False),
        (held(PolicyReason.WRONG, "a typo", ""), "", False),
        (IN_FORCE, "r2", False),
    ],
)
def test_a_person_takes_note_of_the_failure_of_one_revision(
    policy: PolicyReport, let_go: str, accepted: bool
) -> None:
    assert note_of(on(policy, Phase.SETTLED, Phase.SETTLED), let_go).accepted is accepted


def test_a_node_behind_a_failed_one_says_that_the_rollout_has_stopped() -> None:
    assert note_of(on(held(PolicyReason.ROLLOUT_STOPPED, "n2 failed"), Phase.SETTLED), "").stopped
    assert not note_of(on(held(PolicyReason.ROLLOUT_WAITS, "its turn"), Phase.SETTLED), "").stopped


def test_a_canary_counts_with_the_revision_that_it_wants_or_has() -> None:
    note = note_of(on(IN_FORCE, Phase.SETTLED, Phase.SETTLED), "")
    assert canary_of("c", replace(note, wanted="r3")) == CanaryNode("c", "a", "r3", done=True)
    assert canary_of("c", replace(note, wanted="")) == CanaryNode("c", "a", "r2", done=True)


def test_a_gpu_that_comes_or_goes_disturbs() -> None:
    text = "version: partage/v1\n"
    inventory = load_machine("2xh100-sxm5-80gb").inventory
    both = resolve(parse_policy(text, "p.yaml").policy, inventory, geometry_of)
    gpu = inventory.gpus[0].uuid
    fewer = replace(both, offer={gpu: both.offer[gpu]})
    assert disturbs(both, fewer)
    assert disturbs(fewer, both)
    assert not disturbs(both, both)
