"""The port between a Kubernetes cluster and its users: values, and calls that all have deadlines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Literal, Protocol

from msgspec import field

from partage.model.node_labels import NodeCondition
from partage.values import Frozen

GPU_COUNT = "aliyun.com/gpu-count"
"""How many GPUs of a Node are shared by amounts of memory, as Alibaba's gpushare says it in the status of the
Node. No device plugin offers it.
"""

EventType = Literal["Normal", "Warning"]


class Taint(Frozen):
    """A taint of a Node. effect: ``NoSchedule``, ``PreferNoSchedule``, ``NoExecute``. added_at: RFC 3339,
    where the API server has it.
    """

    key: str
    effect: str
    value: str = ""
    added_at: str = ""


class ClusterObject(Frozen):
    """What objects of the API server have in common. version: the resourceVersion, to compare only. All but
    the name are empty where nobody asks for them; uid and version also of one that does not exist yet.
    """

    name: str
    uid: str = ""
    version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class ClusterNode(ClusterObject):
    """A Node as the API server has it. address: inside the cluster; empty if it is not known. gpu_count: its
    capacity of GPU_COUNT; empty: it has none. capacity, allocatable: of extended resources (``domain/name``).
    """

    taints: tuple[Taint, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()
    unschedulable: bool = False
    address: str = ""
    gpu_count: str = ""
    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)


class ClusterPod(ClusterObject, kw_only=True):
    """A pod of a node. requests: what the scheduler counts of it, of extended resources (``domain/name``).
    ends: it is being deleted. owner: kind of its controller, ``ReplicaSet``; empty: none. controller: UID of
    that. node: where it runs; empty: nowhere yet. started_at: when the kubelet took it, RFC 3339; empty: not
    yet.
    """

    namespace: str
    phase: str
    owner: str = ""
    controller: str = ""
    ends: bool = False
    priority: int = 0
    priority_class: str = ""
    requests: Mapping[str, int] = field(default_factory=dict)
    node: str = ""
    started_at: str = ""


class ObjectReference(Frozen):
    """The object that an event is about, or that owns another. namespace: empty for a Node."""

    kind: str
    name: str
    uid: str
    namespace: str = ""
    api_version: str = "v1"


class ClusterEvent(Frozen):
    """Something that an admin should read. Equal events are one Event in the cluster, with a count.

    reason: one word in CamelCase. action: what was done about it, one word. note: a sentence.
    """

    about: ObjectReference
    reason: str
    note: str
    action: str
    type: EventType = "Normal"


class Lease(ClusterObject, kw_only=True):
    """A Lease. holder: empty if nobody holds it. renewed_at: RFC 3339, empty if never."""

    namespace: str
    holder: str = ""
    duration_seconds: int = 0
    renewed_at: str = ""
    transitions: int = 0


class Eviction(StrEnum):
    """How a request to evict a pod ended. protected: a PodDisruptionBudget does not allow it now."""

    ACCEPTED = "accepted"
    GONE = "gone"
    PROTECTED = "protected"


class AnswerState(Frozen):
    """How the API server answers a watch.

    trouble: why it cannot be asked now; empty: it answered. since: when that began, seconds of the clock of
    the watch. restarts: how often the watch was begun, lists: how often was listed what it follows.
    """

    trouble: str = "the API server has not answered yet"
    since: float = 0.0
    restarts: int = 0
    lists: int = 0


class WatchState(AnswerState):
    """What the watch of a Node knows. node: the last answer, None if there is no such Node, or no answer
    yet.
    """

    node: ClusterNode | None = None


class Cluster(Protocol):
    """A cluster, as an agent or a verb sees it.

    All calls raise Unreachable (no answer; a later call may succeed), Conflict (the object has changed
    meanwhile), Absent (no such object) or Rejected (refused; the message names the missing permission).
    """

    async def node(self, name: str) -> ClusterNode:
        """A Node."""
        ...

    async def nodes(self) -> tuple[ClusterNode, ...]:
        """All Nodes."""
        ...

    async def set_gpu_count(self, name: str, count: int | None) -> None:
        """Set GPU_COUNT in the capacity and allocatable of a Node; None: remove it."""
        ...

    async def apply_node(
        self, node: ClusterNode, labels: Mapping[str, str], annotations: Mapping[str, str]
    ) -> ClusterNode:
        """Own exactly these labels and annotations of a Node (server-side apply). What was owned before and
        is not named now is removed; what others own stays, unless it is named: then it is taken over.
        """
        ...

    async def annotate_node(self, node: ClusterNode, annotations: Mapping[str, str | None]) -> ClusterNode:
        """Set annotations of a Node as a person does; None removes one. Conflict if it has changed since."""
        ...

    async def set_taints(self, node: ClusterNode, taints: Sequence[Taint]) -> ClusterNode:
        """Replace all taints. ``node`` as it was read: Conflict if it has changed since."""
        ...

    async def set_condition(self, name: str, condition: NodeCondition) -> None:
        """Add a condition to a Node, or replace the one of that type."""
        ...

    async def pods(self, node: str) -> tuple[ClusterPod, ...]:
        """The pods of a node, in all namespaces."""
        ...

    async def annotate_pod(self, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of a pod."""
        ...

    async def evict(
        self, namespace: str, name: str, grace_seconds: int | None = None, *, uid: str = ""
    ) -> Eviction:
        """Ask for the end of a pod, once. PodDisruptionBudgets are honoured. uid: only this one: another pod
        of the same name counts as gone.
        """
        ...

    async def record(self, event: ClusterEvent) -> None:
        """Make an event known, at most once; equal ones are counted."""
        ...

    async def lease(self, namespace: str, name: str) -> Lease:
        """A Lease; one without version if there is none."""
        ...

    async def write_lease(self, lease: Lease) -> Lease:
        """Create or replace a Lease. Conflict if it has changed since it was read."""
        ...

    async def watch_node(self, name: str, seen: Callable[[WatchState], None]) -> None:
        """Follow a Node for ever: ``seen`` is called at every change, of the Node or of the trouble."""
        ...
