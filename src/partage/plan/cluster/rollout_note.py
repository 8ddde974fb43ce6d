"""How a node stands in a rollout, as its Node says it to others and to people. Pure."""

from __future__ import annotations

from enum import StrEnum

from partage.codec.values import CodecError, decode, encode_replacing
from partage.plan.cluster.conditions import standing
from partage.plan.cluster.rollout import CanaryNode, NodeProgress, Standing
from partage.plan.reconcile.node_plan import Phase
from partage.plan.report import GpuReport, PolicyReason, PolicyReport, Report
from partage.text import listed, shortened
from partage.values import Frozen

ROLLOUT = "partage.dev/rollout"
"""The annotation of a Node that has it."""

SHOWN = 4
LONGEST_WHY = 400


class NodePhase(StrEnum):
    """done: every GPU is as the wanted policy wants it. changing: it is being put in force. waiting: the
    rollout has not reached the node. failed: the node cannot have it, or a GPU could not be changed.
    """

    DONE = "done"
    CHANGING = "changing"
    WAITING = "waiting"
    FAILED = "failed"


class RolloutNote(Frozen, omit_defaults=True):
    """The annotation's value, as JSON. policy: the name of the policy that the node chooses. in_force,
    wanted: revisions. why: it is not done. stopped: another node has failed. accepted: a person lets the
    rollout go on in spite of its failure.
    """

    policy: str
    in_force: str
    wanted: str
    phase: NodePhase
    why: str = ""
    stopped: bool = False
    accepted: bool = False


def standing_of(report: Report) -> Standing:
    """How the node of a report stands."""
    policy = report.policy
    progress, why = _progress(report.gpus)
    return Standing(
        policy=policy.wanted_config,
        in_force=policy.revision,
        wanted=policy.wanted,
        waits=policy.reason.held_back,
        progress=progress,
        refused=policy.message if _refused(policy) else "",
        why=why,
    )


def _refused(policy: PolicyReport) -> bool:
    """One that was in force and no longer fits is refused for what has happened to the node."""
    return policy.reason is PolicyReason.DOES_NOT_FIT and policy.wanted not in ("", policy.revision)


def _progress(gpus: tuple[GpuReport, ...]) -> tuple[NodeProgress, str]:
    """A GPU that does not answer says nothing about the policy."""
    plans = [(gpu.index, gpu.plan) for gpu in gpus if not gpu.lost]
    failed = [
        f"GPU {index} {standing(plan)}"
        for index, plan in plans
        if plan is not None and plan.phase in (Phase.FAILED, Phase.BLOCKED)
    ]
    if failed:
        return NodeProgress.FAILED, listed(failed, SHOWN)
    moving = [
        f"GPU {index} {standing(plan) if plan is not None else 'is not planned yet'}"
        for index, plan in plans
        if plan is None or plan.phase is not Phase.SETTLED
    ]
    return (NodeProgress.CHANGING, listed(moving, SHOWN)) if moving else (NodeProgress.SETTLED, "")


def note_of(report: Report, let_go: str) -> RolloutNote:
    """What the Node says. let_go: a revision whose failure a person has taken note of."""
    now = standing_of(report)
    text = report.policy.message
    if now.waits:
        phase, why = NodePhase.WAITING, report.policy.problems[0].message
    elif report.policy.problems or now.progress is NodeProgress.FAILED:
        phase, why = NodePhase.FAILED, text if report.policy.problems else now.why
    elif now.progress is NodeProgress.CHANGING:
        phase, why = NodePhase.CHANGING, now.why
    else:
        phase, why = NodePhase.DONE, ""
    return RolloutNote(
        now.policy,
        now.in_force,
        now.wanted,
        phase,
        shortened(why, LONGEST_WHY),
        stopped=report.policy.reason is PolicyReason.ROLLOUT_STOPPED,
        accepted=phase is NodePhase.FAILED and bool(now.wanted) and now.wanted == let_go,
    )


def written(note: RolloutNote) -> str:
    """The annotation's value."""
    return encode_replacing(note).decode()


def read_note(text: str) -> RolloutNote | None:
    """What an annotation says; None: nothing that an agent of this version has written."""
    try:
        return decode(RolloutNote, text.encode(errors="replace"), strict=False)
    except CodecError:
        return None


def canary_of(name: str, note: RolloutNote) -> CanaryNode:
    """As other nodes count it."""
    done = note.phase is NodePhase.DONE or note.accepted
    return CanaryNode(name, note.policy, note.wanted or note.in_force, done)
