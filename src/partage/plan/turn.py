"""One turn of the agent's loop, without clock or I/O: from the observations to the new state of the node.

First the plan, then health, then the rows for the kubelet.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from msgspec import field
from msgspec.structs import replace

from partage.model.gpu import PAUSED, NoDriver
from partage.model.health import Health
from partage.model.ids import DeviceUuid, GpuUuid, ResourceName
from partage.model.policy import MigStrategy
from partage.model.xid import DEFAULT_RULES, XidRules
from partage.plan.gpu_health import HealthNews, healths_after
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.known_node import KnownNode
from partage.plan.reconcile.node_plan import NodePlan, Snapshot
from partage.plan.reconcile.planner import Planner
from partage.plan.reconcile.transition import GpuServing, answerable_offer
from partage.plan.serve.kubelet_view import KubeletView, ShareHealth, kubelet_view
from partage.plan.serve.unit_allocation import RefusedAmounts
from partage.text import count_of
from partage.values import Frozen


class TurnInput(Frozen):
    """The input of a turn.

    snapshot: of the node. desired: None while no policy could be resolved. news: since the last turn.
    held_version: of the ledger. refused: amounts of memory that no device had free. answered_s: when the
    kubelet was asked the last question that it has answered. bare: why containers would not have the driver's
    libraries, else empty.
    """

    snapshot: Snapshot
    desired: DesiredState | None = None
    news: HealthNews = HealthNews()
    held_version: int = 0
    answered_s: float = -inf
    refused: Mapping[ResourceName, RefusedAmounts] = field(default_factory=dict)
    bare: str = ""

    @property
    def node(self) -> KnownNode:
        """The node as last observed."""
        return self.snapshot.observed.node


class NodeState(Frozen):
    """The state that a turn passes to the next one.

    restored: GPUs whose serving was read from the state file, until their holders are known. absent: GPUs
    that were served before the node booted and have not answered since.
    """

    serving: Mapping[GpuUuid, GpuServing] = field(default_factory=dict)
    health: Mapping[GpuUuid, Health] = field(default_factory=dict)
    restored: frozenset[GpuUuid] = frozenset()
    absent: frozenset[GpuUuid] = frozenset()


class TurnResult(Frozen):
    """The output of a turn."""

    state: NodeState
    view: KubeletView
    plan: NodePlan


def turn(
    seen: TurnInput,
    before: NodeState,
    view: KubeletView,
    planner: Planner,
    rules: XidRules = DEFAULT_RULES,
) -> TurnResult:
    """One turn. view: that of the last turn, kept where nothing in it changes."""
    now = replace(seen.snapshot, absent=_absent(seen, before))
    plan = planner.plan(seen.desired, now)
    healths = healths_after(
        seen.node, seen.news, before.health, before.serving, rules, now_s=now.now_s, in_hand=now.in_hand
    )
    left = now.departed - plan.serving.keys()
    health = {gpu: healths.get(gpu, Health()) for gpu in (*plan.serving, *healths) if gpu not in left}
    strategy = seen.desired.policy.options.mig_strategy if seen.desired else None
    share_health = ShareHealth(
        seen.node.known,
        health,
        _unusable(seen, plan),
        whole=strategy is MigStrategy.NONE,
        cordoned=now.cordoned,
    )
    new_view = kubelet_view(
        plan.serving,
        share_health,
        now.held,
        seen.held_version,
        view,
        now_s=now.now_s,
        applied_s=seen.answered_s - planner.withdraw_s,
        refused=seen.refused,
    )
    state = NodeState(plan.serving, health, before.restored & now.unknown, now.absent)
    return TurnResult(state, new_view, _with_blocked(plan, new_view))


def _with_blocked(plan: NodePlan, view: KubeletView) -> NodePlan:
    """GPUs that wait say so if free shares of other GPUs cannot be given meanwhile."""
    if not view.blocked:
        return plan
    gpus = dict(plan.gpus)
    for gpu, entries in plan.waiting.items():
        names = {entry.resource for entry in entries} & view.blocked.keys()
        if gpu in gpus and names:
            shares = " and ".join(
                f"{count_of(view.blocked[name], 'free share')} of {name}" for name in sorted(names)
            )
            gpus[gpu] = replace(gpus[gpu], reason=f"{gpus[gpu].reason}; until then {shares} cannot be given")
    return replace(plan, gpus=gpus)


def _unusable(seen: TurnInput, plan: NodePlan) -> Mapping[DeviceUuid, str]:
    """Devices whose shares cannot be used: all of them while the driver is paused, because it is known to
    go, and while containers would not have its libraries. A driver that only does not answer may be back in a
    moment.
    """
    driver = seen.node.inventory.driver
    paused = driver.reason if isinstance(driver, NoDriver) and driver.kind == PAUSED else ""
    if not (reason := paused or seen.bare):
        return plan.unusable
    served = (device.device for devices in answerable_offer(plan.serving).values() for device in devices)
    return {**dict.fromkeys(served, reason), **plan.unusable}


def after_restart(state: NodeState) -> NodeState:
    """The state from the state file: nothing changes before the holders are known."""
    return replace(state, restored=frozenset(state.serving))


def _absent(seen: TurnInput, before: NodeState) -> frozenset[GpuUuid]:
    served = frozenset(before.serving)
    return (served if seen.news.booted else before.absent & served) - seen.node.answering
