"""A pod and a node, as far as they matter to each other, as the scheduler and the kubelet look at them.

GPUs that a pod asks for by a resource's name it may get by a claim. The scheduler decides it node by node:
where the device plugin lists any of the name, it gives them; else a DeviceClass with the name does
(Kubernetes 1.37, extendeddynamicresources.go and noderesources/fit.go).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field
from msgspec.structs import replace

from partage.admission.decide.former import FormerPod
from partage.claims.decide.book import ClaimBook
from partage.claims.decide.classes import chart_classes
from partage.claims.decide.scheduling import PodClaim
from partage.claims.model.claim import ClaimRequest, ClaimSpec, DeviceAsk, DeviceClass
from partage.claims.model.names import OWN_NAMES, ClaimNames
from partage.explain.decide.reasons import NodeTaintView
from partage.kubernetes.decide.node_rules import Term, Toleration
from partage.model.claim import Demands
from partage.model.gpu import Inventory, Link
from partage.model.ids import MEMORY_RESOURCE, VENDOR, DeviceUuid, GpuUuid, ResourceName, ShareId, device_of
from partage.model.pod import Container, Pod
from partage.model.policy import AllocationPolicy, Policy
from partage.model.share import NodeOffer, resources_of
from partage.plan.reconcile.node_plan import Phase
from partage.plan.serve.ledger_entry import Hold
from partage.values import Frozen, Tagged, grouped

Ask = tuple[Container, str, int]
"""A container, a GPU resource and how much of it."""


class ClaimSource(Frozen):
    """From which object a claim of a pod is. name: as the pod calls it. kind: ``ResourceClaim`` or
    ``ResourceClaimTemplate``; object_name: of it.
    """

    name: str
    kind: str
    object_name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.object_name}"


class PodNeeds(Pod, kw_only=True):
    """A pod that is to run somewhere.

    title: ``Pod/train (namespace team)``, for people. node: the only node where it may run; empty: any.
    selector: nodeSelector. affinity: required node affinity, terms of which one has to hold; None: there is
    none. gpu_resources: the resources among its requests that GPUs are behind. not_judged: what is not looked
    at here, and may keep the pod waiting. claim_sources: where its claims are from; claims: those of them
    that have no devices yet; claims_missing: those that are not there; claims_at: the pools of which
    the others have devices, by their title. former: what it asked for in the words of another system;
    rewritten: it is so only here, in the answer.
    """

    title: str
    node: str = ""
    selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    gpu_resources: frozenset[str] = frozenset()
    not_judged: tuple[str, ...] = ()
    claim_sources: tuple[ClaimSource, ...] = ()
    claims: tuple[PodClaim, ...] = ()
    claims_missing: tuple[ClaimSource, ...] = ()
    claims_at: Mapping[str, str] = field(default_factory=dict)
    former: FormerPod | None = None
    rewritten: bool = False

    @property
    def asks(self) -> tuple[Ask, ...]:
        """Each container's requests for GPU resources, in the kubelet's order."""
        return tuple(
            (container, name, amount)
            for container in self.containers
            for name, amount in container.requests.items()
            if name in self.gpu_resources and amount
        )


NODE_STATE = "node.kubernetes.io/"
"""What the keys of taints begin with that Kubernetes itself sets for the state of a node."""


class Cordoned(Tagged):
    """A person keeps new containers off the GPU."""


class Unhealthy(Tagged):
    """The GPU or the device has a fault, or does not answer."""

    reason: str


class Changing(Tagged):
    """The GPU is not as the policy wants it, and its free shares are withdrawn until it is. pods: it waits
    for them."""

    phase: Phase
    reason: str
    pods: tuple[str, ...] = ()


Obstacle = Unhealthy | Changing | Cordoned
"""Why nobody gets a free share of a device."""


class GpuView(Frozen):
    """A GPU of the node."""

    index: int
    uuid: GpuUuid
    product: str = ""


class Counted(Frozen):
    """A resource that the scheduler counts. users: pods and their amounts."""

    total: int
    users: tuple[tuple[str, int], ...] = ()

    @property
    def used(self) -> int:
        return sum(amount for _, amount in self.users)

    @property
    def free(self) -> int:
        return self.total - self.used


class NodeView(Frozen):
    """A node.

    offer: everything that can be held now; wanted: once each GPU is as the policy wants it. held: who holds a
    share; empty: its holder is not known. obstacles: of devices, the worst first. narrowed: resources of
    units of which only one device's free units are listed, after a refusal. trouble: why it can give no GPU
    at all, a sentence, and hint: what to do about it. policy, inventory: to try another policy; None: not
    known. policy_trouble: why the policy that was asked for is not in force.

    As the cluster has it: labels; all_labels: there are no others; taints; unschedulable; not_ready: why the
    node is not ready; counted: resources as the scheduler counts them, empty where no cluster was asked.
    in_cluster: verbs reach it by its name in the cluster.

    demands: what claims want of GPUs whose MIG devices are made on demand.

    published: its devices for claims, and who has them, as the cluster has them; None: they follow from its
    offer. classes: the DeviceClasses by name. claim_names: of its driver. claims_trouble: why claims get
    nothing of it, a clause.
    """

    name: str
    gpus: tuple[GpuView, ...] = ()
    offer: NodeOffer = field(default_factory=dict)
    wanted: NodeOffer | None = None
    held: Mapping[Hold, str] = field(default_factory=dict)
    obstacles: Mapping[DeviceUuid, tuple[Obstacle, ...]] = field(default_factory=dict)
    narrowed: frozenset[ResourceName] = frozenset()
    links: tuple[Link, ...] = ()
    allocation: AllocationPolicy = AllocationPolicy.DISTRIBUTED
    trouble: str = ""
    hint: str = ""
    policy: Policy | None = None
    inventory: Inventory | None = None
    policy_trouble: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    all_labels: bool = False
    taints: tuple[NodeTaintView, ...] = ()
    unschedulable: bool = False
    not_ready: str = ""
    counted: Mapping[str, Counted] = field(default_factory=dict)
    in_cluster: bool = False
    demands: Demands = field(default_factory=dict)
    published: ClaimBook | None = None
    classes: Mapping[str, DeviceClass] = field(default_factory=chart_classes)
    claim_names: ClaimNames = OWN_NAMES
    claims_trouble: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The GPU resources that it offers or will offer."""
        offered = (*resources_of(self.offer), *resources_of(self.wanted or {}))
        counted = (name for name in self.counted if name.startswith(f"{VENDOR}/") or name == MEMORY_RESOURCE)
        return tuple(dict.fromkeys((*map(str, offered), *counted)))

    def index_of(self, gpu: GpuUuid) -> int | None:
        """The NVML index of a GPU."""
        return next((view.index for view in self.gpus if view.uuid == gpu), None)


