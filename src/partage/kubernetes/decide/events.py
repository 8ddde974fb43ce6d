"""What happened between two reports, as events that an admin reads in the cluster: how many a node may make
(a fault that flaps must not fill the cluster with them), and the UIDs of the pods that they are about, by
which ``kubectl describe pod`` finds them. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping

from msgspec import field
from msgspec.structs import replace

from partage.model.ids import PodUid
from partage.model.node_labels import MIG_CONFIG
from partage.model.share import CheckpointHolds
from partage.plan.cluster.conditions import certain_holder, faults_of, pods_of, standing
from partage.plan.reconcile.node_plan import GpuPlan, Phase
from partage.plan.report import UNASKED, GpuReport, MigConfigState, PolicyReason, PolicyState, Report
from partage.plan.serve.ledger_entry import LedgerEntry
from partage.text import count_of, gpus
from partage.values import Frozen, grouped


class PodName(Frozen, order=True):
    """A pod by its name. uid: empty where it is not known."""

    namespace: str
    name: str
    uid: str = ""


class NodeEvent(Frozen):
    """One event. about: the pod, None: the Node. reason, action: one word in CamelCase. note: a sentence.
    warning: something is wrong.
    """

    reason: str
    note: str
    action: str
    warning: bool = False
    about: PodName | None = None


def node_events(before: Report | None, now: Report) -> tuple[NodeEvent, ...]:
    """The events between two reports; of the first one, what is wrong. The same of several GPUs is one event.

    An agent that starts again tells nothing that was told before, unless it is wrong.
    """
    return (*_policy(before, now), *_layout(before, now), *_gathered(before, now))


def _policy(before: Report | None, now: Report) -> Iterator[NodeEvent]:
    policy, old = now.policy, before.policy if before else None
    if policy.reason is PolicyReason.IN_FORCE:
        told = old is None or (old.reason, old.digest, old.message) == (
            policy.reason,
            policy.digest,
            policy.message,
        )
        if not told and policy.state is not PolicyState.NONE:
            yield NodeEvent("PolicyInForce", policy.message, "TakePolicy")
    elif policy.reason.held_back:
        known = policy.problems != () and policy.problems[0].message != UNASKED.message
        now_said = policy.reason, policy.message, policy.wanted
        if known and (old is None or (old.reason, old.message, old.wanted) != now_said):
            stopped = policy.reason is PolicyReason.ROLLOUT_STOPPED
            yield NodeEvent(policy.reason.camel, policy.message, "KeepPolicy", warning=stopped)
    elif policy.reason is not PolicyReason.LABELS_UNKNOWN and (old is None or old.message != policy.message):
        yield NodeEvent("PolicyRefused", policy.message, "KeepPolicy", warning=True)


def _layout(before: Report | None, now: Report) -> Iterator[NodeEvent]:
    """The layout that a label of the Node asks for; that it is there, its GPUs say."""
    asked, old = now.mig_config, before.mig_config if before else None
    if asked is not None and asked.state is MigConfigState.FAILED and asked != old:
        note = f"label {MIG_CONFIG} asks for {asked.name}: {asked.reason}"
        yield NodeEvent("MigLayoutFailed", note, "ChangeGpu", warning=True)


def _gathered(before: Report | None, now: Report) -> Iterator[NodeEvent]:
    """Events of GPUs, whose notes begin after the name of the GPU."""
    old = {gpu.uuid: gpu for gpu in before.gpus} if before else {}
    alike = grouped((event, gpu.index) for gpu in now.gpus for event in _gpu(old.get(gpu.uuid), gpu))
    for event, indexes in alike.items():
        note = f"{gpus(indexes)}{event.note}"
        yield NodeEvent(event.reason, note, event.action, event.warning, event.about)


def _gpu(before: GpuReport | None, now: GpuReport) -> Iterator[NodeEvent]:
    yield from _health(before, now)
    if now.plan is not None:
        yield from _change(before.plan if before else None, now.plan, now)


def _health(before: GpuReport | None, now: GpuReport) -> Iterator[NodeEvent]:
    faults, earlier = faults_of(now), faults_of(before) if before else ()
    for what in faults:
        if what not in earlier:
            yield NodeEvent("GpuUnhealthy", f": {what}; no container gets it", "WithdrawGpu", warning=True)
    if earlier and not faults:
        yield NodeEvent("GpuHealthy", ": healthy again", "OfferGpu")


_PENDING = (
    Phase.WAITING,
    Phase.WITHDRAWING,
    Phase.READY,
    Phase.CHANGING,
    Phase.VERIFYING,
    Phase.FAILED,
    Phase.BLOCKED,
)


def _change(before: GpuPlan | None, now: GpuPlan, gpu: GpuReport) -> Iterator[NodeEvent]:
    phase = before.phase if before else Phase.UNKNOWN
    match now.phase:
        case Phase.WAITING:
            yield from _waits(before, now)
        case Phase.FAILED if phase is not Phase.FAILED or (before and before.reason != now.reason):
            yield NodeEvent("ChangeFailed", f" {standing(now)}", "ChangeGpu", warning=True)
        case Phase.BLOCKED if phase is not Phase.BLOCKED or (before and before.reason != now.reason):
            yield NodeEvent("ChangeImpossible", f" {standing(now)}", "ChangeGpu", warning=True)
        case Phase.SETTLED if phase in _PENDING:
            strategy = gpu.strategy or "not offered"
            yield NodeEvent("ChangeDone", f": as the policy wants it, {strategy}", "ChangeGpu")


def _waits(before: GpuPlan | None, now: GpuPlan) -> Iterator[NodeEvent]:
    """Told when a pod is waited for that was not before, not when one of several has gone."""
    known = set(pods_of(before.waiting_for)) if before and before.phase is Phase.WAITING else set()
    waited = before is not None and before.phase is Phase.WAITING
    if waited and set(pods_of(now.waiting_for)) <= known:
        return
    yield NodeEvent("ChangeWaits", f" {standing(now)}", "WaitForPods")
    holders = {certain_holder(entry) for entry in now.waiting_for} - {None}
    for pod in sorted({PodName(holder.namespace, holder.pod) for holder in holders if holder is not None}):
        if f"{pod.namespace}/{pod.name}" not in known:
            note = " can only change its sharing when this pod has ended"
            yield NodeEvent("ChangeWaitsForPod", note, "WaitForPods", about=pod)


BURST, REFILL_S = 5, 120.0
"""Of one kind about one object: so many at once, then one in so many seconds."""

NODE_BURST, NODE_REFILL_S = 60, 10.0
"""Of a node together. client-go allows 25 about one object, then one in 300 s."""

_FULL_S = max(BURST * REFILL_S, NODE_BURST * NODE_REFILL_S)
"""After so many seconds without an event a bucket is full, and need not be kept."""


class _Bucket(Frozen):
    """left: events at ``at_s``. withheld: events of it that were not made."""

    left: float
    at_s: float
    withheld: int = 0


class EventBudget(Frozen):
    """What is left. Empty: nothing was made yet."""

    buckets: Mapping[Hashable, _Bucket] = field(default_factory=dict)

    def take(self, event: NodeEvent, now_s: float) -> tuple[EventBudget, NodeEvent | None]:
        """The budget after this event; and the event, with how many like it were withheld, or None if it is
        withheld itself.
        """
        kind = _refilled(self.buckets.get((event.about, event.reason)), BURST, REFILL_S, now_s)
        node = _refilled(self.buckets.get(None), NODE_BURST, NODE_REFILL_S, now_s)
        may = kind.left >= 1 and node.left >= 1
        if may:
            more = f" ({count_of(kind.withheld, 'event')} like this not shown)" if kind.withheld else ""
            event = replace(event, note=event.note + more)
            kind, node = _Bucket(kind.left - 1, now_s), _Bucket(node.left - 1, now_s)
        else:
            kind = replace(kind, withheld=kind.withheld + 1)
        kept = {key: one for key, one in self.buckets.items() if now_s - one.at_s < _FULL_S}
        buckets = {**kept, (event.about, event.reason): kind, None: node}
        return EventBudget(buckets), event if may else None


def _refilled(bucket: _Bucket | None, burst: int, refill_s: float, now_s: float) -> _Bucket:
    if bucket is None:
        return _Bucket(burst, now_s)
    left = min(burst, bucket.left + (now_s - bucket.at_s) / refill_s)
    return _Bucket(left, now_s, bucket.withheld)


def with_uids(
    events: Iterable[NodeEvent], entries: Collection[LedgerEntry], holds: CheckpointHolds
) -> tuple[NodeEvent, ...]:
    """The events, with the UIDs of their pods where these are certain. holds: of the kubelet's checkpoint."""
    return tuple(_with_uid(event, entries, holds) for event in events)


def _with_uid(event: NodeEvent, entries: Collection[LedgerEntry], holds: CheckpointHolds) -> NodeEvent:
    if event.about is None or event.about.uid:
        return event
    return replace(event, about=replace(event.about, uid=_uid(event.about, entries, holds)))


def _uid(pod: PodName, entries: Collection[LedgerEntry], holds: CheckpointHolds) -> PodUid:
    """Empty where the checkpoint names another number of pods than one for an id that the pod holds."""
    named: set[frozenset[PodUid]] = set()
    for entry in entries:
        holder = certain_holder(entry)
        if holder is not None and (holder.namespace, holder.pod) == (pod.namespace, pod.name):
            named.add(holds.get(entry.resource, {}).get(entry.id, frozenset()))
    return next(iter(named.pop())) if len(named) == 1 and len(next(iter(named))) == 1 else PodUid("")
