"""The nodes of a cluster, as its API server tells of them: two watches in a thread of their own, what each
says of a node (what its agent has published on the Node, and what pods ask for), and what the page says of
where they come from, how old they are, and what is wrong with that.

It is less than the agent's own report. What is not published is None or empty here, never 0.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from partage.codec.values import CodecError, decode
from partage.edges.host.own_task import unending
from partage.edges.kube.connection import Connection
from partage.edges.kube.objects import second
from partage.edges.kube.port import GPU_COUNT, ClusterNode, ClusterPod, Taint
from partage.edges.kube.reading import watch_nodes, watch_pods
from partage.edges.kube.watch import CollectionState
from partage.model.ids import MEMORY_RESOURCE, VENDOR
from partage.model.node_labels import DOMAIN, MIG_CONFIG, MIG_CONFIG_STATE, POLICY_LABELS, NodeCondition
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
from partage.serve_http.pages.markup import Child, element, html, moment
from partage.serve_http.pages.node_page import Sections
from partage.text import count_of
from partage.values import Frozen, grouped

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


_ENDS_WITHIN_S = 5.0


class _Known(Frozen):
    """A node, and what it was made of. node: None: it has no GPU."""

    made_of: ClusterNode
    pods: tuple[ClusterPod, ...] | None
    node: PublishedNode | None


class ClusterFleet:
    """Follows a cluster from ``start`` to ``close``. say: told each new trouble, for a log.

    mark: another one for every news. wall: seconds since 1970, clock: monotonic.
    """

    def __init__(
        self,
        connection: Connection,
        say: Callable[[str], None] = lambda _: None,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._say, self._wall, self._clock = say, wall, clock
        self._lock = threading.Lock()
        self._nodes: Mapping[str, ClusterNode] = {}
        self._pods: Mapping[str, ClusterPod] | None = None
        start = CollectionState[Any](since=clock())
        self._followed = {kind: self._follow_state(kind, start) for kind in ("nodes", "pods")}
        self._known: dict[str, _Known] = {}
        self._made_at = -1
        self.mark = 0
        self._stop: Callable[[], None] | None = None
        self._runs = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)

    def start(self) -> None:
        """Begin. Until the API server has answered, there is no node."""
        self._thread.start()
        self._runs.wait(_ENDS_WITHIN_S)

    def close(self) -> None:
        """End both watches."""
        if self._stop is not None:
            self._stop()
            self._thread.join(_ENDS_WITHIN_S)

    @property
    def words(self) -> str:
        """The origin of the nodes."""
        return "What agents and pods say in the cluster. This page changes nothing."

    @property
    def news(self) -> Sections:
        """The origin of all this, and how old it is."""
        with self._lock:
            self._make()
            without = sum(node.node is None for node in self._known.values())
            followed = dict(self._followed)
        return {"source": source_section(self._connection.config.url, followed.values(), without)}

    @property
    def nodes(self) -> Mapping[str, PublishedNode]:
        """Nodes with GPUs, in the order of their names."""
        with self._lock:
            self._make()
            return {name: known.node for name, known in self._known.items() if known.node is not None}

    def _make(self) -> None:
        """What has not changed stays the same object, so that it is not drawn again."""
        if self._made_at == self.mark:
            return
        self._made_at = self.mark
        pods = self._pods_by_node()
        found: dict[str, _Known] = {}
        for name, node in sorted(self._nodes.items()):
            here = None if pods is None else tuple(pods.get(name, ()))
            before = self._known.get(name)
            if before is not None and before.made_of is node and before.pods == here:
                found[name] = before
                continue
            made = published(node, here)
            if before is not None and before.node == made:
                made = before.node
            found[name] = _Known(node, here, made)
        self._known = found

    def _pods_by_node(self) -> dict[str, list[ClusterPod]] | None:
        """None where they were never listed."""
        if self._pods is None:
            return None
        return grouped((pod.node, pod) for pod in self._pods.values())

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except Exception as error:  # a mistake of ours must not leave a page that looks alive
            trouble = f"a fault of this program: {error!r}"
            for kind, watch in self._followed.items():
                state = CollectionState[Any](trouble=trouble, since=self._clock(), lists=int(watch.known))
                self._hear(kind, state)
            raise
        finally:
            self._runs.set()

    async def _follow(self) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            loop.call_soon_threadsafe(stop.set)

        self._stop = end
        async with asyncio.TaskGroup() as group:
            nodes = watch_nodes(self._connection, self._nodes_seen, clock=self._clock)
            pods = watch_pods(self._connection, self._pods_seen, is_of_interest, clock=self._clock)
            both = [
                group.create_task(unending(name, one)) for name, one in (("nodes", nodes), ("pods", pods))
            ]
            self._runs.set()
            await stop.wait()
            for task in both:
                task.cancel()

    def _nodes_seen(self, state: CollectionState[ClusterNode]) -> None:
        with self._lock:
            self._nodes = state.objects
        self._hear("nodes", state)

    def _pods_seen(self, state: CollectionState[ClusterPod]) -> None:
        with self._lock:
            self._pods = state.objects if state.lists else None
        self._hear("pods", state)

    def _hear(self, kind: str, state: CollectionState[Any]) -> None:
        before = self._followed[kind]
        now = self._follow_state(kind, state)
        with self._lock:
            self._followed[kind] = now
            self.mark += 1
        if now.trouble and now.trouble != before.trouble:
            self._say(now.trouble)

    def _follow_state(self, kind: str, state: CollectionState[Any]) -> Followed:
        since = second(self._wall() - (self._clock() - state.since))
        return Followed(kind, since, state.trouble, state.forbidden, known=bool(state.lists))


_WHAT = (
    "what the agents publish on their Nodes (labels, conditions, annotations), and what pods ask for. Agents "
    "write when something changes, so what stands here may be old and true."
)


class Followed(Frozen):
    """One watch. kind: ``nodes``. since: when it began, or when the trouble did, RFC 3339. trouble: why the
    API server cannot be asked; empty: it can. forbidden: the account has not the right. known: it has
    answered at least once.
    """

    kind: str
    since: str
    trouble: str
    forbidden: bool = False
    known: bool = False


def source_section(url: str, watches: Iterable[Followed], without_gpus: int) -> str:
    """The section as HTML. without_gpus: so many nodes are not shown."""
    some = tuple(watches)
    more = f"Not shown: {count_of(without_gpus, 'node')} without GPUs." if without_gpus else ""
    section = element(
        "section",
        element("h2", "Where this comes from", class_="unseen"),
        element(
            "p",
            f"From the API server {url}: {_WHAT}",
            *(part for watch in some if not watch.trouble for part in _up_to_date(watch)),
            f" {more}" if more else None,
            class_="dim",
        ),
        *(part for watch in some if watch.trouble for part in _trouble(watch)),
        id="source",
    )
    return html(section)


def _up_to_date(watch: Followed) -> Iterator[Child]:
    yield f" The watch of {watch.kind} began "
    yield moment(watch.since)
    yield "."


def _trouble(watch: Followed) -> Iterator[Child]:
    then = "What is said of them below is as it was then." if watch.known else "Nothing is known of them."
    right = (
        f"The account needs the verbs list and watch on {watch.kind}, which the ClusterRole partage-viewer "
        "grants (viewer.enabled in the chart)."
    )
    yield element(
        "p",
        f"The {watch.kind} cannot be followed. It began ",
        moment(watch.since),
        f": {watch.trouble}. {then}",
        f" {right}" if watch.forbidden else None,
        class_="problem",
    )
