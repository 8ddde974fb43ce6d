"""What a container gets for the shares it holds, and who holds shares. The kubelet's words, without gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from partage.model.ids import ResourceName


class AllocationRefused(Exception):
    """A request for shares that cannot be met. The text goes to the kubelet, and so to the pod's events."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path in a container."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file in a container. permissions: of ``rwm``."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """What a container gets. cdi_devices: fully qualified, ``vendor/class=name``."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerHold:
    """One container and the ids of one resource that it holds, as PodResources says it."""

    namespace: str
    pod: str
    container: str
    resource: ResourceName
    ids: tuple[str, ...]
