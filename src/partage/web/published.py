"""What a cluster says of a node with GPUs: what its agent has published on the Node, and what pods ask for.

It is less than the agent's own report. What is not published is None or empty here, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from partage.codec.values import CodecError, decode
from partage.edges.kube.port import GPU_COUNT, ClusterNode, ClusterPod, NodeCondition, Taint
from partage.model.ids import MEMORY_RESOURCE, VENDOR
from partage.model.node_labels import DOMAIN, MIG_CONFIG, MIG_CONFIG_STATE, POLICY_LABELS
from partage.plan.cluster.conditions import (
    GPUS_HEALTHY,
    PLAN,
    POLICY_IN_FORCE,
    READY,
    PendingGpu,
    PendingPlan,
)
from partage.plan.cluster.gpu_memory import GPU_MEMORY, NodeMemory, read_memory
from partage.plan.cluster.rollout import ROLLOUT, RolloutNote, read_note
from partage.plan.serve.cordon import CORDONED, names_in
from partage.values import Frozen

KUBELET = "Ready"
"""The condition that the kubelet writes: whether the node works at all."""

CONDITIONS = (READY, GPUS_HEALTHY, POLICY_IN_FORCE)
"""The conditions that the agent writes."""

_AGENT = {"app.kubernetes.io/name": "partage", "app.kubernetes.io/component": "agent"}
"""Labels of the agent's pods, where the chart has installed it."""

_GUARANTEE = ".guarantee"
_ENDED = ("Succeeded", "Failed")


class PublishedResource(Frozen):
    """One resource of a Node. capacity, allocatable: as the kubelet says it. requested: of all pods of the
    node; None: the pods are not known. guarantee: the weakest of its shares; empty: not published.
    """

    name: str
    capacity: int
    allocatable: int
    requested: int | None
    guarantee: str


class PublishedNode(Frozen):
    """One Node.

    kubelet: its condition Ready; None: it has none. conditions: the agent's, in the order of CONDITIONS.
    models: GPU model to how many. facts: other labels that describe the GPUs, by key. pods: those that ask
    for its resources, by name; agents: names of pods of the agent; both None: they are not known.
    pending: GPUs that are not as the policy wants them. memory: None: no GPU is shared by amounts. policy:
    the label that chooses it; layout: that asks for a MIG layout, and what became of it. taints: of the
    agent.
    """

    name: str
    kubelet: NodeCondition | None
    conditions: tuple[NodeCondition, ...]
    models: tuple[tuple[str, int], ...]
    facts: Mapping[str, str]
    resources: tuple[PublishedResource, ...]
    pods: tuple[ClusterPod, ...] | None
    agents: tuple[str, ...] | None
    pending: tuple[PendingGpu, ...] = ()
    memory: NodeMemory | None = None
    rollout: RolloutNote | None = None
    cordoned: tuple[str, ...] = ()
    policy: str = ""
    layout: str = ""
    taints: tuple[str, ...] = ()
    unschedulable: bool = False

    def condition(self, kind: str) -> NodeCondition | None:
        """One of the agent's conditions; None: it has not published it."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


def is_agent(pod: ClusterPod) -> bool:
    """Whether it is a pod of the chart's agent."""
    return _AGENT.items() <= pod.labels.items()


def is_of_interest(pod: ClusterPod) -> bool:
    """Whether anything of the pod can be shown: it asks for an extended resource, or is the agent's."""
    return bool(pod.requests) or is_agent(pod)


def published(node: ClusterNode, pods: Iterable[ClusterPod] | None) -> PublishedNode | None:
    """pods: of this node; None: not known. None for a node without GPUs."""
    conditions = tuple(
        condition for kind in CONDITIONS for condition in node.conditions if condition.type == kind
    )
    names = [name for name in sorted({*node.capacity, *node.allocatable}) if _is_shared(name, node.labels)]
    if not (conditions or names or node.labels.get(f"{VENDOR}/gpu.present") == "true"):
        return None
    here = None if pods is None else [pod for pod in pods if pod.phase not in _ENDED]
    memory = read_memory(node.annotations.get(GPU_MEMORY, ""))
    return PublishedNode(
        name=node.name,
        kubelet=next((condition for condition in node.conditions if condition.type == KUBELET), None),
        conditions=conditions,
        models=tuple(sorted(_models(node.labels))),
        facts={key: value for key, value in sorted(node.labels.items()) if key.startswith(f"{VENDOR}/")},
        resources=tuple(_resource(name, node, here) for name in names),
        pods=None
        if here is None
        else tuple(sorted((pod for pod in here if not pod.requests.keys().isdisjoint(names)), key=_name)),
        agents=None
        if here is None
        else tuple(f"{pod.namespace}/{pod.name}" for pod in here if is_agent(pod)),
        pending=_pending(node.annotations.get(PLAN, "")),
        memory=memory,
        rollout=read_note(node.annotations.get(ROLLOUT, "")),
        cordoned=tuple(sorted(names_in(node.annotations.get(CORDONED, "")))),
        policy=next((node.labels[key] for key in POLICY_LABELS if node.labels.get(key)), ""),
        layout=_layout(node.labels),
        taints=tuple(_taint(taint) for taint in node.taints if taint.key.startswith(f"{DOMAIN}/")),
        unschedulable=node.unschedulable,
    )


def _is_shared(name: str, labels: Mapping[str, str]) -> bool:
    """Whether a resource is one of GPUs: the agent says what it guarantees, or its name says it."""
    domain, _, rest = name.partition("/")
    return name != GPU_COUNT and (
        domain == VENDOR or name == MEMORY_RESOURCE or f"{DOMAIN}/{rest}{_GUARANTEE}" in labels
    )


def _resource(name: str, node: ClusterNode, pods: Iterable[ClusterPod] | None) -> PublishedResource:
    return PublishedResource(
        name=name,
        capacity=node.capacity.get(name, 0),
        allocatable=node.allocatable.get(name, 0),
        requested=None if pods is None else sum(pod.requests.get(name, 0) for pod in pods),
        guarantee=node.labels.get(f"{DOMAIN}/{name.partition('/')[2]}{_GUARANTEE}", ""),
    )


def _models(labels: Mapping[str, str]) -> Iterable[tuple[str, int]]:
    """``partage.dev/gpu.<model>``; the guarantee of ``nvidia.com/gpu`` has such a key, too."""
    before = f"{DOMAIN}/gpu."
    for key, value in labels.items():
        if key.startswith(before) and not key.endswith(_GUARANTEE) and value.isascii() and value.isdigit():
            yield key.removeprefix(before), int(value)


def _name(pod: ClusterPod) -> tuple[str, str]:
    return pod.namespace, pod.name


def _pending(text: str) -> tuple[PendingGpu, ...]:
    try:
        return decode(PendingPlan, text.encode(errors="replace"), strict=False).gpus if text else ()
    except CodecError:  # someone else has written it
        return ()


def _layout(labels: Mapping[str, str]) -> str:
    asked = labels.get(MIG_CONFIG, "")
    return f"{asked}: {labels.get(MIG_CONFIG_STATE) or 'not begun'}" if asked else ""


def _taint(taint: Taint) -> str:
    return f"{taint.key}:{taint.effect}"
