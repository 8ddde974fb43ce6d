"""The agent's report after a turn: itself and its node, and what changed since the one before, as events for
the log. Immutable; answers.report writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import field
from msgspec.structs import replace

from partage.errors import Problem
from partage.model.health import Health, HealthState, HealthStatus
from partage.model.ids import DeviceUuid, GpuUuid, JobCgroup, ResourceName, ShareId, device_of
from partage.model.mps import DaemonState
from partage.model.node_labels import NodeLabels
from partage.model.policy import Drain, Policy
from partage.model.share import DeviceRow, GpuOffer, Guarantee, NodeOffer
from partage.model.strategy import Strategy
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.known_node import KnownNode
from partage.plan.reconcile.node_plan import GpuPlan, Phase, Snapshot
from partage.plan.reconcile.transition import GpuServing
from partage.plan.serve.ledger_entry import NAMED, Certainty, HeldLimit, LedgerEntry
from partage.values import Answer, Frozen

if TYPE_CHECKING:
    from partage.plan.turn import TurnResult

_CERTAIN = (*NAMED, Certainty.CLAIMED)


class PolicyState(StrEnum):
    """Which policy is in force.

    built-in:  none was named: every GPU is exclusive. file: the file, as it is now.
    last-good: the file is wrong or does not fit the node; the last good policy is in force.
    none:      no policy could be applied to the node yet (there is no driver).
    """

    BUILT_IN = "built-in"
    FILE = "file"
    LAST_GOOD = "last-good"
    NONE = "none"


class PolicyReason(StrEnum):
    """Whether the policy that was asked for is in force, and why not.

    unknown-name: a label or the default names one that is not there. none-chosen: of a directory, neither
    label nor default nor fallback chooses one. labels-unknown: the labels decide and are not known yet.
    wrong: the file is wrong. does-not-fit: the node cannot have it. rollout-waits, rollout-paused,
    rollout-stopped: it is held back, because other nodes change, a person has paused it, or it has failed.
    """

    IN_FORCE = "in-force"
    UNKNOWN_NAME = "unknown-name"
    NONE_CHOSEN = "none-chosen"
    LABELS_UNKNOWN = "labels-unknown"
    WRONG = "wrong"
    DOES_NOT_FIT = "does-not-fit"
    ROLLOUT_WAITS = "rollout-waits"
    ROLLOUT_PAUSED = "rollout-paused"
    ROLLOUT_STOPPED = "rollout-stopped"

    @property
    def held_back(self) -> bool:
        """The node could have it, and will once the rollout reaches it."""
        return self in (self.ROLLOUT_WAITS, self.ROLLOUT_PAUSED, self.ROLLOUT_STOPPED)

    @property
    def camel(self) -> str:
        """As conditions and events of Kubernetes have it: ``UnknownName``."""
        return "".join(part.capitalize() for part in self.value.split("-"))


class HeldBack(Frozen):
    """Why a rollout keeps a policy from being put in force now. message: a sentence."""

    reason: PolicyReason
    message: str


UNASKED = HeldBack(PolicyReason.ROLLOUT_WAITS, "it is not known yet whether it is this node's turn to change")
"""As long as the cluster has not been asked."""


class PolicyInForce(Frozen):
    """The policy in force. problems: of the one that was asked for; reason: whether that one is in force, and
    why not. config: its name in a directory, or which configuration of a file. digest: of its text.
    """

    state: PolicyState
    source: str = ""
    config: str | None = None
    digest: str = ""
    problems: tuple[Problem, ...] = ()
    reason: PolicyReason = PolicyReason.IN_FORCE


class PolicyReport(PolicyInForce):
    """The policy in force, and the problems of the one that was asked for.

    chosen_by: ``label partage.dev/policy``, ``default``, ``fallback named``; empty where there is no choice.
    revision: of the policy in force, wanted: of the one that was asked for, wanted_config its name; empty if
    it is not known.
    """

    warnings: tuple[Problem, ...] = ()
    chosen_by: str = ""
    revision: str = ""
    wanted: str = ""
    wanted_config: str = ""

    @property
    def message(self) -> str:
        """``reason`` for people, one sentence: for a condition of the Node, or an event."""
        name = self.config or self.source or "every GPU exclusive"
        if self.reason is PolicyReason.IN_FORCE:
            return f"the policy in force is {name}" + (f", by {self.chosen_by}" if self.chosen_by else "")
        if self.reason.held_back:
            why = self.problems[0].message if self.problems else self.reason
            return f"the policy of before stays in force for now: {why}"
        text = str(self.problems[0]) if self.problems else self.reason
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        if self.state is PolicyState.NONE:
            return f"no policy is in force: {text}{more}"
        return f"{name} stays in force: {text}{more}"


class GpuReport(Frozen):
    """One GPU.

    lost: why it does not answer, empty if it does. strategy: of its offer now, wanted: of the desired offer;
    None for no offer. plan: phase, reason, remaining steps, what it waits for; None: there is no plan.
    drain: how pods are asked to leave before it changes; None: it waits until they end.
    cordoned: nobody gets another share of it.
    held: number of shares that are held. daemons: its MPS daemons, those of its MIG devices too.
    """

    uuid: GpuUuid
    index: int
    product: str
    health: HealthStatus
    instances: Mapping[int, HealthStatus]
    lost: str
    strategy: Strategy | None
    wanted: Strategy | None
    plan: GpuPlan | None
    offer: GpuOffer
    held: int
    daemons: tuple[DaemonState, ...] = ()
    drain: Drain | None = None
    cordoned: bool = False

    @property
    def waits(self) -> bool:
        """It will change its offer, and waits for holders or for the kubelet."""
        return self.plan is not None and self.plan.phase in (Phase.WAITING, Phase.WITHDRAWING)


class ResourceReport(Frozen):
    """One resource: shares listed to the kubelet, healthy ones among them, held ones.

    withdrawn: free ones among the listed that will be left out when the kubelet has seen that.
    """

    name: ResourceName
    listed: int
    healthy: int
    held: int
    withdrawn: int = 0


class MigConfigState(StrEnum):
    """What became of the layout that the label of the Node asks for; the words are mig-manager's."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"
    REBOOTING = "rebooting"


