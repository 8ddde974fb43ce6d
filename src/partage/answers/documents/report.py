"""The agent's report: ``/report.json``, and ``<run-dir>/report.json``, which other verbs read.

A run directory can outlive its agent, be shared by nodes, or have been filled by a simulation: whether a
report is of this node, by an agent that still runs, is said here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Raw

from partage.agent.status.readiness import ReadinessReason
from partage.answers.documents.document import Document, GpuName
from partage.answers.documents.node import NodeRow
from partage.answers.documents.resources import HeldShare, ResourceRow
from partage.answers.documents.use import UseRow, WatchRow
from partage.answers.wording import pod_name, standing
from partage.codec.values import CodecError, decode
from partage.edges.host.read_file import read_regular
from partage.model.gpu import Inventory, LostGpu
from partage.model.gpu_use import LeftProcess
from partage.model.health import HealthState
from partage.model.ids import DeviceUuid, GpuUuid, PodUid, ShareId
from partage.model.mps import DaemonPhase
from partage.model.policy import Policy
from partage.model.share import NodeOffer
from partage.model.strategy import Strategy
from partage.plan.reconcile.node_plan import Phase, Snapshot
from partage.plan.reconcile.transition import withdrawn
from partage.plan.report import JobLimit, MigConfigReport, PolicyInForce
from partage.plan.serve.cordon import cordon_sentence
from partage.plan.serve.ledger_entry import HeldLimit, Hold, Holder
from partage.values import Frozen, grouped

_LARGEST_BYTES = 64 * 2**20


class ReportingAgent(Frozen):
    """The agent that reports. pid: in its pid namespace, ``pid:[4026531836]``. turns: of its loop, since its
    start.
    """

    version: str
    pid: int
    pid_namespace: str
    turns: int


class PolicyRow(PolicyInForce):
    """The policy in force. problems: errors and warnings of the one that was asked for; reason: whether that
    one is in force, and why not; message: the same for people. chosen_by: what chose it; empty: there is no
    choice. revision, wanted: what a rollout knows the policy in force as, and the one that was asked for.
    """

    message: str = ""
    chosen_by: str = ""
    revision: str = ""
    wanted: str = ""


class HealthRow(Frozen):
    """The health of a GPU or a GPU instance."""

    state: HealthState
    reason: str


class EntryRow(HeldShare, kw_only=True):
    """One held share. holders: several: ambiguous. since: RFC 3339, as all times here.

    ended_at: when the kubelet named nobody any more. former_pods: UIDs of the pods whose processes have not
    been seen to be gone; left: those that were seen to run: the share is given to nobody until they have
    ended; unseen: why nobody can look for them now, so that a GPU that has to change waits; unseen_at: since
    when. claim: the ResourceClaim that holds it, ``namespace/name``; null: containers do. limit: what was
    read of the driver's memory limit of its container; null: its share has none.
    """

    holders: tuple[Holder, ...]
    since: str
    ended_at: str | None = None
    left: tuple[LeftProcess, ...] = ()
    former_pods: tuple[PodUid, ...] = ()
    unseen: str | None = None
    unseen_at: str | None = None
    claim: str | None = None
    limit: HeldLimit | None = None

    @property
    def pods(self) -> str:
        """The pods that may hold it, or the claim; empty if none is known."""
        claim = f"claim {self.claim}" if self.claim else ""
        return " or ".join(map(pod_name, self.holders)) or claim


class DaemonRow(Frozen):
    """One MPS daemon. clients: number of processes. memory_bytes, threads_percent: its limits. doubt: why
    these may not be what was set, and what to change; null: nobody else can have changed them.
    """

    device: DeviceUuid
    state: DaemonPhase
    pid: int | None
    clients: int
    memory_bytes: int | None
    threads_percent: int | None
    reason: str | None
    doubt: str | None = None


class ReportedGpuRow(GpuName):
    """One GPU. instances: by id of the GPU instance. lost: why it does not answer.

    phase: None: there is no plan. reason: why it is not settled. waiting_for: shares that must be released
    first; processes: what else has to end. retry_at: when a failed attempt is tried again. cordoned: nobody
    gets another share of it.
    """

    product: str
    strategy: Strategy | None
    wanted_strategy: Strategy | None
    health: HealthRow
    instances: Mapping[int, HealthRow]
    lost: str | None
    phase: Phase | None
    reason: str | None
    steps: tuple[str, ...]
    waiting_for: tuple[EntryRow, ...]
    retry_at: str | None
    mps_daemons: tuple[DaemonRow, ...]
    held: int
    processes: tuple[str, ...] = ()
    cordoned: bool = False

    @property
    def trouble(self) -> str:
        """What is wrong with it; empty for a healthy GPU."""
        if self.lost:
            return f"lost: {self.lost}"
        healthy = self.health.state is HealthState.HEALTHY
        return "" if healthy else f"{self.health.state}: {self.health.reason}"


class ReportedResourceRow(ResourceRow):
    """One resource, and what the kubelet has of it: shares listed, healthy, held."""

    listed: int
    healthy: int
    held: int
    registered: bool
    watching: bool
    registrations: int
    last_error: str | None


class PlannedFrom(Frozen):
    """What the agent's planner looked at. labels: of the Node; None: not known."""

    policy: Policy
    snapshot: Snapshot
    labels: Mapping[str, str] | None = None


