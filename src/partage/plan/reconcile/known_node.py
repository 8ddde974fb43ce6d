"""The observed node, plus GPUs that were seen before and are now lost. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field
from msgspec.structs import replace

from partage.model.gpu import Gpu, Inventory, LostGpu, NoDriver
from partage.model.ids import GpuUuid
from partage.values import Frozen

GONE = "the driver no longer lists it"


class KnownNode(Frozen):
    """The node as the agent knows it.

    inventory: observed, with remembered GPUs in place of lost ones.
    lost: UUID to why it does not answer; only GPUs that answered before.
    known: every GPU that answered since the start and in this boot, as last observed, by UUID.
    """

    inventory: Inventory
    lost: Mapping[GpuUuid, str] = field(default_factory=dict)
    known: Mapping[GpuUuid, Gpu] = field(default_factory=dict)

    @property
    def answering(self) -> frozenset[GpuUuid]:
        """UUIDs of the GPUs that answer."""
        return frozenset(gpu.uuid for gpu in self.inventory if gpu.uuid not in self.lost)

    @property
    def replaced(self) -> frozenset[GpuUuid]:
        """UUIDs of known GPUs that do not answer, while another GPU answers at their PCI address."""
        answering = self.answering
        taken = {gpu.pci_bus_id for gpu in self.inventory if gpu.uuid in answering}
        known = self.known.items()
        return frozenset(uuid for uuid, gpu in known if gpu.pci_bus_id in taken and uuid not in answering)


UNSEEN = KnownNode(Inventory(NoDriver("unknown", "the node has not been observed yet")))


def with_observed(before: KnownNode | None, observed: Inventory) -> KnownNode:
    """Combine a new observation with what was known.

    A GPU that NVML lists and cannot open is recognised by UUID, else by PCI address, else by index. One that
    NVML no longer lists is lost too, and keeps its place unless another GPU has it now. Without a driver
    the known GPUs stay as they are. After a boot nothing is known.
    """
    if before and before.inventory.boot_id and observed.boot_id not in ("", before.inventory.boot_id):
        before = None
    known = dict(before.known) if before else {}
    if isinstance(observed.driver, NoDriver):
        gpus = before.inventory.gpus if before else ()
        links = before.inventory.links if before else ()
        return KnownNode(
            replace(observed, gpus=gpus, links=links), dict(before.lost) if before else {}, known
        )
    known |= {gpu.uuid: gpu for gpu in observed.gpus}
    answering = {gpu.uuid for gpu in observed.gpus}
    missing = {uuid: gpu for uuid, gpu in known.items() if uuid not in answering}
    lost: dict[GpuUuid, str] = {}
    unrecognised: list[LostGpu] = []
    for entry in observed.lost:
        uuid = _recognised(entry, missing, lost)
        if uuid is None:
            unrecognised.append(entry)
        else:
            lost[uuid] = entry.reason
    taken = {gpu.index for gpu in observed.gpus} | {entry.index for entry in observed.lost}
    addresses = {gpu.pci_bus_id for gpu in observed.gpus}
    lost |= {
        uuid: GONE
        for uuid, gpu in missing.items()
        if uuid not in lost and gpu.index not in taken and gpu.pci_bus_id not in addresses
    }
    back = [missing[uuid] for uuid in lost]
    gpus = tuple(sorted((*observed.gpus, *back), key=lambda gpu: gpu.index))
    return KnownNode(replace(observed, gpus=gpus, lost=tuple(unrecognised)), lost, known)


def _recognised(
    entry: LostGpu, missing: Mapping[GpuUuid, Gpu], found: Mapping[GpuUuid, str]
) -> GpuUuid | None:
    if entry.uuid is not None:
        return entry.uuid if entry.uuid in missing else None
    candidates = [gpu for uuid, gpu in missing.items() if uuid not in found]
    for gpu in candidates:
        if gpu.pci_bus_id == entry.pci_bus_id:
            return gpu.uuid
    for gpu in candidates:
        if entry.pci_bus_id is None and gpu.index == entry.index:
            return gpu.uuid
    return None