def free_shares(node: NodeView) -> dict[ResourceName, list[ShareId]]:
    """The ids that the next container can get, by resource, in the offer's order."""
    free: dict[ResourceName, list[ShareId]] = {}
    for name, resource in resources_of(node.offer).items():
        ids = [
            share
            for row in resource.offerings
            if not node.obstacles.get(row.device)
            for share in row.share_ids
            if (name, share) not in node.held
        ]
        free[name] = _of_one_device(ids) if name in node.narrowed else ids
    return free


def _of_one_device(ids: list[ShareId]) -> list[ShareId]:
    """Those of the device with most of them, the first among equals (``one_device_where_needed``)."""
    by_device = grouped((device_of(share), share) for share in ids)
    return max(by_device.values(), key=len, default=[])


def holder_of(node: NodeView, hold: Hold) -> str:
    """Who holds a share: a pod, several that may be it, or ``?`` and the share where nobody is named."""
    return node.held[hold] or f"?{hold[1]}"


def devices_of_gpu(node: NodeView, gpu: GpuUuid) -> frozenset[DeviceUuid]:
    """The GPU itself, and the devices that it offers."""
    return frozenset((gpu, *(row.device for row in node.offer.get(gpu, ()))))


IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Before the name of a class: every class can be asked for by this name."""
CLAIM_BY_NAME = "extended-resources"


def class_named(name: str, classes: Mapping[str, DeviceClass]) -> str:
    """The class from which a claim gets what is asked for by this name; empty: there is none."""
    if name.startswith(IMPLICIT) and name.removeprefix(IMPLICIT) in classes:
        return name.removeprefix(IMPLICIT)
    return min(
        (device_class.name for device_class in classes.values() if device_class.extended == name), default=""
    )


def with_claim_by_name(pod: PodNeeds, node: NodeView) -> PodNeeds:
    """The pod with the claim that the scheduler would make for it on this node, if it makes one."""
    requests: list[ClaimRequest] = []
    containers = []
    for number, container in enumerate(pod.containers):
        by_claim = {name: found for name in container.requests if (found := _class_on(name, node))}
        for place, (name, device_class) in enumerate(by_claim.items()):
            called = f"container-{number}-request-{place}"
            ask = DeviceAsk(called, device_class, count=container.requests[name])
            requests.append(ClaimRequest(called, (ask,)))
        containers.append(_without(container, by_claim))
    if not requests:
        return pod
    claim = PodClaim(CLAIM_BY_NAME, ClaimSpec("the claim for its limits", tuple(requests)), pod.namespace)
    return replace(pod, containers=tuple(containers), claims=(*pod.claims, claim))


def _class_on(name: str, node: NodeView) -> str:
    counted = node.counted.get(name)
    listed = (
        counted is not None and counted.total > 0 if node.in_cluster else name in resources_of(node.offer)
    )
    return "" if listed else class_named(name, node.classes)


def _without(container: Container, names: Mapping[str, str]) -> Container:
    kept = {name: amount for name, amount in container.requests.items() if name not in names}
    return replace(container, requests=kept)
