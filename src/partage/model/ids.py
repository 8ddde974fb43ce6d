"""Names and ids that the kubelet, the container runtime and the driver know."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NewType

ResourceName = NewType("ResourceName", str)
"""An extended resource, ``nvidia.com/gpu.shared``; made by ``parse_resource_name``."""

GpuUuid = NewType("GpuUuid", str)
"""UUID of a GPU, ``GPU-...``, as NVML has it."""

MigUuid = NewType("MigUuid", str)
"""UUID of a MIG device, ``MIG-...``, as NVML has it; or what stands for one that is still to be made
(``planned_uuid``)."""

DeviceUuid = GpuUuid | MigUuid
"""UUID of what CUDA sees as a device: a GPU or a MIG device."""

PciBusId = NewType("PciBusId", str)
"""PCI address of a GPU in NVML's form, ``00000000:1A:00.0``; sysfs and policies write it in other forms."""

ShareId = NewType("ShareId", str)
"""The kubelet's id of a device: a whole GPU or MIG device, ``<uuid>``, a share of one, ``<uuid>::<n>``, or a
unit of its memory, ``<uuid>-_-<n>``.
"""

ContainerId = NewType("ContainerId", str)
"""A container's id in its runtime, 64 hexadecimal digits; not its name in the pod. Empty: no container."""

JobCgroup = NewType("JobCgroup", ContainerId)
"""What the cgroup of a Slurm job is called by: its number, or on 26.05 its SLUID. Where cgroups are
limited and counted it stands for the id of a container; it is shorter than one.
"""

PodUid = NewType("PodUid", str)
"""UID of a pod, with dashes; of a static pod the hash of its manifest; not its name. Empty: no pod."""

VENDOR = "nvidia.com"
MEMORY_RESOURCE = ResourceName("aliyun.com/gpu-mem")
"""Units of GPU memory, as Alibaba's gpushare calls them."""
GPU_CLASS = ResourceName("gpu.partage.dev")
SHARE_CLASS = ResourceName("share.partage.dev")
MIG_CLASS = ResourceName("mig.partage.dev")
DEVICE_CLASSES = frozenset((GPU_CLASS, SHARE_CLASS, MIG_CLASS))
"""The DeviceClasses by which ResourceClaims ask: for whole GPUs and amounts of one, for equal shares, for MIG
devices. They stand where a resource name does, and have no slash, which resource names have.
"""
DRA_DRIVERS = ("gpu.partage.dev", "gpu.nvidia.com")
"""Names that the DRA driver can have; the first is Partage's own."""
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)
LONGEST_RESOURCE_NAME = 63
_SEPARATOR, _UNIT_SEPARATOR = "::", "-_-"
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_SHARE_ID = re.compile(
    rf"(GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/\d+/\d+)(({_SEPARATOR}|{_UNIT_SEPARATOR})\d+)?", re.ASCII
)


def cgroup_owner(container: ContainerId) -> str:
    """``container 0123456789ab``, or ``Slurm job 71``."""
    return f"Slurm job {container}" if is_job(container) else f"container {container[:12]}"


def is_job(container: ContainerId) -> bool:
    """Whether a job stands for a container (``JobCgroup``)."""
    return 0 < len(container) < 64


def parse_resource_name(text: str) -> ResourceName:
    """The resource name in ``text``; ``nvidia.com/`` is added if there is no domain.

    The rules are those of NVIDIA's plugin (at most 63 characters, the part after the slash an RFC 1123
    subdomain), but other domains are allowed. Raises ValueError.
    """
    full = text if "/" in text else f"{VENDOR}/{text}"
    domain, _, name = full.partition("/")
    if len(full) > LONGEST_RESOURCE_NAME:
        raise ValueError(f"resource name {full[:80]!r} is longer than {LONGEST_RESOURCE_NAME} characters")
    if not (_SUBDOMAIN.fullmatch(domain) and _SUBDOMAIN.fullmatch(name)):
        raise ValueError(f"{text!r} is not a resource name: lower case letters, digits, '-' and '.' only")
    if is_reserved_domain(domain):
        raise ValueError(f"{text!r} is in a domain that Kubernetes keeps for itself")
    return ResourceName(full)


def is_reserved_domain(domain: str) -> bool:
    """Whether Kubernetes keeps this domain of resource names for itself."""
    return domain == "kubernetes.io" or domain.endswith(".kubernetes.io")


def plugin_socket_name(resource: ResourceName) -> str:
    """File name of the plugin's socket: ``nvidia-gpu.shared.sock``, as in NVIDIA's plugin."""
    domain, _, name = resource.partition("/")
    prefix = "nvidia" if domain == VENDOR else domain
    return f"{prefix}-{name}.sock"


def device_uuid(text: str) -> DeviceUuid:
    """The UUID of a GPU or MIG device that comes from outside. It is not checked."""
    return MigUuid(text) if text.startswith("MIG-") else GpuUuid(text)


def planned_uuid(gpu: GpuUuid, number: int) -> MigUuid:
    """Stands for the UUID of a MIG device that is still to be made. No device has it.

    number: of the device among those of its GPU.
    """
    return MigUuid(f"MIG-{gpu}-{number}")


def share_id(device: DeviceUuid, replica: int | None = None) -> ShareId:
    """The id of a share. replica: its number, from 0; None if the device is not shared."""
    return ShareId(device if replica is None else f"{device}{_SEPARATOR}{replica}")


def unit_id(device: DeviceUuid, number: int) -> ShareId:
    """The id of one unit of a device's memory, as Alibaba's gpushare writes it."""
    return ShareId(f"{device}{_UNIT_SEPARATOR}{number}")


@lru_cache(maxsize=1 << 13)  # those that are held are parsed several times a turn: a node has 8,000 at most
def parse_share_id(share: ShareId) -> tuple[DeviceUuid, int | None]:
    """The device of a share or unit, and its number; None if the device is not shared.

    Never fails: an id without ``::n`` or ``-_-n`` is a whole device.
    """
    for separator in (_SEPARATOR, _UNIT_SEPARATOR):
        device, found, number = share.partition(separator)
        if found and number.isascii() and number.isdigit():
            return device_uuid(device), int(number)
    return device_uuid(share), None


def is_share_id(text: str) -> bool:
    """Whether an id has the form of Partage's and NVIDIA's plugin; those of other plugins differ."""
    return _SHARE_ID.fullmatch(text) is not None


def device_of(share: ShareId) -> DeviceUuid:
    """The device of a share."""
    return parse_share_id(share)[0]


_ADDRESS = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.ASCII | re.IGNORECASE
)


def parse_pci_address(text: str) -> str:
    """``00000000:07:00.0`` for ``0000:07:00.0``, ``07:00.0`` and ``7:0``: eight digits of domain as in NVML,
    lower case.

    Raises ValueError for other text.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:32]!r} is not a PCI address such as 0000:07:00.0")
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    if device > 0x1F:
        raise ValueError(f"{text[:32]!r} is not a PCI address: a bus has 32 devices")
    return f"{domain:08x}:{bus:02x}:{device:02x}.{function}"
