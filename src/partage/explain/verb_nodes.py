"""The nodes of ``explain``: this one, simulated ones, those of reports, those of a cluster; what a report
says of one, and what a policy would offer there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from msgspec import field
from msgspec.structs import replace

from partage.answers import common_node, common_options, common_output
from partage.answers.node_plan import with_made_devices
from partage.answers.process_start import lean_imports
from partage.edges.files.catalogue import geometry_of
from partage.errors import DaemonError, InputError, Unsatisfiable
from partage.explain.decide.pod_and_node import (
    Changing,
    Cordoned,
    GpuView,
    NodeView,
    Obstacle,
    Unhealthy,
    free_shares,
)
from partage.model.ids import DeviceUuid, GpuUuid, ResourceName
from partage.model.policy import Options
from partage.plan.labels import node_labels
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.reconcile.node_plan import Phase
from partage.plan.report import MigConfigState, PolicyReason
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.answers.documents.report import PlannedFrom, ReportDocument, ReportedGpuRow
    from partage.answers.node_plan import PolicyOnNode
    from partage.edges.files.policy import LoadedPolicy
    from partage.edges.kube.reading import Object


CLAIMS_NOT_SERVED = "claims-not-served"
"""The reason in the agent's report; see docs/reference/probes.md."""
NO_GPU = "the node has no NVIDIA GPU"

_UNSETTLED = (Phase.WAITING, Phase.WITHDRAWING, Phase.READY, Phase.CHANGING, Phase.VERIFYING)


def view_of_plan(name: str, planned: PolicyOnNode, labels: Mapping[str, str] | None) -> NodeView:
    """The node as its policy would have it, with nobody on it. labels: None: those that Partage would
    write.
    """
    offer, inventory = with_made_devices(planned.policy, planned.inventory, planned.offer)
    lost = {gpu.uuid or GpuUuid(f"lost-{gpu.index}"): gpu for gpu in inventory.lost}
    gpus = [GpuView(gpu.index, gpu.uuid, gpu.product) for gpu in inventory]
    gpus += [GpuView(gpu.index, uuid) for uuid, gpu in lost.items()]
    would = node_labels(inventory, planned.offer, planned.policy.options, geometry_of)
    return NodeView(
        name=name,
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        offer=offer,
        obstacles={uuid: (Unhealthy(f"it does not answer: {gpu.reason}"),) for uuid, gpu in lost.items()},
        links=inventory.links,
        allocation=planned.policy.options.allocation,
        trouble="" if inventory.gpus or inventory.lost else NO_GPU,
        policy=planned.policy,
        inventory=inventory,
        demands=planned.desired.on_demand,
        labels=would if labels is None else {**would, **labels},
        all_labels=labels is not None,
    )


def view_of_report(name: str, report: ReportDocument, labels: Mapping[str, str] | None = None) -> NodeView:
    """The node as its agent reports it. labels: None: those that the agent knows."""
    seen = report.planner_input
    desired = None if seen is None else _desired(seen)
    known = labels if labels is not None else None if seen is None else seen.labels
    inventory = None if seen is None else seen.snapshot.observed.node.inventory
    options = Options() if seen is None else seen.policy.options
    trouble, hint = _trouble(report)
    view = NodeView(
        name=name,
        gpus=tuple(GpuView(gpu.index, gpu.uuid, gpu.product) for gpu in report.gpus),
        offer=report.offer,
        wanted=None if desired is None else desired.offer,
        held={(entry.resource, entry.id): entry.pods for entry in report.held},
        obstacles=_obstacles(report, seen, desired),
        links=() if inventory is None else inventory.links,
        allocation=options.allocation,
        trouble=trouble,
        hint=hint,
        policy=None if seen is None else seen.policy,
        inventory=inventory,
        demands={} if desired is None else desired.on_demand,
        policy_trouble=_policy_trouble(report),
        labels={**_own_labels(report, seen), **(known or {})},
        all_labels=known is not None,
        claims_trouble=_claims_trouble(report),
    )
    return _narrowed(view, report)


def _desired(seen: PlannedFrom) -> DesiredState | None:
    try:
        inventory = seen.snapshot.observed.node.inventory
        return resolve(seen.policy, inventory, geometry_of, seen.snapshot.demands)
    except (InputError, Unsatisfiable):
        return None


def _own_labels(report: ReportDocument, seen: PlannedFrom | None) -> Mapping[str, str]:
    if seen is None:
        return {}
    return node_labels(seen.snapshot.observed.node.inventory, report.offer, seen.policy.options, geometry_of)


def _trouble(report: ReportDocument) -> tuple[str, str]:
    """Why the node can give nothing at all, and what to do; empty: it can."""
    driver = report.node.driver
    if driver.state != "ok":
        return driver.reason or "there is no usable driver", driver.hint or ""
    return ("" if report.gpus else NO_GPU), ""


