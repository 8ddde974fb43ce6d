"""Nodes for ``explain`` as a cluster has them: what the scheduler looks at, and what Partage wrote there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from partage.errors import InputError
from partage.explain.decide.amounts import PODS, Unit
from partage.explain.decide.pod_and_node import (
    Cordoned,
    Counted,
    GpuView,
    NodeView,
    Obstacle,
    PodNeeds,
)
from partage.explain.decide.reasons import NodeTaintView
from partage.explain.pod_needs import amount_of, pods_of
from partage.model.ids import MEMORY_RESOURCE, DeviceUuid, GpuUuid, device_of
from partage.model.node_labels import DOMAIN, NodeTaint
from partage.model.share import DeviceOffer, GpuOffer, Guarantee
from partage.model.strategy import Strategy
from partage.plan.cluster.conditions import CLAIMS_SAID, GPUS_HEALTHY, POLICY_IN_FORCE, READY
from partage.plan.cluster.gpu_memory import GPU_MEMORY, NodeMemory, read_memory
from partage.plan.serve.cordon import CORDONED, names_in
from partage.plan.serve.ledger_entry import Hold
from partage.text import gpus, listed
from partage.values import Frozen, grouped

Object = Mapping[str, Any]

NO_REPORT = (
    "which GPU has what is known to the agent of the node only: give its report.json with --reports FOLDER"
)
_KUBELET_READY = "Ready"
_NOT_PREPARED = "FailedPrepareDynamicResources"
_ENDED = ("Succeeded", "Failed")
_UNDER_WAY = "Change"
"""What the reasons of PartagePolicyInForce begin with while the policy is in force and GPUs change."""


class Condition(Frozen):
    """A condition of a Node or pod. status: ``True``, ``False`` or ``Unknown``."""

    status: str
    reason: str
    message: str


def at(document: object, *keys: str) -> Any:  # noqa: ANN401 - JSON of others has no better type
    """What is below these keys; None where there is nothing."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def text_at(document: object, *keys: str) -> str:
    """The text below these keys; empty where there is none."""
    found = at(document, *keys)
    return found if isinstance(found, str) else ""


def rows_at(document: object, *keys: str) -> list[Object]:
    """The objects of the list below these keys."""
    found = at(document, *keys)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def texts_at(document: object, *keys: str) -> dict[str, str]:
    """The mapping of texts below these keys."""
    found = at(document, *keys)
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, Mapping) else {}


def conditions_of(document: Object) -> dict[str, Condition]:
    """The conditions of a Node or pod, by type."""
    return {
        text_at(row, "type"): Condition(*(text_at(row, key) for key in ("status", "reason", "message")))
        for row in rows_at(document, "status", "conditions")
    }


def pod_name_of(pod: Object) -> str:
    """``namespace/name``."""
    return f"{text_at(pod, 'metadata', 'namespace')}/{text_at(pod, 'metadata', 'name')}"


def views_of_cluster(
    nodes: Sequence[Object], pods: Sequence[Object], reported: Mapping[str, NodeView]
) -> tuple[NodeView, ...]:
    """Every Node. reported: what the agents of some say of their GPUs, by name."""
    by_node = grouped(
        (text_at(pod, "spec", "nodeName"), pod)
        for pod in pods
        if text_at(pod, "status", "phase") not in _ENDED
    )
    return tuple(
        _view(node, by_node.get(name, []), reported.get(name))
        for node in nodes
        for name in [text_at(node, "metadata", "name")]
    )


def _view(node: Object, pods: Sequence[Object], reported: NodeView | None) -> NodeView:
    name, conditions = text_at(node, "metadata", "name"), conditions_of(node)
    known = reported or _annotated(node, NodeView(name, trouble=_false(conditions, READY)))
    return replace(
        known,
        name=name,
        policy_trouble=known.policy_trouble or _policy_trouble(conditions),
        claims_trouble=known.claims_trouble or _claims_trouble(conditions),
        labels=texts_at(node, "metadata", "labels"),
        all_labels=True,
        taints=tuple(_taints(node, conditions)),
        unschedulable=at(node, "spec", "unschedulable") is True,
        not_ready=_not_ready(conditions),
        counted=_counted(node, pods),
        in_cluster=True,
    )


