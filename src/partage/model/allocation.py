"""What a container gets for its shares, and which container holds which. As in the kubelet's API, without
gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from partage.model.ids import ResourceName


class AllocationRefused(Exception):
    """A request for shares that cannot be met. The kubelet shows the text in the pod's events."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path that is mounted into a container."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file in a container. permissions: some of ``rwm`` (read, write, mknod)."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """The answer to Allocate for one container. cdi_devices: full CDI names, ``vendor/class=name``."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerHold:
    """One container and the ids of one resource that it holds, as PodResources reports them."""

    namespace: str
    pod: str
    container: str
    resource: ResourceName
    ids: tuple[str, ...]
