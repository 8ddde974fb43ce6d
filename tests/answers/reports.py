"""Reports as the agent's loop makes them: one real turn on a simulated node."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from partage.agent.options import Intervals
from partage.agent.status.readiness import Readiness
from partage.agent.status.status import AgentStatus, UseSeen, WatchObservation
from partage.answers.documents.report import ReportDocument
from partage.answers.report import report_document
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.gpu import ComputeMode
from partage.model.health import Xid
from partage.model.ids import ResourceName, ShareId
from partage.model.mps import DaemonPhase, DaemonState
from partage.model.share import ContainerHold
from partage.plan.gpu_health import HealthNews
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.reconcile.known_node import with_observed
from partage.plan.reconcile.node_plan import Observed, Snapshot
from partage.plan.reconcile.planner import Planner
from partage.plan.reconcile.settings_steps import OriginalSettings
from partage.plan.reconcile.transition import GpuServing
from partage.plan.report import (
    DependencyProblems,
    PolicyReport,
    PolicyState,
    Report,
    ReportTime,
    gpu_reports,
    resource_reports,
)
from partage.plan.serve.kubelet_view import EMPTY_VIEW
from partage.plan.serve.ledger import Ledger
from partage.plan.turn import NodeState, TurnInput, turn
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware

INTERVALS = Intervals()
AT_S = 1_700_000_000.0
"""When the reports were made, by the clock of the world."""


def a_report(
    machine: str,
    policy_text: str,
    now_s: float = 1000.0,
    *,
    held: Mapping[ResourceName, Sequence[int]] | None = None,
    pods: Sequence[tuple[str, str, str]] = (),
    faults: Mapping[int, int] | None = None,
    served: bool = True,
    wanted: str | None = None,
    held_for_s: float = 10.0,
    daemons_serve: bool = False,
) -> Report:
    """held: resource to the positions of its shares, in the offer's order, that are held, for held_for_s.

    pods: namespace, pod, container of each of them, as far as they go. faults: GPU index to an XID. served:
    the GPUs have served what the policy says before this turn. wanted: the policy that is in force since the
    last turn, if it is another one. daemons_serve: the MPS daemons of the policy run as they should.
    """
    inventory = asyncio.run(SimulatedHardware(load_machine(machine)).observe())
    node = with_observed(None, inventory)
    policy = parse_policy(policy_text, "policy.yaml").policy
    desired = resolve(policy, inventory, geometry_of)
    ids: dict[ResourceName, list[ShareId]] = {}
    for offer in desired.offer.values():
        for offering in offer:
            ids.setdefault(offering.resource, []).extend(offering.share_ids)
    ledger, names, holds = Ledger(), iter(pods), []
    for resource, positions in (held or {}).items():
        for position in positions:
            share = ids[resource][position]
            ledger.allocated(resource, [share], now_s - held_for_s)
            if (name := next(names, None)) is not None:
                holds.append(ContainerHold(*name, resource, (share,)))
    ledger.observed(holds, now_s - 5)
    now = Snapshot(
        now_s,
        Observed(node, daemons=_daemons(desired) if daemons_serve else ()),
        {gpu: GpuServing(offer) for gpu, offer in desired.offer.items() if served},
        original={gpu: OriginalSettings(ComputeMode.DEFAULT) for gpu in desired.settings if daemons_serve},
        held=ledger.held(),
        entries=ledger.entries(),
    )
    xids = tuple(Xid(inventory.gpus[index].uuid, code) for index, code in (faults or {}).items())
    if wanted is not None:
        policy = parse_policy(wanted, "policy.yaml").policy
        desired = resolve(policy, inventory, geometry_of)
        first = TurnInput(now, desired, held_version=ledger.version)
        state = turn(first, NodeState(now.served), EMPTY_VIEW, Planner(geometry_of)).state
        now = replace(now, served=state.serving)
    seen = TurnInput(now, desired, HealthNews(xids=xids), held_version=ledger.version)
    done = turn(seen, NodeState(now.served), EMPTY_VIEW, Planner(geometry_of))
    return Report(
        made=ReportTime(at_s=AT_S, clock_s=now_s, number=12, took_s=0.001),
        node=node,
        offer=done.view.offer,
        gpus=gpu_reports(now, done, desired, ledger.entries()),
        resources=resource_reports(done.view.by_resource, ledger.entries(), done.view.withdrawn),
        entries=ledger.entries(),
        policy=PolicyReport(PolicyState.FILE, "policy.yaml", None, "0" * 64),
        dependencies=DependencyProblems(),
        policy_in_force=policy,
        snapshot=now,
    )


def _daemons(desired: DesiredState) -> tuple[DaemonState, ...]:
    specs = [spec for settings in desired.settings.values() for spec in settings.daemons]
    return tuple(
        DaemonState(one.gpu, one.device, DaemonPhase.SERVING, 7, (), one.limits, multi_user=True)
        for one in specs
    )


def a_document(
    report: Report, watched: WatchObservation | None = None, used: UseSeen | None = None
) -> ReportDocument:
    """The document of a report, of an agent that is well."""
    status = AgentStatus(lambda: report.made.clock_s, report, watch_observation=lambda: watched)
    if used is not None:
        status.use_seen = lambda: used
    return report_document(report, status, Readiness((), ()))
