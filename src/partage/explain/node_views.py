"""Nodes for ``explain``: what an agent's report says of one, or what a policy would offer there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.answers.node_plan import with_made_devices
from partage.edges.files.catalogue import geometry_of
from partage.errors import InputError, Unsatisfiable
from partage.explain.decide.pod_and_node import (
    Changing,
    Cordoned,
    GpuView,
    NodeView,
    Obstacle,
    Unhealthy,
    free_shares,
)
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.policy import Options
from partage.plan.labels import node_labels
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.reconcile.node_plan import Phase
from partage.plan.report import MigConfigState, PolicyReason

if TYPE_CHECKING:  # the report imports all of the agent's status
    from partage.answers.documents.report import PlannedFrom, ReportDocument, ReportedGpuRow
    from partage.answers.node_plan import PolicyOnNode

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
    held = Counter(name for name, _ in view.held)
    by_memory = {row.resource for rows in view.offer.values() for row in rows if row.by_memory}
    free = free_shares(view)
    narrowed = frozenset(
        row.name
        for row in report.resources
        if row.name in by_memory and row.healthy < len(free.get(row.name, ())) + held[row.name]
    )
    return replace(view, narrowed=narrowed) if narrowed else view