class MigConfigReport(Answer):
    """What became of the layout that the label ``nvidia.com/mig.config`` asks for. state: None: not known
    yet. reason: a sentence; may be empty.
    """

    name: str
    state: MigConfigState | None
    reason: str = ""


class DependencyProblems(Frozen):
    """Why something that the agent depends on does not work; empty if it works.

    hardware: the helper process. kubelet: which resources it has not accepted, or reads no lists of, for
    longer than a restart of it takes. pod_resources: the kubelet's PodResources. checkpoint: the kubelet's
    checkpoint of held ids. processes: nobody can look for processes that are left of pods, so the kubelet's
    word alone ends a hold. state_dir: the state directory. cdi: the CDI spec. guard: the guard's files.
    api_server: the API server of the cluster, where the Node is kept up to date. history: the files of the
    history of use. claims: the DRA driver. limits: what sets the driver's memory limits of containers.
    """

    hardware: str = ""
    kubelet: str = ""
    pod_resources: str = ""
    checkpoint: str = ""
    processes: str = ""
    state_dir: str = ""
    cdi: str = ""
    guard: str = ""
    api_server: str = ""
    history: str = ""
    claims: str = ""
    limits: str = ""


class JobLimit(Frozen):
    """What was read of the driver's memory limit of a Slurm job on one GPU. job: its number. cgroup: what its
    cgroup is called by. user: its owner; empty: not known. guarantee: what is true of it now.
    """

    job: int
    cgroup: JobCgroup
    user: str
    gpu: GpuUuid
    guarantee: Guarantee
    limit: HeldLimit


class ReportTime(Frozen):
    """When a report was made.

    at_s: seconds since 1970; clock_s: on the agent's clock, like all other times in the report.
    number: of the turn; took_s: how long the turn took, in seconds.
    """

    at_s: float
    clock_s: float
    number: int
    took_s: float


