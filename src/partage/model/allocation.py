"""What a container gets for its shares, and which container holds which. As in the kubelet's API, without
gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from partage.model.driver_limit import DriverLimit
from partage.model.ids import PodUid, ResourceName, ShareId
from partage.text import shortened
from partage.values import Frozen

LONGEST_REFUSAL = 500
"""Characters. A refusal repeats what was asked for, and writing a long gRPC status takes seconds."""


class AllocationRefused(Exception):
    """A request for shares that cannot be met. The kubelet shows the text in the pod's events."""

    def __init__(self, reason: str) -> None:
        super().__init__(shortened(reason, LONGEST_REFUSAL))


class Mount(Frozen):
    """A host path that is mounted into a container."""

    container_path: str
    host_path: str
    read_only: bool = False


class DeviceNode(Frozen):
    """A device file in a container. permissions: some of ``rwm`` (read, write, mknod)."""

    container_path: str
    host_path: str
    permissions: str = "rw"


class ContainerAllocation(Frozen):
    """The answer to Allocate for one container. cdi_devices: full CDI names, ``vendor/class=name``.

    limits: what the driver has to hold it to before its first instruction; not part of what the kubelet gets.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    limits: tuple[DriverLimit, ...] = ()


class ContainerHold(Frozen):
    """One container and the ids of one resource that it holds, as PodResources reports them."""

    namespace: str
    pod: str
    container: str
    resource: ResourceName
    ids: tuple[ShareId, ...]


CheckpointHolds = Mapping[ResourceName, Mapping[ShareId, frozenset[PodUid]]]
"""Held ids, by resource, in the kubelet's checkpoint, and the UIDs of the pods that hold each."""