class ReportDocument(Document, kw_only=True):
    """Everything that the agent knows.

    reasons: why it is not healthy; degraded: what else is wrong. use: what GPUs and containers do; None: the
    agent is of a version that does not say it. jobs: of Slurm, whose memory the driver is to limit.
    planned_from: a ``PlannedFrom`` or null,
    which only the same version of Partage can read.
    """

    kind: Literal["Report"] = "Report"
    at: str
    agent: ReportingAgent
    healthy: bool
    reasons: tuple[ReadinessReason, ...]
    degraded: tuple[ReadinessReason, ...]
    policy: PolicyRow
    mig_config: MigConfigReport | None = None
    node: NodeRow
    gpus: tuple[ReportedGpuRow, ...]
    resources: tuple[ReportedResourceRow, ...]
    held: tuple[EntryRow, ...]
    jobs: tuple[JobLimit, ...] = ()
    watch: WatchRow | None
    use: UseRow | None = None
    offer: NodeOffer
    planned_from: Raw

    @property
    def planner_input(self) -> PlannedFrom | None:
        """None where the agent has no policy yet, or is of another version."""
        try:
            return decode(PlannedFrom, bytes(self.planned_from))
        except CodecError:
            return None

    @property
    def messages(self) -> tuple[str, ...]:
        """Everything that is wrong, in sentences."""
        return tuple(reason.message for reason in (*self.reasons, *self.degraded))

    @property
    def troubles(self) -> dict[GpuUuid, str]:
        """GPU UUID to what is wrong with it."""
        return {gpu.uuid: gpu.trouble for gpu in self.gpus if gpu.trouble}

    @property
    def pending(self) -> dict[GpuUuid, str]:
        """GPU UUID to what keeps it from being as the policy wants it."""
        return {gpu.uuid: gpu.reason for gpu in self.gpus if gpu.reason}

    @property
    def waiting(self) -> tuple[ReportedGpuRow, ...]:
        """GPUs that wait for their holders, or for the kubelet."""
        return tuple(gpu for gpu in self.gpus if gpu.phase in (Phase.WAITING, Phase.WITHDRAWING))

    @property
    def standings(self) -> dict[GpuUuid, str]:
        """GPU UUID to how it stands, for GPUs that are not settled."""
        said = {
            gpu.uuid: standing(
                gpu.index,
                gpu.phase,
                gpu.reason or "",
                {row.pods or "?" for row in gpu.waiting_for if not row.left},
                gpu.processes,
            )
            for gpu in self.gpus
        }
        said |= {
            gpu.uuid: "; ".join(filter(None, ("cordoned", said[gpu.uuid])))
            for gpu in self.gpus
            if gpu.cordoned
        }
        return {uuid: text for uuid, text in said.items() if text}

    @property
    def cordon(self) -> str:
        """Which GPUs are cordoned, and what that means; empty if none is."""
        return cordon_sentence(gpu.index for gpu in self.gpus if gpu.cordoned)

    @property
    def withdrawn(self) -> frozenset[Hold]:
        """Shares that are neither held nor free; none known of an agent of another version."""
        return withdrawn_in(self.planner_input)

    @property
    def gpu_of_share(self) -> dict[ShareId, int]:
        """Share id to the index of its GPU, for all shares that are offered."""
        offerings = (offering for gpu_offer in self.offer.values() for offering in gpu_offer)
        return {share: offering.gpu_index for offering in offerings for share in offering.share_ids}

    @property
    def holders(self) -> dict[ShareId, str]:
        """Share id to the pods that hold it."""
        return {entry.id: entry.pods or "?" for entry in self.held}

    @property
    def pods_by_gpu(self) -> dict[int, list[str]]:
        """GPU index to the pods that hold shares of it."""
        indexes = self.gpu_of_share
        return grouped(
            (indexes[entry.id], entry.pods or "unknown") for entry in self.held if entry.id in indexes
        )


