"""A node, as far as it matters to a pod that is to run there."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from partage.claims.decide.book import ClaimBook
from partage.claims.decide.classes import chart_classes
from partage.claims.model.claim import DeviceClass
from partage.claims.model.names import OWN_NAMES, ClaimNames
from partage.model.claim import Demands
from partage.model.gpu import Inventory, Link
from partage.model.ids import MEMORY_RESOURCE, VENDOR, DeviceUuid, GpuUuid, ResourceName, ShareId, device_of
from partage.model.policy import AllocationPolicy, Policy
from partage.model.share import NodeOffer, resources_of
from partage.plan.reconcile.node_plan import Phase
from partage.plan.serve.ledger_entry import Hold
from partage.values import Frozen, Tagged

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


class NodeTaintView(Frozen):
    """A taint. why: what set it, a sentence; empty: not known."""

    key: str
    value: str
    effect: str
    why: str = ""


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
    by_device: dict[DeviceUuid, list[ShareId]] = {}
    for share in ids:
        by_device.setdefault(device_of(share), []).append(share)
    return max(by_device.values(), key=len, default=[])


def holder_of(node: NodeView, hold: Hold) -> str:
    """Who holds a share: a pod, several that may be it, or ``?`` and the share where nobody is named."""
    return node.held[hold] or f"?{hold[1]}"


def devices_of_gpu(node: NodeView, gpu: GpuUuid) -> frozenset[DeviceUuid]:
    """The GPU itself, and the devices that it offers."""
    return frozenset((gpu, *(row.device for row in node.offer.get(gpu, ()))))
