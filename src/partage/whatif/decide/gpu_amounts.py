"""How much of a GPU a pod asks for or has, whatever words it uses: in thousandths, as in traces. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

from msgspec import field

from partage.admission.decide.need import BytesOfGpu, EvenShares, GpuMemory, PartOfGpu, PodGpuNeed, WholeGpu
from partage.claims.decide.book import BookDevice, amount_of
from partage.claims.model.names import MEMORY, SHARES
from partage.plan.placement.mix import WHOLE_MILLI
from partage.units import GIB
from partage.values import Frozen
from partage.whatif.decide.pods import NamedNode

_GPU, _MIG = "nvidia.com/gpu", "nvidia.com/mig-"
_SHARED = ".shared"
_ALIKE_MILLI = 10
_GIGABYTES = re.compile(r"g\.(\d{1,4})gb", re.ASCII)


class CannotPlay(Exception):
    """A trace has no words for it, or it is not known. reason: what follows the word pod: ``asking for``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class GpuNode(NamedNode):
    """A node with GPUs, as a trace sees it.

    cpu_milli, memory_mib: that pods can have which are not of a DaemonSet. gpu_bytes: memory of each GPU; 0:
    not known. units: of resources of device plugins. devices: for claims. split: each GPU is listed as
    several units, and a unit is a GPU all the same (HAMi). taints: key, value and effect.
    """

    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_bytes: int = 0
    units: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[BookDevice, ...] = ()
    split: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()


class GpuAmount(Frozen):
    """gpus: how many different ones. milli: of each."""

    gpus: int
    milli: int

    def is_like(self, other: GpuAmount) -> bool:
        """Whether a trace can take one for the other: GPUs of one size differ by what drivers keep."""
        return self.gpus == other.gpus and abs(self.milli - other.milli) <= _ALIKE_MILLI


class ClaimedPart(Frozen):
    """A device that a claim has or would get. amounts: of capacities; empty: all of it."""

    device: BookDevice
    amounts: Mapping[str, Decimal] = field(default_factory=dict)


def is_gpu_resource(name: str) -> bool:
    """Whether units of it are GPUs, parts of them, or MIG devices, as device plugins for NVIDIA name them."""
    return name == _GPU or name.startswith((f"{_GPU}.", _MIG))


def amount_of_need(need: PodGpuNeed, node: GpuNode) -> GpuAmount:
    """What a pod of another system is of the GPUs of a node. Raises CannotPlay."""
    lasting = [user.need for user in need.containers if user.kind != "init"]
    needs = lasting or [user.need for user in need.containers]
    return GpuAmount(
        sum(each.count for each in needs),
        max(_milli_of_memory(each.memory, node) for each in needs),
    )


def _milli_of_memory(memory: GpuMemory, node: GpuNode) -> int:
    match memory:
        case WholeGpu():
            return WHOLE_MILLI
        case PartOfGpu(part):
            return max(1, int(part * WHOLE_MILLI))
        case BytesOfGpu(memory_bytes):
            return _milli_of_bytes(memory_bytes, node)
        case EvenShares(shares, None):
            return min(WHOLE_MILLI, shares * _milli_of_unit(_GPU, node))
        case EvenShares(shares, most):
            return max(1, WHOLE_MILLI * shares // (most or 1))


def _milli_of_bytes(memory_bytes: int, node: GpuNode) -> int:
    """Rounded down: what fits in bytes fits in thousandths, too."""
    if not node.gpu_bytes:
        raise CannotPlay("asking for an amount of memory, and that of the GPUs is not known")
    if memory_bytes > node.gpu_bytes:
        raise CannotPlay("asking for more memory than a GPU has")
    return max(1, WHOLE_MILLI * memory_bytes // node.gpu_bytes)


def amount_of_resources(devices: Iterable[tuple[str, int]], node: GpuNode) -> GpuAmount | None:
    """What resources of a device plugin are of the GPUs of a node; None: no GPU. Raises CannotPlay."""
    asked = [(name, count) for name, count in devices if count > 0 and is_gpu_resource(name)]
    if not asked:
        return None
    parts = [
        _milli_of_profile(name, node) if name.startswith(_MIG) else _milli_of_unit(name, node)
        for name, _ in asked
    ]
    return GpuAmount(sum(count for _, count in asked), max(parts))


def _milli_of_profile(name: str, node: GpuNode) -> int:
    """By the memory in the profile's name. A MIG device can be shared, too."""
    found = _GIGABYTES.search(name)
    if found is None or not node.gpu_bytes:
        raise CannotPlay(f"asking for {name}, and how much of a GPU that is is not known")
    milli = min(WHOLE_MILLI, WHOLE_MILLI * int(found[1]) // max(1, round(node.gpu_bytes / GIB)))
    return max(1, milli // (_replicas(name.removesuffix(_SHARED), node) or 1))


def _replicas(kind: str, node: GpuNode) -> int:
    """How often each of them is shared, by the label of GPU Feature Discovery or Partage; 0: not known."""
    text = node.labels.get(f"{kind}.replicas", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def _milli_of_unit(name: str, node: GpuNode) -> int:
    """Of a GPU. A node lists as many units as it has GPUs, or some for each of them."""
    units = {key: count for key, count in node.units.items() if count and not key.startswith(_MIG)}
    units = {key: count for key, count in units.items() if is_gpu_resource(key)}
    if name not in units:
        raise CannotPlay(f"asking for {name}, which no allowed node lists")
    if node.split or sum(units.values()) <= node.gpus:
        return WHOLE_MILLI
    if not name.endswith(_SHARED) and any(key.endswith(_SHARED) for key in units):
        return WHOLE_MILLI
    if replicas := _replicas(_GPU, node):
        return max(1, WHOLE_MILLI // replicas)
    for_claims = len({device.gpu for device in node.devices if device.gpu})
    if len(units) == 1 and node.gpus > for_claims:
        return max(1, WHOLE_MILLI * (node.gpus - for_claims) // units[name])
    raise CannotPlay(f"asking for {name}, and how much of a GPU that is is not known")


def amount_of_parts(parts: Iterable[ClaimedPart], node: GpuNode) -> GpuAmount | None:
    """What devices of claims are of the GPUs of a node; None: no device. Raises CannotPlay."""
    taken = [*parts]
    if not taken:
        return None
    return GpuAmount(len(taken), max(_milli_of_part(part, node) for part in taken))


def _milli_of_part(part: ClaimedPart, node: GpuNode) -> int:
    device = part.device
    for name in (SHARES, MEMORY):  # a device in even shares has both
        if device.shared and name in part.amounts and (total := amount_of(device.device, name)):
            return min(WHOLE_MILLI, max(1, int(WHOLE_MILLI * part.amounts[name] / total)))
    if not device.shared and device.text("type") == "mig":
        profile = device.text("profile")
        if node.gpu_bytes and _GIGABYTES.search(profile):
            return _milli_of_profile(f"{_MIG}{profile}", node)
        raise CannotPlay("with MIG devices, and the memory of the GPUs is not known")
    return WHOLE_MILLI