def _false(conditions: Mapping[str, Condition], kind: str) -> str:
    condition = conditions.get(kind)
    return (
        condition.message or condition.reason if condition is not None and condition.status == "False" else ""
    )


def _policy_trouble(conditions: Mapping[str, Condition]) -> str:
    condition = conditions.get(POLICY_IN_FORCE)
    return (
        ""
        if condition is None or condition.reason.startswith(_UNDER_WAY)
        else _false(conditions, POLICY_IN_FORCE)
    )


def _claims_trouble(conditions: Mapping[str, Condition]) -> str:
    """Why claims get nothing, or not all, as the node's agent says it."""
    condition = conditions.get(READY)
    return "" if condition is None else condition.message.partition(CLAIMS_SAID)[2]


def _not_ready(conditions: Mapping[str, Condition]) -> str:
    condition = conditions.get(_KUBELET_READY)
    if condition is None or condition.status == "True":
        return ""
    return condition.message or condition.reason or "its kubelet says nothing"


def _taints(node: Object, conditions: Mapping[str, Condition]) -> Iterator[NodeTaintView]:
    why = {
        NodeTaint.NOT_READY.key: _false(conditions, READY),
        NodeTaint.GPU_UNHEALTHY.key: _false(conditions, GPUS_HEALTHY),
    }
    for row in rows_at(node, "spec", "taints"):
        key, value, effect = (text_at(row, word) for word in ("key", "value", "effect"))
        yield NodeTaintView(key, value, effect, why.get(key, ""))


# --- what the scheduler counts ------------------------------------------------------------------------


def _counted(node: Object, pods: Sequence[Object]) -> dict[str, Counted]:
    users = grouped(
        (resource, (pod_name_of(pod), amount))
        for pod in pods
        for resource, amount in {**_totals(pod), PODS: 1}.items()
    )
    found = {}
    for resource, value in texts_at(node, "status", "allocatable").items():
        total = _amount(resource, value)
        if total or resource in users:
            found[resource] = Counted(total, tuple(users.get(resource, ())))
    return found


def _totals(pod: Object) -> Mapping[str, int]:
    try:
        (needs,) = pods_of({**pod, "kind": "Pod"})
    except InputError:  # the API server has taken it; what cannot be read here is not counted
        return {}
    return needs.totals


def _amount(resource: str, value: str) -> int:
    try:
        return amount_of(resource, value)
    except ValueError:
        return 0


# --- what Partage wrote to the Node -------------------------------------------------------------------


def _annotated(node: Object, view: NodeView) -> NodeView:
    """With the GPUs that are shared by amounts of memory, from the annotation that ``inspect`` reads."""
    notes = texts_at(node, "metadata", "annotations")
    memory = read_memory(notes.get(GPU_MEMORY, ""))
    if memory is None:
        return view
    devices = [(GpuUuid(f"card-{units.index}-{place}"), units) for place, units in enumerate(memory.devices)]
    offer: dict[GpuUuid, GpuOffer] = {
        uuid: (_row(uuid, device.index, device.total, device.unit_bytes),) for uuid, device in devices
    }
    cordoned = names_in(notes.get(CORDONED, ""))
    obstacles: dict[DeviceUuid, tuple[Obstacle, ...]] = {
        uuid: (Cordoned(),) for uuid, device in devices if str(device.index) in cordoned
    }
    return replace(
        view,
        gpus=tuple(GpuView(device.index, uuid) for uuid, device in devices),
        offer=offer,
        held=_held(memory, [rows[0] for rows in offer.values()]),
        obstacles=obstacles,
    )


def _row(uuid: GpuUuid, index: int, units: int, unit_bytes: int) -> DeviceOffer:
    return DeviceOffer(
        device=uuid,
        gpu=uuid,
        index=str(index),
        gpu_index=index,
        resource=MEMORY_RESOURCE,
        strategy=Strategy.MPS,
        shared=Strategy.MPS,
        replicas=units,
        memory_bytes=unit_bytes,
        guarantee=Guarantee.NONE,
        count=units,
        by_memory=True,
    )