class Report(Frozen):
    """One turn's outcome.

    offer: what is promised. policy_in_force, snapshot: what the planner looked at, so that others can plan as
    the agent does; None: there is no policy yet. watched: UUIDs of GPUs whose use is watched at this moment.
    doubts: why the limits of an MPS daemon may not be what was set, by its device.
    mig_config: what became of the label that asks for a layout; None: the node has no such label, or its
    labels are not known. labels: of the Node; None: not known. other_labels: who else writes the same
    labels, a sentence; empty for nobody. slurm_waits: why the node is not yet as Slurm is to have it; empty
    if it is, or if it is no node of Slurm. jobs: those of Slurm whose memory the driver is to limit.
    """

    made: ReportTime
    node: KnownNode
    offer: NodeOffer
    gpus: tuple[GpuReport, ...]
    resources: tuple[ResourceReport, ...]
    entries: tuple[LedgerEntry, ...]
    policy: PolicyReport
    dependencies: DependencyProblems
    policy_in_force: Policy | None = None
    snapshot: Snapshot | None = None
    watched: frozenset[GpuUuid] = frozenset()
    doubts: Mapping[DeviceUuid, str] = field(default_factory=dict)
    mig_config: MigConfigReport | None = None
    labels: NodeLabels | None = None
    other_labels: str = ""
    slurm_waits: str = ""
    jobs: tuple[JobLimit, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether nothing in it is to change, or is only known for some time."""
        return (
            all(_is_settled(gpu) for gpu in self.gpus)
            and all(entry.certainty in _CERTAIN for entry in self.entries)
            and self.dependencies == DependencyProblems()
            and not self.doubts
        )

    def without_moment(self) -> Report:
        """Equal for two reports that say the same, whenever that was."""
        snapshot = replace(self.snapshot, now_s=0.0) if self.snapshot else None
        return replace(self, made=ReportTime(0.0, 0.0, 0, 0.0), snapshot=snapshot)


def _is_settled(gpu: GpuReport) -> bool:
    """With MPS daemons it never is: whether their limits can be trusted is judged again and again."""
    settled = gpu.plan is not None and gpu.plan.phase is Phase.SETTLED
    healthy = gpu.health.state is HealthState.HEALTHY and not gpu.instances and not gpu.lost
    return settled and healthy and not gpu.daemons


def gpu_reports(
    seen: Snapshot, done: TurnResult, desired: DesiredState | None, entries: Sequence[LedgerEntry]
) -> tuple[GpuReport, ...]:
    """One per GPU that is known or served, ordered by index. One that has left the node is not, once nobody
    holds a share of it. seen: what was planned from."""
    observed = seen.observed
    node = observed.node
    serving = done.state.serving
    replaced = node.replaced - serving.keys()
    known = {uuid: gpu for uuid, gpu in node.known.items() if uuid not in replaced}
    held = _held_by_gpu(node, entries, done)
    reports = []
    for uuid in dict.fromkeys((*known, *serving)):
        now = serving.get(uuid, GpuServing(()))
        offer = (*now.offer, *now.leaving)
        if uuid not in known and not offer:
            continue
        gpu = known.get(uuid)
        health = done.state.health.get(uuid, Health())
        reports.append(
            GpuReport(
                uuid=uuid,
                index=gpu.index if gpu else offer[0].gpu_index,
                product=gpu.product if gpu else "",
                health=health.status(),
                instances=health.instances,
                lost=node.lost.get(uuid, ""),
                strategy=offer[0].strategy if offer else None,
                wanted=desired.strategies.get(uuid) if desired else None,
                plan=done.plan.gpus.get(uuid),
                offer=offer,
                held=held[uuid],
                daemons=observed.daemons_of(uuid),
                drain=desired.drain_of.get(uuid) if desired else None,
                cordoned=uuid in seen.cordoned,
            )
        )
    return tuple(sorted(reports, key=lambda report: report.index))


def _held_by_gpu(node: KnownNode, entries: Sequence[LedgerEntry], done: TurnResult) -> Counter[GpuUuid]:
    gpu_of: dict[DeviceUuid, GpuUuid] = {
        **done.view.gpu_of,
        **{gpu: gpu for gpu in (*node.known, *done.state.serving)},
    }
    for devices in done.view.offer.values():
        gpu_of |= {device.device: device.gpu for device in devices}
    held = (gpu_of.get(device_of(entry.id)) for entry in entries)
    return Counter(gpu for gpu in held if gpu is not None)


def resource_reports(
    rows: Mapping[ResourceName, Sequence[DeviceRow]],
    entries: Sequence[LedgerEntry],
    withdrawn: Mapping[ResourceName, Collection[ShareId]],
) -> tuple[ResourceReport, ...]:
    """One per resource that is or was offered."""
    held = Counter(entry.resource for entry in entries)
    return tuple(
        ResourceReport(
            name,
            len(listed),
            sum(row.healthy for row in listed),
            held[name],
            withdrawn=len(withdrawn.get(name, ())),
        )
        for name, listed in rows.items()
    )


class ReportEvent(Frozen):
    """One event: what happened, and the facts. warning: logged as one."""

    event: str
    facts: Mapping[str, object] = field(default_factory=dict)
    warning: bool = False


def diff_reports(before: Report | None, now: Report) -> Iterator[ReportEvent]:
    """The differences. The same event of several GPUs (their helper does not answer) is one event."""
    if before is now:
        return
    gpus = {gpu.uuid: gpu for gpu in before.gpus} if before else {}
    yield from _gathered(
        (gpu, event) for gpu in now.gpus if gpu.uuid in gpus for event in _gpu(gpus[gpu.uuid], gpu)
    )
    if now.mig_config is not None:
        yield from _mig_config(before.mig_config if before else None, now.mig_config)
    known = {entry.hold for entry in before.entries if entry.left} if before else set()
    for entry in now.entries:
        if entry.left and entry.hold not in known:
            facts = {"share": entry.id, "processes": [str(process) for process in entry.left]}
            yield ReportEvent("processes left", {**facts, "pod": entry.left[0].pod}, warning=True)
    resources = {resource.name: resource for resource in before.resources} if before else {}
    for resource in now.resources:
        yield from _resource(resources.get(resource.name), resource)


def _mig_config(before: MigConfigReport | None, now: MigConfigReport) -> Iterator[ReportEvent]:
    if before is None or (before.name, before.state) != (now.name, now.state):
        facts = {"config": now.name, "state": now.state, "reason": now.reason or None}
        yield ReportEvent("mig layout of the label", facts, warning=now.state is MigConfigState.FAILED)


def _gathered(events: Iterable[tuple[GpuReport, ReportEvent]]) -> Iterator[ReportEvent]:
    """The same event of several GPUs as one, which names their indexes."""
    alike: list[tuple[ReportEvent, list[GpuReport]]] = []
    for gpu, event in events:
        gpus = next((gpus for report_event, gpus in alike if report_event == event), None)
        if gpus is None:
            alike.append((event, [gpu]))
        else:
            gpus.append(gpu)
    for event, gpus in alike:
        yield ReportEvent(event.event, {**_who(gpus), **event.facts}, event.warning)


def _who(gpus: list[GpuReport]) -> dict[str, object]:
    if len(gpus) > 1:
        return {"gpus": [gpu.index for gpu in gpus]}
    return {"gpu": gpus[0].uuid, "index": gpus[0].index}


def _gpu(before: GpuReport, now: GpuReport) -> Iterator[ReportEvent]:
    """The events of one GPU, without its name."""
    if before.strategy is not now.strategy:
        yield ReportEvent("gpu changed", {"from": before.strategy, "to": now.strategy})
    waiting_for = now.plan.waiting_for if now.plan else ()
    if waiting_for and (before.plan is None or before.plan.waiting_for != waiting_for):
        holders = {f"{who.namespace}/{who.pod}" for entry in waiting_for for who in entry.holders}
        yield ReportEvent("gpu waits", {"for": sorted(holders) or None, "held": len(waiting_for)})
    conflict = now.plan.conflict if now.plan else ""
    if conflict and (before.plan is None or before.plan.conflict != conflict):
        yield ReportEvent("shares in conflict", {"reason": conflict}, warning=True)
    yield from _health("gpu health changed", {}, before.health, now.health)
    for gi in sorted({*before.instances, *now.instances}):
        phases = before.instances.get(gi, HealthStatus()), now.instances.get(gi, HealthStatus())
        yield from _health("gpu instance health changed", {"gi": gi}, *phases)


def _health(
    event: str, which: Mapping[str, object], before: HealthStatus, now: HealthStatus
) -> Iterator[ReportEvent]:
    if before.state is not now.state:
        facts = {**which, "from": before.state, "to": now.state, "reason": now.reason or None}
        yield ReportEvent(event, facts, warning=not now.state.offered)


def _resource(before: ResourceReport | None, now: ResourceReport) -> Iterator[ReportEvent]:
    if before is None or (before.listed, before.healthy) != (now.listed, now.healthy):
        yield ReportEvent(
            "shares listed", {"resource": now.name, "listed": now.listed, "healthy": now.healthy}
        )
