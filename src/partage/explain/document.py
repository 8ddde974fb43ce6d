"""The answers of ``explain``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from partage.admission.decide.former import FormerPod, FormerWords
from partage.answers.documents.document import Document, GpuName
from partage.claims.decide.nearest import device_words
from partage.explain.decide.changes import (
    AskFewer,
    AskOther,
    Change,
    ClaimLess,
    ClaimOtherClass,
    DropSelector,
    RaiseReplicas,
)
from partage.explain.decide.claim_reasons import NoDeviceEver, NoDevicesForClaims
from partage.explain.decide.explain import NodeVerdict
from partage.explain.decide.gpus import GpuVerdict
from partage.explain.decide.job import JobNodeVerdict
from partage.explain.decide.pod_and_node import PodNeeds
from partage.explain.decide.reasons import GpuReason, NodeReason
from partage.model.ids import DeviceUuid, ResourceName, ShareId
from partage.model.share import Guarantee
from partage.plan.serve.ledger_entry import Certainty
from partage.slurm.model import JobId
from partage.values import Frozen

_WEIGHTS: Mapping[type, int] = {
    AskFewer: 2,
    AskOther: 3,
    RaiseReplicas: 3,
    ClaimLess: 2,
    ClaimOtherClass: 3,
    DropSelector: 3,
}
"""Changes that count for more than one."""


class ChangeRow(Frozen):
    """Something that would help. kind: one word for it. text: what to do, a sentence."""

    kind: str
    text: str


class ReasonRow(Frozen):
    """Something that keeps the pod from fitting. kind: one word for it. text: a sentence."""

    kind: str
    text: str


class ExplainedGpuRow(GpuName):
    """One GPU. reason: why it cannot give what is asked for; None: it can."""

    reason: ReasonRow | None
    change: ChangeRow | None


class GivenDeviceRow(Frozen):
    """A device that a claim of the pod would get. claim: as the pod calls it. request: of an alternative
    ``req/sub``. device: its name in the pool. gpu: index; None: not published. text: how much of it.
    guarantee: of its memory, as it is published; empty: it is not.
    """

    claim: str
    request: str
    device: str
    gpu: int | None
    text: str
    guarantee: str = ""


class ClaimAskRow(Frozen):
    """What one request of a claim asks for. claim: as the pod calls it. source: the object that says so.
    asks: each alternative, the best first.
    """

    claim: str
    source: str
    request: str
    asks: tuple[str, ...]


class ExplainedNodeRow(Frozen):
    """The pod on one node.

    reason: the first reason why the pod does not fit; None: it fits. changes: what to do, all of it and in
    this order; enough: the pod fits then. others: other ways out of the first reason, each with all that it
    needs. more: further reasons. refused_at_node: the scheduler would send the pod here, and the node would
    refuse it. assumed: labels that the pod wants and of which nothing is known here; they count as present.
    remarks: what to know about the node. gives: where the pod fits, devices for its claims.
    """

    name: str
    fits: bool
    reason: ReasonRow | None
    changes: tuple[ChangeRow, ...]
    enough: bool
    others: tuple[tuple[ChangeRow, ...], ...]
    more: tuple[ReasonRow, ...]
    refused_at_node: bool
    assumed: tuple[str, ...]
    remarks: tuple[str, ...]
    gpus: tuple[ExplainedGpuRow, ...]
    gives: tuple[GivenDeviceRow, ...] = ()


class AskedRow(Frozen):
    """What one container asks of GPUs."""

    container: str
    resource: str
    amount: int


class FormerPodRow(FormerWords):
    """A pod that was written for another system. becomes: its claims. guarantee: of them. rewritten: the pod
    has these claims; else this answer takes it so. scheduler: that it named before; empty: the same.
    warnings: what of it has no effect, clauses. homes: where it fits no node: the lines of a policy that
    would make a home for it.
    """

    becomes: tuple[str, ...]
    guarantee: str
    rewritten: bool
    scheduler: str
    warnings: tuple[str, ...]
    homes: tuple[str, ...]


class ExplainedPodRow(Frozen):
    """One pod. standing: how it stands in the cluster, a sentence; empty: it was not asked. nodes: those that
    it fits first, then those where least has to be done; none for a pod that runs. holds: what it holds, as
    far as that is known. runs: it is bound to a node that has not refused it. not_judged: what the pod asks
    for that was not looked at: the scheduler may refuse it for that. claims: what its claims ask for. former:
    what it was before, if it was written for another system.
    """

    name: str
    asks: tuple[AskedRow, ...]
    standing: str
    nodes: tuple[ExplainedNodeRow, ...]
    holds: tuple[ExplainedShareRow, ...] = ()
    runs: bool = False
    not_judged: tuple[str, ...] = ()
    claims: tuple[ClaimAskRow, ...] = ()
    former: FormerPodRow | None = None

    @property
    def fits(self) -> bool:
        """Whether it fits a node now, or runs on one."""
        return self.runs or any(node.fits for node in self.nodes)


class ExplanationDocument(Document, kw_only=True):
    """The answer of ``explain`` for pods."""

    kind: Literal["Explanation"] = "Explanation"
    pods: tuple[ExplainedPodRow, ...]


class ExplainedShareRow(Frozen, kw_only=True):
    """Shares of one device that are alike. profile: of the MIG device; None: the GPU. state: ``held``,
    ``free``, ``not given`` (free, and nobody gets it now) or ``not offered`` (the GPU offers nothing now;
    resource is None). holders: ``namespace/pod/container``; several: one of them. certainty, since: of a held
    share. memory_bytes: of all these shares together; None: not known, as of shares of an earlier offer.

    guarantee: what can be said of it now, the weaker one of promised and verified. why_guarantee: what it
    means, and why it is this one. standing: how it stands, a sentence. next: what to do.
    """

    node: str
    gpu: int
    profile: str | None = None
    resource: ResourceName | None = None
    shares: tuple[ShareId, ...]
    state: str
    holders: tuple[str, ...] = ()
    certainty: Certainty | None = None
    since: str | None = None
    memory_bytes: int | None = None
    guarantee: Guarantee | None = None
    promised: Guarantee | None = None
    verified: Guarantee | None = None
    why_guarantee: str
    standing: str
    next: str


class ShareExplanationDocument(Document, kw_only=True):
    """The answer of ``explain share``. what: as it was asked for."""

    kind: Literal["ShareExplanation"] = "ShareExplanation"
    what: str
    shares: tuple[ExplainedShareRow, ...]


class JobHoldingRow(Frozen):
    """What a job holds of one GPU. index: Slurm's; None: not known. device: NVML's name, ``3`` or ``3:1``,
    and uuid, as far as the prolog has noted them. gres: ``mps:25``. guarantee: None: not known. why: what the
    guarantee means, or why it is not known.
    """

    node: str
    index: int | None
    device: str | None
    uuid: DeviceUuid | None
    gres: str
    memory_bytes: int | None
    guarantee: Guarantee | None
    why: str


class JobExplanationDocument(Document, kw_only=True):
    """The answer of ``explain job``.

    standing: ``runs``, ``waits``, ``never`` (it will not start by itself) or ``refused`` (it was started, and
    its tasks are told why they do not run). why: a sentence; todo: the next step. slurm_says: Slurm's word.
    since: when it started. nodes: where it could run, the nearest first. holds: of a job that runs.
    """

    kind: Literal["JobExplanation"] = "JobExplanation"
    job: JobId
    user: str
    partition: str
    asks: str
    standing: str
    why: str
    todo: str
    slurm_says: str
    since: str | None
    nodes: tuple[JobNodeVerdict, ...]
    holds: tuple[JobHoldingRow, ...]


def explained_pod(
    pod: PodNeeds,
    verdicts: tuple[NodeVerdict, ...],
    remarks: Mapping[str, tuple[str, ...]],
    standing: str = "",
) -> ExplainedPodRow:
    """The row of a pod. remarks: by the node's name."""
    return ExplainedPodRow(
        name=pod.title,
        asks=tuple(AskedRow(container.words, name, amount) for container, name, amount in pod.asks),
        standing=standing,
        nodes=tuple(
            _node_row(verdict, remarks.get(verdict.node, ())) for verdict in sorted(verdicts, key=_nearness)
        ),
        not_judged=pod.not_judged if verdicts else (),
        claims=tuple(
            ClaimAskRow(claim.name, claim.spec.title, request.name, tuple(way.words for way in request.ways))
            for claim in pod.claims
            for request in claim.spec.requests
        ),
        former=None if pod.former is None else _former_row(pod, pod.former, verdicts),
    )


