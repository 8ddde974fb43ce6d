"""One pass, without time or I/O of its own: what was seen and how the node stood in, how it stands now out.

Health first, so that what is offered is known to be well; then each GPU steps towards what is wanted of it;
then the rows that the kubelet shall know.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from partage.model.gpu import Gpu
from partage.model.health import (
    Event,
    GpuCondition,
    Health,
    NodeBooted,
    Unresponsive,
    Xid,
    keep_instances,
    next_health,
)
from partage.model.ids import ResourceName
from partage.model.policy import MigStrategy
from partage.model.share import DeviceRow, GpuOffer, NodeOffer
from partage.model.xid import DEFAULT_RULES, XidRules
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.known_node import GONE, KnownNode
from partage.plan.reconcile.transition import (
    GpuServing,
    ListedShare,
    answerable,
    due_s,
    listed,
    transition,
    waiting,
)
from partage.plan.serve.ledger import Entry, Held


@dataclass(frozen=True, slots=True)
class TurnInput:
    """What is known when a turn begins.

    node: None until the node was observed once. fresh: it was observed since the last turn.
    wish: None while no policy could be laid over the node.
    conditions: since the last turn, None: not asked meanwhile. silent: why nobody can be asked, else empty.
    held: by the kubelet's word, its version that of the ledger. holders_known: the kubelet's word has come.
    unwell: devices whose shares cannot be used at this moment, and why.
    in_hand: GPUs that we are changing at this moment: they keep what they serve, and that they do not answer
    is no news.
    """

    now_s: float
    node: KnownNode | None = None
    fresh: bool = False
    wish: DesiredState | None = None
    xids: tuple[Xid, ...] = ()
    conditions: tuple[GpuCondition, ...] | None = None
    silent: str = ""
    booted: bool = False
    held: Held = field(default_factory=Held)
    held_version: int = 0
    entries: tuple[Entry, ...] = ()
    holders_known: bool = True
    unwell: Mapping[str, str] = field(default_factory=dict)
    in_hand: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeState:
    """How the node stands between two turns.

    restored: GPUs whose serving was read from the state file; they do not move before it is known who holds
    them.
    """

    serving: Mapping[str, GpuServing] = field(default_factory=dict)
    health: Mapping[str, Health] = field(default_factory=dict)
    restored: frozenset[str] = frozenset()


_RowsKey = tuple[Mapping[str, GpuServing], int, Mapping[str, bool]]


@dataclass(frozen=True, slots=True)
class KubeletView:
    """What the kubelet shall know, and what is answered. key: what it was made of.

    late: ids that were withdrawn, and until when an Allocate that was under way is answered for them.
    """

    key: _RowsKey
    by_resource: Mapping[ResourceName, tuple[DeviceRow, ...]]
    gpu_of: Mapping[str, str]
    offer: NodeOffer
    late: Mapping[str, float] = field(default_factory=dict)


NO_ROWS = KubeletView(({}, -1, {}), {}, {}, {})


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What one pass came to.

    waiting: GPUs that wait to change, and the held ids that each waits for.
    due_s: when the next pass can change something by the passing of time alone, None: never.
    """

    standing: NodeState
    rows: KubeletView
    waiting: Mapping[str, tuple[Entry, ...]]
    due_s: float | None


def turn(
    seen: TurnInput, before: NodeState, rows: KubeletView, settle_s: float, rules: XidRules = DEFAULT_RULES
) -> TurnResult:
    """One pass. rows: those of the last pass, kept where nothing in them changes."""
    health = _healths(seen, before, rules)
    gpu_of = _gpu_of(seen.node)
    restored = frozenset() if seen.holders_known else before.restored
    serving = _serving(seen, before.serving, restored, gpu_of, settle_s)
    health = {gpu: health.get(gpu, Health()) for gpu in (*serving, *health)}
    return TurnResult(
        standing=NodeState(serving, health, restored),
        rows=_rows(seen, NodeState(serving, health, restored), gpu_of, rows, settle_s),
        waiting=waiting(serving, seen.entries, gpu_of),
        due_s=due_s(serving, settle_s),
    )


# --- health --------------------------------------------------------------------------------------


def _healths(seen: TurnInput, before: NodeState, rules: XidRules) -> dict[str, Health]:
    known = seen.node.known if seen.node else {}
    gpus = dict.fromkeys((*known, *before.serving, *before.health))
    healths = {}
    for gpu in gpus:
        health = before.health.get(gpu, Health())
        for event in _events(gpu, seen):
            health = next_health(health, event, seen.now_s, rules)
        healths[gpu] = _without_old_instances(gpu, health, seen)
    return healths


def _events(gpu: str, seen: TurnInput) -> Iterator[Event]:
    """What befell one GPU since the last turn, in the order in which it counts."""
    if seen.booted:
        yield NodeBooted()
    yield from (xid for xid in seen.xids if xid.gpu in (gpu, None))
    if seen.silent:
        yield Unresponsive(seen.silent)
        return
    if gpu in seen.in_hand:
        yield from (one for one in seen.conditions or () if one.gpu == gpu and one.lost is None)
        return
    if seen.fresh and seen.node is not None and seen.node.inventory.gpu(gpu) is None:
        yield GpuCondition(gpu, lost=GONE)
    elif seen.fresh and seen.node is not None and gpu in seen.node.lost:
        yield GpuCondition(gpu, lost=seen.node.lost[gpu])
    yield from (condition for condition in seen.conditions or () if condition.gpu == gpu)


