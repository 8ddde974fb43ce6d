"""The connections between the GPUs of a node: PCIe paths, NVLinks, NVSwitches. Read once and cached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations

from partage.edges.hardware.gpu_queries import Handle, NvLinkPeer
from partage.edges.hardware.nvml_queries import Nvml
from partage.errors import DriverUnavailable, HardwareError
from partage.model.gpu import Gpu, Link
from partage.model.ids import GpuUuid, PciBusId
from partage.values import Frozen


class NvLinks(Frozen):
    """Active NVLinks of one GPU. peers: PCI bus id to number of links; switches: number of links to
    NVSwitches.
    """

    peers: Mapping[PciBusId, int]
    switches: int


def count_nvlinks(remotes: Iterable[NvLinkPeer], gpu_addresses: Iterable[PciBusId]) -> NvLinks:
    """Count links to GPUs of this node and links to switches.

    gpu_addresses: PCI bus ids of all GPUs of the node, including lost ones, so that a lost GPU does not
    count as a switch. If the driver does not report the type of the far end, anything that is no GPU of
    this node is a switch.
    """
    gpus = frozenset(gpu_addresses)
    remotes = tuple(remotes)
    switches = sum(
        remote.bus_id not in gpus if remote.is_switch is None else remote.is_switch for remote in remotes
    )
    return NvLinks(Counter(remote.bus_id for remote in remotes if remote.bus_id in gpus), switches)


def nvlinks_between(a: Gpu, b: Gpu, links: Mapping[GpuUuid, NvLinks]) -> int:
    """NVLinks between two GPUs: direct ones, and those that both have to switches.

    A link counts only if both ends report it, because it can be down on one side.
    """
    mine, theirs = links[a.uuid], links[b.uuid]
    direct = min(mine.peers.get(b.pci_bus_id, 0), theirs.peers.get(a.pci_bus_id, 0))
    return direct + min(mine.switches, theirs.switches)


class Topology:
    """The links of a node, cached until the driver, the MIG modes or the set of GPUs change.

    Reading them takes thousands of driver calls on a node with sixteen GPUs, so it never happens during an
    admission.
    """

    def __init__(self) -> None:
        self._key: tuple[str, frozenset[GpuUuid]] | None = None
        self._links: dict[tuple[GpuUuid, GpuUuid], Link] = {}

    def links(
        self, nvml: Nvml, driver: str, gpus: Mapping[Gpu, Handle], addresses: Iterable[PciBusId]
    ) -> tuple[Link, ...]:
        """One link for each pair of GPUs that answer. A GPU that was lost meanwhile causes no new reading."""
        key = (driver, frozenset(gpu.uuid for gpu in gpus if gpu.mig_enabled))
        pairs = [(a.uuid, b.uuid) for a, b in combinations(gpus, 2)]
        if key != self._key or not self._links.keys() >= set(pairs):
            self._links = _read(nvml, gpus, addresses)
            self._key = key
        return tuple(self._links[pair] for pair in pairs)


def _read(
    nvml: Nvml, gpus: Mapping[Gpu, Handle], addresses: Iterable[PciBusId]
) -> dict[tuple[GpuUuid, GpuUuid], Link]:
    addresses = tuple(addresses)
    nvlinks = {gpu.uuid: count_nvlinks(_remotes(nvml, gpus[gpu]), addresses) for gpu in gpus}
    return {
        (a.uuid, b.uuid): Link(
            a.uuid, b.uuid, nvml.common_ancestor(gpus[a], gpus[b]), nvlinks_between(a, b, nvlinks)
        )
        for a, b in combinations(gpus, 2)
    }


def _remotes(nvml: Nvml, gpu: Handle) -> list[NvLinkPeer]:
    """The far ends; none if the GPU fails, because missing distances must not make the node unusable."""
    try:
        return nvml.nvlinks(gpu)
    except DriverUnavailable:
        raise
    except HardwareError:
        return []
