"""The health of a node's GPUs after what was observed since the last look. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from msgspec.structs import replace

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
from partage.model.ids import GpuUuid
from partage.model.xid import XidRules
from partage.plan.reconcile.known_node import GONE, KnownNode
from partage.values import Frozen


class HealthNews(Frozen):
    """What was observed since the last look.

    fresh: the node was observed. conditions: None: not asked. silent: why the GPUs cannot be observed, else
    empty. booted: the node has booted. A simulated one may do so while the agent runs.
    """

    fresh: bool = False
    xids: tuple[Xid, ...] = ()
    conditions: tuple[GpuCondition, ...] | None = None
    silent: str = ""
    booted: bool = False


def healths_after(
    node: KnownNode,
    news: HealthNews,
    before: Mapping[GpuUuid, Health],
    gpus: Iterable[GpuUuid],
    rules: XidRules,
    *,
    now_s: float,
    in_hand: Container[GpuUuid],
) -> dict[GpuUuid, Health]:
    """The health of these GPUs, of the known ones, and of those that had one before. in_hand: GPUs that are
    being changed, by UUID.
    """
    healths = {}
    for gpu in dict.fromkeys((*node.known, *gpus, *before)):
        health = before.get(gpu, Health())
        for event in _events(gpu, node, news, in_hand):
            health = next_health(health, event, now_s, rules)
        healths[gpu] = _without_old_instances(gpu, health, node, news)
    return healths


def _events(gpu: GpuUuid, node: KnownNode, news: HealthNews, in_hand: Container[GpuUuid]) -> Iterator[Event]:
    """The health events of one GPU since the last look, in the order in which they apply.

    A GPU that does not answer while it is being changed is expected, and no event.
    """
    if news.booted:
        yield NodeBooted()
    yield from (_located(xid, node.known.get(gpu)) for xid in news.xids if xid.gpu in (gpu, None))
    if news.silent:
        yield Unresponsive(news.silent)
        return
    conditions = [condition for condition in news.conditions or () if condition.gpu == gpu]
    if gpu in in_hand:
        yield from (condition for condition in conditions if condition.lost is None)
        return
    if news.fresh and node.inventory.gpu(gpu) is None:
        yield GpuCondition(gpu, lost=GONE)
    elif news.fresh and gpu in node.lost:
        yield GpuCondition(gpu, lost=node.lost[gpu])
    yield from conditions


def _located(xid: Xid, gpu: Gpu | None) -> Xid:
    """The XID, of the whole GPU where MIG mode is off: drivers may name instance 0 there."""
    return xid if gpu is not None and gpu.mig_enabled else replace(xid, gi_id=None, ci_id=None)


def _without_old_instances(gpu: GpuUuid, health: Health, node: KnownNode, news: HealthNews) -> Health:
    """Ids of GPU instances are reused: the health of instances that no longer exist is dropped."""
    observed = node.inventory.gpu(gpu) if news.fresh else None
    if observed is None or gpu in node.lost:
        return health
    return keep_instances(health, frozenset(device.gi_id for device in observed.mig_devices))
