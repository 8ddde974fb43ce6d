"""What is remembered of GPUs and MIG devices while one NVML session lasts, to save calls of the driver.

Only what others cannot change meanwhile is used without a question: facts of a GPU, its MIG profiles, and
what belongs to the UUID of a MIG device, which is another one for every device that is made. Which MIG
devices there are is asked anew, and for the rest only if one is new. NVML gives the handle of a device that
is gone to the next one (nvml.h, nvmlDeviceGetMigDeviceHandleByIndex). So a handle from before is used only
after its UUID was read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from partage.edges.hardware.gpu_queries import Handle
from partage.edges.hardware.nvml_queries import Nvml
from partage.errors import DriverUnavailable, HardwareError, NotPermitted
from partage.model.geometry import Placement
from partage.model.gpu import MigMode
from partage.model.ids import GpuUuid, MigUuid, PciBusId
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.edges.hardware.nvml_queries import GiProfile, MigAttributes


class StaticGpuFacts(Frozen):
    """What stays as it is on one GPU as long as its MIG mode does. minor: None under WSL. The others as in
    ``Gpu``.
    """

    mig_mode: MigMode | None
    pci_bus_id: PciBusId
    pci_device_id: str
    pci_subsystem_id: str | None
    minor: int | None
    product: str
    architecture: str
    compute_capability: tuple[int, int]
    memory_bytes: int
    numa_node: int | None
    serial: str | None
    board_part_number: str | None
    vbios_version: str | None


class MigInstance(Frozen):
    """The GPU instance of a MIG device. profile_id: as nvidia-smi prints it."""

    profile_id: int
    placement: Placement


class KnownMig(Frozen):
    """A MIG device as it was seen. index: NVML's. instance: None if only root may ask; ``name`` then ends
    with the name of the profile.
    """

    index: int
    handle: Handle
    attributes: MigAttributes
    instance: MigInstance | None
    name: str = ""


class SessionMemory:
    """All of it. GPUs without UUID here are known by the address of their handle.

    names_instances: the process lists of GPUs in MIG mode were seen to name the instances of processes; else
    the MIG devices have to be asked for theirs.
    """

    def __init__(self) -> None:
        self.names_instances = False
        self.is_stale = False
        self.facts: dict[GpuUuid, StaticGpuFacts] = {}
        self.migs: dict[int, Mapping[MigUuid, KnownMig]] = {}
        self.profiles: dict[int, Mapping[int, GiProfile]] = {}
        self.places: dict[int, tuple[Placement, ...] | None] = {}

    def forget(self) -> None:
        """Forget all GPUs and MIG devices: something has changed them."""
        self.is_stale = False
        for kept in (self.facts, self.migs, self.profiles, self.places):
            kept.clear()

    def forget_gpu(self, uuid: GpuUuid, address: int) -> None:
        """Forget one GPU and its MIG devices. address: of its handle."""
        self.facts.pop(uuid, None)
        for kept in (self.migs, self.profiles, self.places):
            kept.pop(address, None)


def known_migs(nvml: Nvml, gpu: Handle) -> tuple[KnownMig, ...]:
    """The MIG devices of a GPU, by index. Raises HardwareError, also if one vanishes meanwhile."""
    memory, address = nvml.memory.migs, nvml.address(gpu)
    before = memory.pop(address, {})
    now: dict[MigUuid, KnownMig] = {}
    for index, handle in nvml.mig_handles(gpu).items():
        uuid = MigUuid(nvml.uuid(handle))
        same = before.get(uuid) if _is_unique(uuid) else None
        now[uuid] = (
            _read(nvml, gpu, index, handle, uuid)
            if same is None
            else KnownMig(index, handle, same.attributes, same.instance, same.name)
        )
    memory[address] = now
    return tuple(now.values())


def mig_uuid(nvml: Nvml, gpu: Handle, gi_id: int, ci_id: int) -> MigUuid | None:
    """The UUID of the MIG device that is this compute instance now; None if there is none."""
    remembered = nvml.memory.migs.get(nvml.address(gpu), {})
    for one in (*remembered.values(),):
        if _is(one, gi_id, ci_id) and _is_there(nvml, one):
            return one.attributes.uuid
    return next((one.attributes.uuid for one in known_migs(nvml, gpu) if _is(one, gi_id, ci_id)), None)


def _read(nvml: Nvml, gpu: Handle, index: int, handle: Handle, uuid: MigUuid) -> KnownMig:
    attributes = nvml.mig_attributes(handle, uuid)
    instance: MigInstance | None = None
    try:
        instance = nvml.gpu_instance(gpu, attributes.gi_id)
    except NotPermitted:
        return KnownMig(
            index, handle, attributes, None, str(nvml.optional("nvmlDeviceGetName", handle) or "")
        )
    return KnownMig(index, handle, attributes, instance)


def _is_unique(uuid: MigUuid) -> bool:
    """Before driver 470 the UUID was made of GPU and ids, which the next device can have again."""
    return "/" not in uuid


def _is(one: KnownMig, gi_id: int, ci_id: int) -> bool:
    return (one.attributes.gi_id, one.attributes.ci_id) == (gi_id, ci_id)


def _is_there(nvml: Nvml, one: KnownMig) -> bool:
    try:
        return nvml.uuid(one.handle) == one.attributes.uuid
    except DriverUnavailable:
        raise
    except HardwareError:
        return False
