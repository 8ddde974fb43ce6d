"""A plausible topology for machines that name no links. It is assumed, not measured.

NUMA: two nodes from five GPUs on, the lower half on node 0. PCIe: the GPUs of one NUMA node are at one CPU.
NVLink: all to all through NVSwitch for SXM boards, the hybrid cube mesh for V100, none for PCIe GPUs
(bridges are optional, and no product name tells them).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from partage.model.gpu import Gpu, Link, LinkPath
from partage.model.ids import GpuUuid

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
