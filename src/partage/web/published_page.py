"""The page of a node of which only that is known which the cluster has, as sections with ids, and what is
said of such a node in words. What is not published is called so, and is never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from partage.answers.render.cards import DeviceBlock, GpuCard, Mark, ShareCell
from partage.answers.wording import standing
from partage.edges.kube.port import ClusterPod
from partage.model.ids import VENDOR
from partage.model.node_labels import NodeCondition
from partage.model.strategy import Strategy
from partage.plan.cluster.conditions import GPUS_HEALTHY, POLICY_IN_FORCE, READY, PendingGpu
from partage.plan.cluster.gpu_memory import NodeMemory
from partage.serve_http.pages.card import drawing
from partage.serve_http.pages.markup import Child, element, foreign, html, moment, table
from partage.serve_http.pages.node_page import Sections
from partage.text import listed
from partage.units import format_bytes
from partage.values import grouped
from partage.web.cluster_fleet import PublishedNode, PublishedResource

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


def published_problems(node: PublishedNode) -> Iterator[str]:
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
    text = node.facts.get(_SHARING, "")
    return next((strategy for strategy in Strategy if strategy == text), None)


_MISSING = (
    "Not published by agents: which GPU a share is on (except where GPUs are shared by amounts of memory), "
    "how much memory a container uses, since when it holds a share, MPS daemons, the text of the policy. The "
    "agent's own page has them, and partage web --agent."
)


def sections_of(node: PublishedNode) -> Sections:
    """Conditions, policy, pending changes, GPUs that are shared by amounts, resources and pods."""
    made = {
        "state": _state(node),
        "policy": _policy(node),
        "waits": _waits(node),
        "conditions": _conditions(node),
        **({} if node.memory is None else _cards(node, node.memory)),
        "resources": _resources(node),
        "pods": _pods(node),
    }
    return {name: html(one) for name, one in made.items()}


def in_places(sections: Sections) -> str:
    """The sections in their places: the cards of GPUs are one region, where there are any."""
    facts = "".join(sections[name] for name in ("state", "policy", "waits"))
    cards = "".join(text for name, text in sections.items() if name.startswith("gpu-"))
    region = ""
    if cards:
        heading = html(element("h2", "GPUs that are shared by amounts of memory", id="gpus-name"))
        grid = f'<div class="grid">{cards}</div>'
        region = f'<section class="cards" aria-labelledby="gpus-name">{heading}{grid}</section>'
    missing = html(element("p", _MISSING, class_="dim"))
    rest = "".join(sections[name] for name in ("resources", "pods"))
    return f'<div class="facts">{facts}</div>{sections["conditions"]}{region}{rest}{missing}'


def _state(node: PublishedNode) -> Element:
    word, kind = state_of(node)
    facts = facts_of(node)
    return element(
        "section",
        element("h2", "State", class_="unseen"),
        element("p", element("strong", word, class_=f"chip {kind}"), f" {models_of(node)}"),
        element("p", facts, class_="dim") if facts else None,
        _agents(node),
        id="state",
    )


def _conditions(node: PublishedNode) -> Element:
    kubelet = () if node.kubelet is None else (node.kubelet,)
    rows = [_condition(condition) for condition in (*kubelet, *node.conditions)]
    return element(
        "section",
        element("h2", "Conditions of the Node"),
        table("Conditions of the Node", ("Condition", "Status", "Began", "Message"), rows)
        if rows
        else element("p", NOT_PUBLISHED, class_="dim"),
        id="conditions",
    )


def _condition(condition: NodeCondition) -> Sequence[Child]:
    since = moment(condition.changed_at) if condition.changed_at else NOT_PUBLISHED
    text = f"{condition.reason}: {condition.message}" if condition.message else condition.reason
    return condition.type, condition.status, since, text


def _agents(node: PublishedNode) -> Element | None:
    """Conditions have no heartbeat: an agent that has ended leaves them as they were."""
    if not node.conditions:
        return element("p", "No agent has published anything about this node.", class_="problem")
    if node.agents is None:
        text = f"Whether its agent runs is {UNKNOWN}. One that has ended leaves its conditions as they were."
        return element("p", text, class_="dim")
    if not node.agents:
        text = (
            "No pod of the chart's agent is on this node. If none runs outside of pods, the conditions "
            "are as one left them."
        )
        return element("p", text, class_="problem")
    return element("p", f"Agent: pod {listed(node.agents, 3)}", class_="dim")


def _policy(node: PublishedNode) -> Element:
    condition = node.condition(POLICY_IN_FORCE)
    in_force = condition is not None and condition.status == TRUE
    lines: list[Child] = [
        element(
            "p",
            (condition.message or condition.reason) if condition else NOT_PUBLISHED,
            class_=None if in_force else "problem",
        )
    ]
    if node.policy:
        lines.append(element("p", "Chosen by label: ", foreign(node.policy)))
    if node.layout:
        lines.append(element("p", "MIG layout by label ", foreign(node.layout)))
    if node.rollout is not None:
        note = node.rollout
        revisions = f"revision {note.in_force or 'none'}" + (
            f", wanted {note.wanted}" if note.wanted and note.wanted != note.in_force else ""
        )
        why = f": {note.why}" if note.why else ""
        lines.append(
            element("p", f"Rollout of {note.policy or 'the policy'}: {note.phase}, {revisions}{why}")
        )
    return element("section", element("h2", "Policy in force"), *lines, id="policy")


def _waits(node: PublishedNode) -> Element:
    lines = [_pending(gpu) for gpu in node.pending]
    if node.cordoned:
        lines.append(element("li", f"cordoned by annotation: {listed(node.cordoned, 8)}"))
    lines += [element("li", f"taint {taint}") for taint in node.taints]
    if node.unschedulable:
        lines.append(element("li", "The node is cordoned: it gets no new pods."))
    shown = element("ul", *lines, class_="problem") if lines else element("p", "None.", class_="dim")
    return element("section", element("h2", "Pending changes"), shown, id="waits")


def _pending(gpu: PendingGpu) -> Element:
    pods = [*gpu.pods, *([f"{gpu.more} more"] if gpu.more else [])]
    text = standing(gpu.index, gpu.phase, gpu.reason, pods, ())
    since = ("; it began ", moment(gpu.since)) if gpu.since else ()
    return element("li", f"GPU {gpu.index} {text}", *since)


def _cards(node: PublishedNode, memory: NodeMemory) -> dict[str, Element]:
    """A card for each GPU that is shared by amounts, drawn as on the page of its agent."""
    places = grouped((device.index, place) for place, device in enumerate(memory.devices))
    return {f"gpu-{index}": _card(node, memory, index, some) for index, some in sorted(places.items())}


def _card(node: PublishedNode, memory: NodeMemory, index: int, places: Sequence[int]) -> Element:
    strategy = strategy_of(node)
    blocks = tuple(_block(memory, place) for place in places)
    card = GpuCard(index, "", "by memory", strategy, blocks, "", "")
    heading = f"gpu-{index}-name"
    rows = [
        (
            foreign(f"{pod.namespace}/{pod.name}") if pod.name else "not known yet",
            format_bytes(sum(pod.units[place] * memory.devices[place].unit_bytes for place in places)),
            NOT_PUBLISHED,
            NOT_PUBLISHED,
        )
        for pod in memory.pods
        if any(pod.units[place] for place in places)
    ]
    return element(
        "article",
        element(
            "header",
            element("h3", f"GPU {index}", id=heading),
            element("span", card.sharing_text, class_=f"how {strategy or 'none'}"),
        ),
        drawing(card),
        element("p", "; ".join(card.facts), class_="dim"),
        table(f"Who holds memory of GPU {index}", ("Pod", "Holds", "Memory used", "Since"), rows)
        if rows
        else element("p", "No pod holds memory of it.", class_="dim"),
        element("p", f"Pods that are not listed: {memory.more}", class_="dim") if memory.more else None,
        id=f"gpu-{index}",
        class_="card",
        aria_labelledby=heading,
    )


def _block(memory: NodeMemory, place: int) -> DeviceBlock:
    """A device: what each pod holds, what pods hold that are not listed, what is free."""
    device = memory.devices[place]
    cells = [
        ShareCell(
            Mark.HELD, n, f"{pod.namespace}/{pod.name}" if pod.name else "a pod that is not known yet", n
        )
        for pod in memory.pods
        if (n := pod.units[place])
    ]
    unlisted = device.used - sum(cell.count for cell in cells)
    if unlisted > 0:
        cells.append(ShareCell(Mark.HELD, unlisted, "pods that are not listed", unlisted))
    free = device.total - sum(cell.count for cell in cells)
    if free > 0:
        cells.append(ShareCell(Mark.FREE, free, count=free))
    return DeviceBlock("", max(1, device.total), tuple(cells), unit_bytes=device.unit_bytes)


def _resources(node: PublishedNode) -> Element:
    rows = [
        (
            foreign(resource.name),
            str(resource.capacity),
            str(resource.allocatable),
            UNKNOWN if resource.requested is None else str(resource.requested),
            resource.guarantee or NOT_PUBLISHED,
        )
        for resource in node.resources
    ]
    heads = ("Resource", "On the node", "Healthy", "Asked for by pods", "Guarantee")
    return element(
        "section",
        element("h2", "What pods can ask for"),
        table("Resources", heads, rows)
        if rows
        else element("p", "The kubelet knows no GPU resource of this node.", class_="problem"),
        id="resources",
    )


def _pods(node: PublishedNode) -> Element:
    if node.pods is None:
        shown: Child = element("p", f"Pods are {UNKNOWN}: see above.", class_="problem")
    elif not node.pods:
        shown = element("p", "No pod asks for a GPU.", class_="dim")
    else:
        heads = ("Pod", "Asks for", "GPU", "Memory used", "Started")
        shown = table("Pods that ask for GPUs", heads, [_pod(pod, node) for pod in node.pods])
    return element("section", element("h2", "Pods that ask for GPUs"), shown, id="pods")


def _pod(pod: ClusterPod, node: PublishedNode) -> Sequence[Child]:
    asks = [f"{pod.requests[row.name]} of {row.name}" for row in node.resources if row.name in pod.requests]
    memory = node.memory or NodeMemory(())
    held = [
        f"GPU {device.index}: {format_bytes(count * device.unit_bytes)}"
        for holder in memory.pods
        if (holder.namespace, holder.name) == (pod.namespace, pod.name)
        for device, count in zip(memory.devices, holder.units, strict=True)
        if count
    ]
    return (
        element("span", foreign(f"{pod.namespace}/{pod.name}"), ", ends" if pod.ends else None),
        ", ".join(asks),
        ", ".join(held) or NOT_PUBLISHED,
        NOT_PUBLISHED,
        moment(pod.started_at) if pod.started_at else f"not yet ({pod.phase})",
    )