def _former_row(pod: PodNeeds, former: FormerPod, verdicts: tuple[NodeVerdict, ...]) -> FormerPodRow:
    never = bool(verdicts) and all(_has_no_home(verdict) for verdict in verdicts)
    homes = [words.home for words in former.claims.values()] if never else []
    return FormerPodRow(
        former.system,
        former.asked,
        tuple(f"{words.becomes} ({', '.join(words.containers)})" for words in former.claims.values()),
        former.guarantee,
        not pod.rewritten,
        former.scheduler,
        former.warnings,
        tuple(dict.fromkeys(homes)),
    )


def _has_no_home(verdict: NodeVerdict) -> bool:
    """Whether the node has nothing like it, not even less of it."""
    return not verdict.changes and isinstance(verdict.reason, NoDeviceEver | NoDevicesForClaims)


def _nearness(verdict: NodeVerdict) -> tuple[bool, bool, int]:
    """Nodes that it fits, then those with a way out: the fewest changes, first those that leave the pod and
    the policy as they are.
    """
    weights = (_WEIGHTS.get(type(change), 1) for change in verdict.changes)
    return not verdict.fits, not verdict.enough, sum(weights)


def _node_row(verdict: NodeVerdict, remarks: tuple[str, ...]) -> ExplainedNodeRow:
    return ExplainedNodeRow(
        name=verdict.node,
        fits=verdict.fits,
        reason=None if verdict.reason is None else reason_row(verdict.reason),
        changes=tuple(map(change_row, verdict.changes)),
        enough=verdict.enough,
        others=tuple(tuple(map(change_row, way)) for way in verdict.others),
        more=tuple(map(reason_row, verdict.more)),
        refused_at_node=verdict.at_node,
        assumed=verdict.assumed,
        remarks=remarks,
        gpus=tuple(map(_gpu_row, verdict.gpus)),
        gives=tuple(
            GivenDeviceRow(
                given.claim,
                given.way.name,
                given.device.device.name,
                given.device.gpu_index,
                device_words(given.device, given.amounts),
                given.device.text("guarantee"),
            )
            for given in verdict.gives
        ),
    )


def _gpu_row(verdict: GpuVerdict) -> ExplainedGpuRow:
    return ExplainedGpuRow(
        verdict.index,
        verdict.uuid,
        None if verdict.reason is None else reason_row(verdict.reason),
        None if verdict.change is None else change_row(verdict.change),
    )


def reason_row(reason: NodeReason | GpuReason) -> ReasonRow:
    """The row of a reason."""
    return ReasonRow(str(reason.__struct_config__.tag), str(reason))


def change_row(change: Change) -> ChangeRow:
    """The row of a change."""
    return ChangeRow(str(change.__struct_config__.tag), str(change))