def withdrawn_in(planned: PlannedFrom | None) -> frozenset[Hold]:
    """Shares that are neither held nor free; none where it is not known what the planner looked at."""
    return frozenset() if planned is None else withdrawn(planned.snapshot.served, planned.snapshot.held)


class HealthDocument(Document, kw_only=True):
    """What a probe is told."""

    kind: Literal["Health"] = "Health"
    healthy: bool
    reasons: tuple[ReadinessReason, ...]
    degraded: tuple[ReadinessReason, ...]


class Unreadable(Frozen):
    """There is a report, and it cannot be used."""

    reason: str


def read_report(path: Path | None) -> ReportDocument | Unreadable | None:
    """The report at that path; None where there is none, or no path. Keys of newer versions are ignored."""
    if path is None:
        return None
    try:
        return decode(ReportDocument, read_regular(path, _LARGEST_BYTES), strict=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Unreadable(f"{path} cannot be read: {error.strerror}")
    except CodecError as error:
        return Unreadable(f"{path} is not a report of this version of Partage: {error}")


class ThisNode(Frozen):
    """The node on which a report is read; without a driver call, so that reading a report stays cheap.

    simulated: named with ``--machine``. boot_id: empty if it does not count (only its agent knows how often a
    simulated node has booted). gpus: UUIDs; empty if not known.
    """

    simulated: bool
    pid_namespace: str
    boot_id: str
    gpus: frozenset[GpuUuid]


def why_not_ours(agent: ReportingAgent, node: NodeRow, here: ThisNode, *, agent_runs: bool) -> str:
    """Why a report says nothing about this node now; empty if it does.

    agent, node: of the report. agent_runs: a process here has the agent's pid.
    """
    if node.simulated and not here.simulated:
        return "it is of a simulated node, which --machine has to name"
    if here.simulated and not node.simulated:
        return "it is of a real node"
    if here.boot_id and node.boot_id and here.boot_id != node.boot_id:
        return "it is of another node, or from before this node's last boot"
    if not _has_gpus_of(node, here):
        return "it is of a node with other GPUs"
    if agent.pid_namespace == here.pid_namespace and not agent_runs:
        return f"its agent (pid {agent.pid}) has ended"
    return ""


def _has_gpus_of(node: NodeRow, here: ThisNode) -> bool:
    """On a real node one GPU in common is enough: kernel and NVML can each list some that the other lacks."""
    gpus = {gpu.uuid for gpu in node.gpus} | _known(node.lost)
    if not gpus or not here.gpus:
        return True
    return gpus == here.gpus if here.simulated else not here.gpus.isdisjoint(gpus)


def _known(lost: Iterable[LostGpu]) -> set[GpuUuid]:
    return {gpu.uuid for gpu in lost if gpu.uuid is not None}


def this_node(machine: Inventory | None) -> ThisNode:
    """The node that is simulated, or this one as the kernel and the driver's files in /proc describe it."""
    from partage.edges.hardware.host import Host
    from partage.edges.host.procfs import pid_namespace

    namespace = pid_namespace(Path("/proc"))
    if machine is not None:
        uuids = {gpu.uuid for gpu in machine.gpus} | _known(machine.lost)
        return ThisNode(True, namespace, "", frozenset(uuids))
    host = Host()
    found = (host.gpu_uuid(address) for address in host.gpu_addresses())
    return ThisNode(False, namespace, host.boot_id(), frozenset(uuid for uuid in found if uuid is not None))
