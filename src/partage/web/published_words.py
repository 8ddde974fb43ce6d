"""What is said of a published node, in words. What is not published is called so, and is never 0."""

from __future__ import annotations

from collections.abc import Iterator

from partage.model.ids import VENDOR
from partage.model.strategy import Strategy
from partage.plan.cluster.conditions import GPUS_HEALTHY, POLICY_IN_FORCE, READY
from partage.web.published import PublishedNode, PublishedResource

NOT_PUBLISHED = "not published"
UNKNOWN = "not known"
"""It is in the cluster, and cannot be read now."""
TRUE = "True"
"""The status of a condition that holds."""

_SHARING = f"{VENDOR}/gpu.sharing-strategy"
_FACTS = {
    f"{VENDOR}/cuda.driver-version.full": "driver {}",
    f"{VENDOR}/gpu.memory": "at least {} MiB each",
    f"{VENDOR}/gpu.replicas": "{} shares of each",
    _SHARING: "sharing: {}",
}
"""Labels that are shown, and how."""


STATES = {
    "node not ready": "The kubelet of the node does not answer, or says that the node does not work.",
    "not ready": "The agent says that the node gives no shares to pods.",
    "GPUs unhealthy": "The agent says that GPUs of the node cannot be used.",
    "policy not in force": "The agent says that the policy was refused, or that GPUs are not yet so.",
    "nothing published": "The node has GPUs, and no agent says anything of them.",
    "ready": "The agent says that everything is well.",
    NOT_PUBLISHED: "Agents do not write it on the Node. It is never shown as 0.",
    UNKNOWN: "It is in the cluster, and cannot be read now. It is never shown as 0.",
}
"""What ``state_of`` says, and what else is said of a published node, and what that means."""


def state_of(node: PublishedNode) -> tuple[str, str]:
    """A word and its class in the style sheet. The worst that is known counts."""
    status = {condition.type: condition.status for condition in node.conditions}
    if node.kubelet is not None and node.kubelet.status != TRUE:
        return "node not ready", "bad"
    if not status:
        return "nothing published", "warn"
    if status.get(READY, TRUE) != TRUE:
        return "not ready", "bad"
    if status.get(GPUS_HEALTHY, TRUE) != TRUE:
        return "GPUs unhealthy", "bad"
    if status.get(POLICY_IN_FORCE, TRUE) != TRUE:
        return "policy not in force", "warn"
    return "ready", "good"


def problems_of(node: PublishedNode) -> Iterator[str]:
    """Everything that is wrong, in sentences."""
    if node.kubelet is not None and node.kubelet.status != TRUE:
        yield f"The node is not ready: {node.kubelet.message or node.kubelet.reason}"
    yield from (
        condition.message or condition.reason for condition in node.conditions if condition.status != TRUE
    )
    if node.unschedulable:
        yield "The node is cordoned: it gets no new pods."


def models_of(node: PublishedNode) -> str:
    """``8 x NVIDIA-H100-80GB-HBM3``."""
    if not node.models:
        return f"GPUs: {NOT_PUBLISHED}"
    return ", ".join(f"{count} x {model}" for model, count in node.models)


def facts_of(node: PublishedNode) -> str:
    """What other labels say of the GPUs; may be empty."""
    said = {key: value for key in _FACTS if (value := node.facts.get(key, "")) not in ("", "none")}
    return ", ".join(_FACTS[key].replace("{}", value) for key, value in said.items())


def asked_of(resource: PublishedResource) -> str:
    """``3 of 8``: what pods ask for, of what the node has."""
    return f"{UNKNOWN if resource.requested is None else resource.requested} of {resource.allocatable}"


def strategy_of(node: PublishedNode) -> Strategy | None:
    """How all GPUs are shared; None where they differ, or it is not published."""
    said = node.facts.get(_SHARING, "")
    return next((strategy for strategy in Strategy if strategy == said), None)