def _without_old_instances(gpu: str, health: Health, seen: TurnInput) -> Health:
    found = seen.node.inventory.gpu(gpu) if seen.node and seen.fresh else None
    if found is None or not health.instances or seen.node is None or gpu in seen.node.lost:
        return health
    return keep_instances(health, frozenset(device.gi_id for device in found.mig_devices))


# --- what is served ------------------------------------------------------------------------------


def _serving(
    seen: TurnInput,
    serving: Mapping[str, GpuServing],
    restored: frozenset[str],
    gpu_of: Mapping[str, str],
    settle_s: float,
) -> dict[str, GpuServing]:
    """The next step of every GPU that may take one. A GPU that nobody can see keeps what it serves."""
    if seen.wish is None or seen.node is None:
        return dict(serving)
    seen_gpus = {gpu.uuid for gpu in seen.node.inventory}
    unseen = {gpu for gpu in serving if gpu not in seen_gpus}
    still = unseen | {gpu for gpu in (*restored, *seen.in_hand) if gpu in serving}
    moving = {gpu: now for gpu, now in serving.items() if gpu not in still}
    wanted = {gpu: offer for gpu, offer in seen.wish.offer.items() if gpu not in still}
    moved = transition(moving, wanted, seen.held, seen.now_s, settle_s, gpu_of=gpu_of)
    order = [gpu.uuid for gpu in seen.node.inventory] + sorted(unseen)
    both = {**moved, **{gpu: serving[gpu] for gpu in still}}
    return {gpu: both[gpu] for gpu in order if gpu in both}


def _gpu_of(node: KnownNode | None) -> dict[str, str]:
    known = node.known.values() if node else ()
    return {device.uuid: gpu.uuid for gpu in known for device in gpu.mig_devices}


# --- what the kubelet shall know -----------------------------------------------------------------


def _rows(
    seen: TurnInput, standing: NodeState, gpu_of: Mapping[str, str], before: KubeletView, settle_s: float
) -> KubeletView:
    serving = standing.serving
    offer = answerable(serving)
    offered = _offered(seen, offer, standing.health)
    key: _RowsKey = (serving, seen.held_version, offered)
    if key == before.key and gpu_of == before.gpu_of:
        return before
    found = listed(serving, seen.held, gpu_of)
    rows = {
        name: tuple(_device_rows(resource_rows, offered))
        for name, resource_rows in found.items()
        if _is_ours(resource_rows)
    }
    late = _late(serving, rows, before, seen.now_s, settle_s)
    return KubeletView(key, rows, gpu_of, offer, late)


def _is_ours(rows: Sequence[ListedShare]) -> bool:
    """Not a resource of which only shares are left that are on no GPU of this node."""
    return not rows or any(row.gpu for row in rows)


def _late(
    serving: Mapping[str, GpuServing],
    rows: Mapping[ResourceName, Sequence[DeviceRow]],
    before: KubeletView,
    now_s: float,
    settle_s: float,
) -> dict[str, float]:
    """Ids that were withdrawn a moment ago, and until when they are answered.

    An id may be withdrawn long after its GPU began to wait: when its holder gave it back. The kubelet may be
    giving it to the next pod at that moment.
    """
    moving = [now for now in serving.values() if now.draining or now.leaving]
    if not moving:
        return {}
    told = {row.id for resource_rows in rows.values() for row in resource_rows}
    told_before = {row.id for resource_rows in before.by_resource.values() for row in resource_rows}
    late: dict[str, float] = {}
    for now in moving:
        began_s = math.inf if now.draining_since_s is None else now.draining_since_s
        going = (*now.offer, *now.leaving) if now.draining else now.leaving
        for offering in going:
            for share in offering.share_ids:
                if share not in told:
                    withdrawn_s = max(began_s, now_s) if share in told_before else began_s
                    late[share] = max(withdrawn_s + settle_s, before.late.get(share, 0.0))
    return late


def _device_rows(rows: Iterable[ListedShare], offered: Mapping[str, bool]) -> Iterator[DeviceRow]:
    for row in rows:
        if row.offering is None:
            yield DeviceRow(row.id, healthy=False)
        else:
            yield DeviceRow(row.id, offered[row.offering.device], row.offering.numa_node)


def _offered(seen: TurnInput, offer: NodeOffer, health: Mapping[str, Health]) -> dict[str, bool]:
    """Device UUID to whether its shares go to the kubelet as Healthy.

    Whoever destroys a device under its holder leaves an id that is listed until the pod has ended: the next
    pod shall not get it.
    """
    known = seen.node.known if seen.node else {}
    instances = {device.uuid: device.gi_id for gpu in known.values() for device in gpu.mig_devices}
    return {
        offering.device: offering.device not in away and health[uuid].offered(instances.get(offering.device))
        for uuid, offerings in offer.items()
        for away in [seen.unwell.keys() | _gone(offerings, known.get(uuid), seen.wish)]
        for offering in offerings
    }


def _gone(offer: GpuOffer, gpu: Gpu | None, wish: DesiredState | None) -> set[str]:
    """Devices of one GPU that do not live any more: MIG devices, and the GPU itself in MIG mode."""
    if gpu is None:
        return set()
    there = {device.uuid for device in gpu.mig_devices}
    if not gpu.mig_enabled or (wish and wish.policy.options.mig_strategy is MigStrategy.NONE):
        there.add(gpu.uuid)
    return {offering.device for offering in offer} - there


def after_restart(standing: NodeState) -> NodeState:
    """What was read from the state file: nothing moves before it is known who holds what."""
    return replace(standing, restored=frozenset(standing.serving))