def _claims_trouble(report: ReportDocument) -> str:
    return next((finding.message for finding in report.degraded if finding.code == CLAIMS_NOT_SERVED), "")


def _policy_trouble(report: ReportDocument) -> str:
    label = report.mig_config
    if report.policy.reason is not PolicyReason.IN_FORCE:
        return report.policy.message
    if label is not None and label.state is MigConfigState.FAILED:
        return (
            f"the MIG layout {label.name}, which a label of the node asks for, is not there: {label.reason}"
        )
    return ""


# --- why nobody gets a free share -----------------------------------------------------------------


def _obstacles(
    report: ReportDocument, seen: PlannedFrom | None, desired: DesiredState | None
) -> dict[DeviceUuid, tuple[Obstacle, ...]]:
    """Of each device, the worst first."""
    found: dict[DeviceUuid, dict[Obstacle, None]] = {}
    served = _away(report, seen, desired)
    instances = {
        (gpu.uuid, device.gpu_instance): device.uuid for gpu in report.node.gpus for device in gpu.mig_devices
    }
    for gpu in report.gpus:
        devices = {gpu.uuid, *(row.device for row in report.offer.get(gpu.uuid, ()))}
        for device in devices:
            found.setdefault(device, {}).update(dict.fromkeys(_health(gpu)))
        for gi_id, health in gpu.instances.items():
            if not health.state.offered and (mig := instances.get((gpu.uuid, gi_id))) is not None:
                found.setdefault(mig, {})[Unhealthy(health.reason or str(health.state))] = None
        for device in devices:
            if device in served:
                found[device][_changing(gpu, served[device])] = None
            if gpu.cordoned:
                found[device][Cordoned()] = None
    return {device: tuple(some) for device, some in found.items() if some}


def _health(gpu: ReportedGpuRow) -> Iterator[Obstacle]:
    if gpu.lost:
        yield Unhealthy(f"it does not answer: {gpu.lost}")
    elif not gpu.health.state.offered:
        yield Unhealthy(gpu.health.reason or str(gpu.health.state))


def _changing(gpu: ReportedGpuRow, why: str) -> Changing:
    pods = tuple(dict.fromkeys(entry.pods or f"?{entry.id}" for entry in gpu.waiting_for))
    text = (why or gpu.reason or "its policy has changed").removeprefix(f"GPU {gpu.index} ")
    return Changing(gpu.phase or Phase.UNKNOWN, text.removeprefix(f"GPU {gpu.index}: "), pods)


def _away(
    report: ReportDocument, seen: PlannedFrom | None, desired: DesiredState | None
) -> dict[DeviceUuid, str]:
    """Devices whose free shares are withdrawn, or cannot be used yet, and why; empty: the GPU's reason."""
    away: dict[DeviceUuid, str] = {}
    if seen is None:  # of another version: what the phases say
        for gpu in report.gpus:
            if gpu.phase in _UNSETTLED:
                away |= dict.fromkeys((gpu.uuid, *(row.device for row in report.offer.get(gpu.uuid, ()))), "")
        return away
    for uuid, now in seen.snapshot.served.items():
        rows = (*now.offer, *now.leaving) if now.draining else now.leaving
        away |= dict.fromkeys((row.device for row in rows), "")
        if now.draining:
            away[uuid] = ""
    whole = {row.device for rows in report.offer.values() for row in rows}
    for gpu in report.gpus:
        if gpu.phase not in (None, Phase.SETTLED) and gpu.uuid not in whole:
            away.setdefault(gpu.uuid, "")
    return {**_unusable(seen, desired), **away}


def _unusable(seen: PlannedFrom, desired: DesiredState | None) -> Mapping[DeviceUuid, str]:
    """As the agent's planner says."""
    from partage.plan.reconcile.planner import plan_node

    return {} if desired is None else plan_node(desired, seen.snapshot, geometry_of).unusable


def _narrowed(view: NodeView, report: ReportDocument) -> NodeView:
    """After a refused amount, the node lists less than what is free (plan.serve.fragmentation)."""
    held: dict[ResourceName, int] = {}
    for name, _ in view.held:
        held[name] = held.get(name, 0) + 1
    by_memory = {row.resource for rows in view.offer.values() for row in rows if row.by_memory}
    free = free_shares(view)
    narrowed = frozenset(
        row.name
        for row in report.resources
        if row.name in by_memory and row.healthy < len(free.get(row.name, ())) + held.get(row.name, 0)
    )
    return replace(view, narrowed=narrowed) if narrowed else view


_NO_AGENT = "no agent runs here: who holds what is not known, so every share counts as free"

T = TypeVar("T")


class Where(Frozen):
    """What the command line says about nodes."""

    policy: str | None
    config: str | None
    machines: tuple[str, ...]
    reports: Path | None
    run_dir: str | None
    kubeconfig: str | None
    in_cluster: bool


