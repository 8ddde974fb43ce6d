"""The machine that a simulation begins with, and how its GPUs are made. Values only: no files.

Where a machine names no links, its topology is plausible: it is assumed, not measured. NUMA: two nodes from
five GPUs on, the lower half on node 0. PCIe: the GPUs of one NUMA node are at one CPU. NVLink: all to all
through NVSwitch for SXM boards, the hybrid cube mesh for V100, none for PCIe GPUs (bridges are optional, and
no product name tells them).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import combinations

from msgspec import field

from partage.model.driver_limit import LimitSupport
from partage.model.geometry import GpuModel
from partage.model.gpu import (
    ADDRESSING_MODES,
    BRANDS,
    Driver,
    Gpu,
    Inventory,
    Link,
    LinkPath,
    MigMode,
    RecoveryAction,
)
from partage.model.ids import GpuUuid, PciBusId
from partage.model.mps import DaemonSpec
from partage.model.paths import CONTROL_NODES
from partage.model.strategy import Interval
from partage.sim.node.faults import TimedFault
from partage.values import Frozen

_NVSWITCH_LINKS = {
    "NVIDIA A100-SXM4-40GB": 12,
    "NVIDIA A100-SXM4-80GB": 12,
    "NVIDIA A800-SXM4-40GB": 8,
    "NVIDIA A800-SXM4-80GB": 8,
    "NVIDIA H100 80GB HBM3": 18,
    "NVIDIA H100": 18,
    "NVIDIA H800": 8,
    "NVIDIA H20": 18,
    "NVIDIA H20-3e": 18,
    "NVIDIA H200": 18,
    "NVIDIA B200": 18,
    "NVIDIA GB200": 18,
    "NVIDIA B300 SXM6 AC": 18,
    "NVIDIA GB300": 18,
}
"""NVLinks of one GPU to the switch, by product. Source: NVIDIA's data sheets (generation and bandwidth)."""

_CUBE_MESH_PRODUCTS = ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB")
_CUBE_MESH = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
"""NVLinks between the GPUs of an 8 x V100 machine, as ``nvidia-smi topo -m`` prints them there."""

_ONE_NUMA_NODE = 4


def numa_node(position: int, count: int) -> int:
    """NUMA node of the GPU at ``position`` of ``count``."""
    return 0 if count <= _ONE_NUMA_NODE or position < (count + 1) // 2 else 1


def has_nvswitch(gpus: Sequence[Gpu]) -> bool:
    """Whether NVSwitches join GPUs of this node. Such GPUs work only while the fabric manager runs."""
    boards = [gpu.product for gpu in gpus if gpu.product in _NVSWITCH_LINKS]
    return len(set(boards)) < len(boards)


def links_between(gpus: Sequence[Gpu]) -> tuple[Link, ...]:
    """One link per unordered pair, in the order of the GPUs."""
    mesh = {gpu.uuid: n for n, gpu in enumerate(g for g in gpus if g.product in _CUBE_MESH_PRODUCTS)}
    return tuple(Link(a.uuid, b.uuid, _path(a, b), _nvlinks(a, b, mesh)) for a, b in combinations(gpus, 2))


def _path(a: Gpu, b: Gpu) -> LinkPath:
    return LinkPath.SAME_CPU if a.numa_node == b.numa_node else LinkPath.CROSS_CPU


def _nvlinks(a: Gpu, b: Gpu, mesh: dict[GpuUuid, int]) -> int:
    """mesh: UUID to position within the cube mesh."""
    if a.product != b.product:
        return 0
    if a.product in _CUBE_MESH_PRODUCTS:
        row, column = mesh[a.uuid], mesh[b.uuid]
        return _CUBE_MESH[row % 8][column % 8] if row // 8 == column // 8 else 0
    return _NVSWITCH_LINKS.get(a.product, 0)


MOST_GPUS = 64
DRIVER = Driver(version="580.95.05", cuda="13.0")
"""The driver of machines that name none: it supports all models of the catalogue, from Volta to Blackwell."""


class Machine(Frozen):
    """A simulated node before it is powered on, and the faults that will happen on it.

    name: as the user wrote it. recorded: date of the recording that it comes from, empty for none.
    time_slices: time slices that are not the default, by GPU index; None: the GPU has no time slice to set.
    daemons: MPS daemons that serve. limits: whether its driver can limit the memory of containers; None: it
    is not said.
    """

    name: str
    inventory: Inventory
    faults: tuple[TimedFault, ...] = ()
    recorded: str = ""
    time_slices: Mapping[int, Interval | None] = field(default_factory=dict)
    daemons: tuple[DaemonSpec, ...] = ()
    limits: LimitSupport | None = None


def new_gpu(position: int, model: GpuModel, product: str, numa: int | None) -> Gpu:
    """A new GPU of that model. Its UUID is computed from model and position."""
    return Gpu(
        index=position,
        uuid=GpuUuid(derived_uuid("GPU", model.id, position)),
        minor=position,
        product=product,
        architecture=model.architecture,
        compute_capability=model.compute_capability,
        memory_bytes=model.memory_bytes,
        pci_bus_id=PciBusId(f"00000000:{0x0A + 3 * position:02X}:00.0"),
        pci_device_id=model.pci_device_id(product),
        numa_node=numa,
        mig_mode=MigMode(current=False, pending=False) if model.mig else None,
        recovery=RecoveryAction.NONE,
        brand=BRANDS[14],
        addressing_mode=ADDRESSING_MODES[1],
        pcie_root=f"pci0000:{0x09 + 3 * position:02x}",
    )


def simulated_inventory(gpus: tuple[Gpu, ...]) -> Inventory:
    """A healthy node of these GPUs, with a plausible topology."""
    return Inventory(
        driver=DRIVER,
        gpus=gpus,
        links=links_between(gpus),
        control_nodes=CONTROL_NODES,
        boot_id=derived_uuid("", "boot", 0),
        open_to_env=False,
        fabric_manager=has_nvswitch(gpus),
        virtual=False,
        simulated=True,
    )


def derived_uuid(kind: str, *seed: object) -> str:
    """The UUID of that seed, always the same: ``GPU-...``, ``MIG-...``, or bare for an empty kind."""
    digest = hashlib.sha256("/".join(map(str, ("partage", kind, *seed))).encode()).hexdigest()
    bare = f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
    return f"{kind}-{bare}" if kind else bare
