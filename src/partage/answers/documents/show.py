"""The answer of ``show``: the node, what it offers, and what the agent says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from partage.answers.documents.document import Document, row
from partage.answers.documents.node import NodeRow, node_row
from partage.answers.documents.plan import HeldRow, held_row
from partage.answers.documents.report import ReportDocument, ReportedGpuRow
from partage.answers.documents.resources import ResourceRow, resource_rows
from partage.answers.documents.use import UseRow
from partage.answers.share_counts import count_by_resource
from partage.model.gpu import Inventory
from partage.model.gpu_use import JobProcess
from partage.model.ids import GpuUuid
from partage.model.share import NodeOffer
from partage.plan.report import JobLimit
from partage.values import Frozen


class ShownShare(HeldRow):
    """One held share. gpu: index of its GPU; None if the share is not offered any more."""

    gpu: int | None


class ShownCount(Frozen):
    """How many shares of a resource are held, free, and neither: on a GPU that is lost, unhealthy, cordoned
    or about to change.
    """

    resource: str
    held: int
    free: int
    not_usable: int


class ShownAgent(Frozen):
    """The agent, from its report at that time. policy: its source, empty for none.

    reasons: everything that is wrong. troubles: GPU UUID to what is wrong with it. pending: GPU UUID to why
    it is not as the policy wants it. waited_for: GPUs that change once their shares are released. shares: one
    row for each resource.
    """

    version: str
    at: str
    policy: str
    reasons: tuple[str, ...]
    troubles: Mapping[GpuUuid, str]
    waited_for: tuple[ReportedGpuRow, ...]
    pending: Mapping[GpuUuid, str]
    shares: tuple[ShownCount, ...] = ()


class NodeAnswer(NodeRow, kw_only=True):
    """A node, what it offers, and who holds it. agent: None where none runs, or a policy was given.

    slurm_processes: the processes on its GPUs with their Slurm jobs; None where Slurm was not asked.
    use: what GPUs and containers do, as the agent sampled it last; None without an agent. jobs: of Slurm,
    whose memory the driver is to limit.
    """

    resources: tuple[ResourceRow, ...]
    held: tuple[ShownShare, ...]
    agent: ShownAgent | None
    slurm_processes: tuple[JobProcess, ...] | None = None
    use: UseRow | None = None
    jobs: tuple[JobLimit, ...] = ()


class NodeDocument(Document, NodeAnswer):
    """The answer of ``show``: the node, what it offers, and who holds it."""

    # Not among the keyword-only fields, so it is written first.

    kind: Literal["Node"] = "Node"


def node_document(
    inventory: Inventory,
    offer: NodeOffer,
    report: ReportDocument | None,
    processes: tuple[JobProcess, ...] | None = None,
) -> NodeDocument:
    """The answer. report: None where no agent runs, or a policy was given. processes: of Slurm jobs."""
    return row(
        NodeDocument,
        node_row(inventory),
        resources=resource_rows(offer),
        held=() if report is None else shown_shares(report),
        jobs=() if report is None else report.jobs,
        agent=None if report is None else _agent(report),
        slurm_processes=processes,
        use=None if report is None else report.use,
    )


def shown_shares(report: ReportDocument) -> tuple[ShownShare, ...]:
    """The shares that are held."""
    indexes = report.gpu_of_share
    return tuple(row(ShownShare, held_row(entry), gpu=indexes.get(entry.id)) for entry in report.held)


def _agent(report: ReportDocument) -> ShownAgent:
    return row(
        ShownAgent,
        report,
        version=report.agent.version,
        policy=report.policy.source,
        reasons=report.messages,
        waited_for=report.waiting,
        shares=tuple(
            ShownCount(name, count.held, count.free, count.not_usable)
            for name, count in count_by_resource(report).items()
        ),
    )