class SeenNodes(Frozen):
    """Nodes, what to know about each, and the reports that they are from, as far as there are any."""

    nodes: tuple[NodeView, ...]
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reports: Mapping[str, ReportDocument] = field(default_factory=dict)


def see_nodes(where: Where) -> SeenNodes:
    """The nodes without a cluster. Raises PartageError."""
    _check(where)
    if where.reports is not None:
        return _of_folder(where.reports)
    loaded: list[LoadedPolicy] = []  # standard input can be read once
    found = [_one_node(where, machine, loaded) for machine in where.machines or (None,)]
    names = _distinct([node.name for node, _, _ in found])
    rows = [(name, node, remarks, report) for name, (node, remarks, report) in zip(names, found, strict=True)]
    return SeenNodes(
        tuple(replace(node, name=name) for name, node, _, _ in rows),
        {name: remarks for name, _, remarks, _ in rows},
        {name: report for name, _, _, report in rows if report is not None},
    )


def _check(where: Where) -> None:
    if where.reports is not None and (
        where.machines or where.policy is not None or where.run_dir is not None
    ):
        raise click.UsageError("--reports goes without --machine, --policy and --run-dir")
    if len(where.machines) > 1 and where.run_dir is not None:
        raise click.UsageError("--run-dir is of one node, and --machine names several")


def _distinct(names: Sequence[str]) -> list[str]:
    """Nodes of one name get numbers."""
    return [
        name if names.count(name) == 1 else f"{name} #{names[: place + 1].count(name)}"
        for place, name in enumerate(names)
    ]


def _one_node(
    where: Where, machine: str | None, loaded: list[LoadedPolicy]
) -> tuple[NodeView, tuple[str, ...], ReportDocument | None]:
    """This node or a simulated one: as its agent reports it, or as the policy would have it. loaded: the
    policy, once it has been read.
    """
    import socket

    name = machine or socket.gethostname().partition(".")[0]
    report = common_node.agent_report(machine, where.run_dir)
    labels = common_options.node_labels()
    if report is not None and where.policy is None:
        return view_of_report(name, report, labels), report.messages, report
    from partage.answers.node_plan import make_plan

    if not loaded:
        loaded.append(common_node.read_policy(where.policy, where.config, report))
    planned = make_plan(loaded[0], machine, where.run_dir, report=report, named=where.policy is not None)
    common_output.print_problems(planned.warnings)
    return view_of_plan(name, planned, labels), () if machine else (_NO_AGENT,), None


def _of_folder(folder: Path) -> SeenNodes:

    nodes, remarks, reports = [], {}, {}
    for name, report, trouble in read_folder(folder):
        nodes.append(view_of_report(name, report))
        remarks[name] = (
            *((f"not up to date: {trouble}",) if trouble else ()),
            *report.messages,
        )
        reports[name] = report
    return SeenNodes(tuple(nodes), remarks, reports)


def read_folder(folder: Path) -> list[tuple[str, ReportDocument, str]]:
    """Name, report and trouble of each node of a folder. Raises InputError if there is none."""
    with lean_imports(tls=True):  # the module can ask agents, too
        from partage.serve_http.pages.sources import ReportFolder

    found = []
    for report in ReportFolder(folder).read():
        if report.report is None:
            common_output.print_problems(
                [
                    replace(problem, file=report.name, severity="warning")
                    for problem in InputError(report.trouble).problems
                ]
            )
        else:
            found.append((report.name, report.report, report.trouble))
    if not found:
        raise InputError(f"{folder} has no report that can be read", "files NAME.json, or NAME/report.json")
    return found


# --- a cluster ---------------------------------------------------------------------------------------


def see_cluster(where: Where, nodes: Sequence[Object], pods: Sequence[Object]) -> SeenNodes:
    """The nodes of a cluster, with what the agents of some report of their GPUs (``--reports``)."""
    from partage.explain.cluster_views import NO_REPORT, views_of_cluster

    if where.machines or where.policy is not None or where.run_dir is not None:
        raise click.UsageError("with a cluster, nodes are not named with --machine, --policy or --run-dir")
    reported = SeenNodes(()) if where.reports is None else _of_folder(where.reports)
    views = views_of_cluster(nodes, pods, {node.name: node for node in reported.nodes})
    blind = {view.name: (NO_REPORT,) for view in views if view.names and not view.gpus}
    return SeenNodes(views, {**blind, **reported.remarks}, reported.reports)


def need_reports(seen: SeenNodes) -> Mapping[str, ReportDocument]:
    """The reports. Raises DaemonError where there is none."""
    if not seen.reports:
        raise DaemonError(
            "no agent runs here, and only an agent knows who holds what",
            "partage explain on the node of the GPU, or --reports DIR",
        )
    return seen.reports