def _held(memory: NodeMemory, rows: Sequence[DeviceOffer]) -> dict[Hold, str]:
    """Numbers of units, as many as each pod holds: which of them they are makes no difference."""
    held: dict[Hold, str] = {}
    next_unit: Counter[int] = Counter()
    for pod in memory.pods:
        for place, units in enumerate(pod.units):
            for _ in range(min(units, rows[place].count - next_unit[place])):
                share = rows[place].share_id(next_unit[place])
                held[MEMORY_RESOURCE, share] = f"{pod.namespace}/{pod.name}" if pod.name else ""
                next_unit[place] += 1
    for place, device in enumerate(memory.devices):  # of pods that the annotation leaves out
        while next_unit[place] < min(device.used, device.total):
            held[MEMORY_RESOURCE, rows[place].share_id(next_unit[place])] = ""
            next_unit[place] += 1
    return held


# --- a pod that is there ------------------------------------------------------------------------------


def standing_of(pod: Object, events: Sequence[Object]) -> str:
    """How a pod stands that is bound to no node, or was refused by one, a sentence or two."""
    name, said = pod_name_of(pod), []
    gates = [text_at(row, "name") for row in rows_at(pod, "spec", "schedulingGates")]
    phase, reason = text_at(pod, "status", "phase"), text_at(pod, "status", "reason")
    message = text_at(pod, "status", "message")
    if text_at(pod, "metadata", "deletionTimestamp"):
        said.append(f"{name} is being deleted.")
    if gates:
        said.append(
            f"Its scheduling gates keep it from every node: {', '.join(gates)}; who set them takes them away."
        )
    if phase == "Failed":
        where = text_at(pod, "spec", "nodeName")
        said.append(f"Node {where or '?'} refused or ended it ({reason or 'Failed'}): {message}".rstrip(": "))
    scheduled = conditions_of(pod).get("PodScheduled")
    if scheduled is not None and scheduled.status == "False" and scheduled.message:
        said.append(f"The scheduler says: {scheduled.message}")
    elif (newest := _newest_warning(events)) and phase != "Failed":
        said.append(f"Its last event says: {newest}")
    return " ".join(said)


def start_trouble(pod: Object, events: Sequence[Object]) -> str:
    """Why a pod that is bound to a node does not start there, a sentence: a claim that the node refuses.
    Empty: it runs, or nobody says.
    """
    newest = _newest_warning([row for row in events if text_at(row, "reason") == _NOT_PREPARED])
    if text_at(pod, "status", "phase") != "Pending" or not newest:
        return ""
    return f"It does not start: {newest}"


def running_since(pod: Object) -> str:
    """`` since 2026-03-01T09:30:00Z``; empty for a pod that has not started."""
    since = text_at(pod, "status", "startTime")
    return f" since {since}" if since else ""


def holdings_on_node(needs: PodNeeds, view: NodeView | None) -> str:
    """What a pod holds as far as the Node says it: sentences that follow how it stands."""
    asks = [f"{Unit(name).text(amount)} ({container.words})" for container, name, amount in needs.asks]
    if needs.claims_at:
        return f" It has devices by {listed(sorted(needs.claims_at), 6)}."
    if not asks:
        return " It asks for no GPU and holds none."
    text = f" It holds {listed(asks, 8)}"
    if view is None:
        return f"{text}; the node is not in the cluster any more."
    guarantees = [
        f"{name}: {word} ({Guarantee(word).means})"
        for name in dict.fromkeys(name for _, name, _ in needs.asks)
        if (word := view.labels.get(f"{DOMAIN}/{name.partition('/')[2]}.guarantee", "")) in set(Guarantee)
    ]
    devices = sorted({device_of(hold[1]) for hold, holder in view.held.items() if holder == needs.key})
    indexes = [gpu.index for gpu in view.gpus if gpu.uuid in devices]
    where = f", of {gpus(indexes)}" if indexes else ""
    promised = f" The least that the node guarantees: {'; '.join(guarantees)}." if guarantees else ""
    return (
        f"{text}{where}.{promised} Which shares these are: --reports FOLDER, or partage explain on the node."
    )


def _newest_warning(events: Sequence[Object]) -> str:
    warnings = [row for row in events if text_at(row, "type") == "Warning"]
    newest = max(warnings, key=_moment, default=None)
    return "" if newest is None else f"{text_at(newest, 'reason')}: {text_at(newest, 'message')}"


def _moment(event: Object) -> str:
    return max(
        text_at(event, "lastTimestamp"),
        text_at(event, "eventTime"),
        text_at(event, "series", "lastObservedTime"),
        text_at(event, "metadata", "creationTimestamp"),
    )
