"""Queries to NVML about the node, its GPUs and MIG devices, in the types and units of ``model``; None if
absent.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any, NewType
from uuid import UUID

from partage.edges.hardware.binding import Binding
from partage.edges.hardware.host import Host
from partage.edges.hardware.session_memory import MigInstance, SessionMemory
from partage.edges.hardware.translate import ABSENT, INVALID_ARGUMENT, NOT_FOUND, TIMEOUT
from partage.errors import DriverUnavailable, GpuLost, HardwareError, HardwareTimeout, NotFound, Unsupported
from partage.model.geometry import Engines
from partage.model.gpu import (
    ComputeMode,
    Driver,
    LinkPath,
    MigMode,
    NoDriver,
    RecoveryAction,
    architecture_name,
    cuda_version,
)
from partage.model.ids import GpuUuid, MigUuid, PciBusId
from partage.model.placement import Placement
from partage.units import MIB
from partage.values import Frozen

_RECOVERY_ACTION, _REMAPPED_PENDING, _REMAPPED_FAILURE = 230, 144, 145
_MIG_WITHOUT_RESET = 184
_MEMORY_V2 = 0x02000028
"""Version of nvmlMemory_v2_t: size and version of the structure in one number (nvml.h)."""

_FABRIC_NOT_SUPPORTED, _FABRIC_NOT_STARTED, _FABRIC_COMPLETED = 0, 1, 3
_MAX_LINKS = 36
_NODE_WORDS, _SCOPE_NODE = 16, 0
"""NUMA nodes are asked for in words of 64; scope 0: NVML_AFFINITY_SCOPE_NODE."""

_REMOTE_SWITCH, _REMOTE_UNKNOWN = 2, 0xFF
MOST_PROFILES = 64
"""More constants of profiles than any library knows; it says itself where its list ends."""

_ATTRIBUTES = {
    **dict.fromkeys((0, 1, 2, 3, 4, 5, 6, 9), ""),
    **dict.fromkeys((7, 8), "+me"),
    **dict.fromkeys((10, 11, 12, 17), "+gfx"),
    **dict.fromkeys((13, 14), "-me"),
    **dict.fromkeys((15, 16), "+me.all"),
}
"""Attributes in the names of GI profiles, by NVML's constant. The one with double memory (9) has none. The
driver says the names of later ones.
"""

_ANCESTORS = {
    0: LinkPath.SAME_BOARD,
    10: LinkPath.SINGLE_SWITCH,
    20: LinkPath.MULTI_SWITCH,
    30: LinkPath.HOST_BRIDGE,
    40: LinkPath.SAME_CPU,
    50: LinkPath.CROSS_CPU,
}
_NAMED_ATTRIBUTE = re.compile(r"\d+gb(\S*)$", re.ASCII)
"""The ``+me`` of ``MIG 1g.10gb+me``, a name as the driver says it."""

NOT_HERE = ABSENT | {INVALID_ARGUMENT}
"""Return codes for an index or constant that this GPU or library does not know."""

NO_INSTANCE = 0xFFFFFFFF
"""In place of an instance's id: the whole GPU is meant."""

EVENT_XID = 0x8
EVENTS_CHANGED = 0x100 | 0x4000 | 0x8000
"""MIG configuration changed, GPU unavailable, recovery action changed: observe again."""

Handle = NewType("Handle", object)
"""NVML's handle of a device; valid only in the session that returned it."""

EventSet = NewType("EventSet", object)


class PciInfo(Frozen):
    """device_id: device and vendor id, ``0x233010de``."""

    bus_id: PciBusId
    device_id: str


class HealthFields(Frozen):
    """What the driver reports about one GPU. None: it has no such field."""

    recovery: RecoveryAction | None
    rows_pending: bool
    rows_failed: bool


class MigAttributes(Frozen):
    """Attributes of a MIG device. compute_slices: of its compute instance."""

    uuid: MigUuid
    gi_id: int
    ci_id: int
    compute_slices: int
    memory_bytes: int
    multiprocessors: int


class GiProfile(Frozen):
    """One GPU instance profile. slices: the ``3`` of 3g; attribute: ``+me``, ``-me`` ... or empty.

    most: how many an empty GPU can have.
    """

    slices: int
    attribute: str
    memory_bytes: int
    most: int
    engines: Engines


class NvLinkPeer(Frozen):
    """The far end of an active NVLink. is_switch: None if the driver does not report it."""

    bus_id: PciBusId
    is_switch: bool | None


class NvmlEvent(Frozen):
    """One event. gpu: address of the handle, see ``Nvml.address``. data: the XID."""

    gpu: int
    kind: int
    data: int
    gi_id: int | None
    ci_id: int | None


class Nvml(Binding):
    """Reads a node through an open session. Every method may raise a HardwareError."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._memory = SessionMemory()

    def open(self) -> NoDriver | None:
        """As in ``Binding``. A new session remembers nothing."""
        if not self.is_open:
            self._memory = SessionMemory()
        return super().open()

    @property
    def memory(self) -> SessionMemory:
        """What is remembered in this session. For one thread."""
        if self._memory.is_stale:
            self._memory.forget()
        return self._memory

    def something_changed(self) -> None:
        """What is remembered may be wrong: forget it before the next use. From any thread."""
        self._memory.is_stale = True

    # --- the node --------------------------------------------------------------------------------

    def driver(self) -> Driver:
        cuda = int(self.optional("nvmlSystemGetCudaDriverVersion_v2") or 0)
        return Driver(str(self.call("nvmlSystemGetDriverVersion")), cuda_version(cuda))

    def count(self) -> int:
        return int(self.call("nvmlDeviceGetCount"))

    def handles(self) -> dict[GpuUuid, Handle]:
        """UUID to handle of the GPUs that answer now."""
        found: dict[GpuUuid, Handle] = {}
        for index in range(self.count()):
            try:
                handle = self.handle(index)
                found[self.gpu_uuid(handle)] = handle
            except DriverUnavailable:
                raise
            except HardwareError:
                continue  # ``Discovery`` reports which GPU is lost, and why
        return found

    def gpu_handle(self, uuid: GpuUuid) -> Handle:
        """The handle of one GPU. Raises NotFound; GpuLost if it may be a GPU that does not answer."""
        handles = self.handles()
        if uuid in handles:
            return handles[uuid]
        if len(handles) < self.count():
            raise GpuLost(f"GPU {uuid} is not among those that answer")
        raise NotFound(f"this node has no GPU {uuid}")

    # --- one GPU ---------------------------------------------------------------------------------

    def handle(self, index: int) -> Handle:
        return Handle(self.call("nvmlDeviceGetHandleByIndex", index))

    @staticmethod
    def address(handle: Handle) -> int:
        """The handle as a number. Events contain it even for a GPU that no longer answers."""
        return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    def uuid(self, handle: Handle) -> str:
        """The UUID of a GPU or MIG device."""
        return str(self.call("nvmlDeviceGetUUID", handle))

    def gpu_uuid(self, handle: Handle) -> GpuUuid:
        return GpuUuid(self.uuid(handle))

    def pci(self, handle: Handle) -> PciInfo:
        info = self.call("nvmlDeviceGetPciInfo", handle)
        return PciInfo(PciBusId(info.busId), f"0x{info.pciDeviceId:08x}")

    def product(self, handle: Handle) -> str:
        return str(self.call("nvmlDeviceGetName", handle))

    def minor(self, handle: Handle) -> int | None:
        """The N of ``/dev/nvidiaN``; None under WSL."""
        return self.optional("nvmlDeviceGetMinorNumber", handle)

    def architecture(self, handle: Handle) -> str:
        return architecture_name(self.optional("nvmlDeviceGetArchitecture", handle))

    def compute_capability(self, handle: Handle) -> tuple[int, int]:
        major, minor = self.call("nvmlDeviceGetCudaComputeCapability", handle)
        return int(major), int(minor)

    def memory_bytes(self, handle: Handle) -> int:
        """Total memory; 0 if a GPU shares its CPU's memory and reports none of its own."""
        memory = self.optional("nvmlDeviceGetMemoryInfo", handle)
        return int(memory.total) if memory else 0

    def used_bytes(self, handle: Handle) -> int | None:
        """Allocated memory, without the driver's reserve if the driver reports that separately."""
        memory = self.optional("nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2)
        if memory is None:  # before R510: includes the reserve
            memory = self.optional("nvmlDeviceGetMemoryInfo", handle)
        return int(memory.used) if memory else None

    def board_text(self, call: str, handle: Handle) -> str | None:
        """What is written on the board; None if it cannot be read, which makes a GPU no worse."""
        try:
            return str(self.optional(call, handle) or "") or None
        except (DriverUnavailable, GpuLost, HardwareTimeout):
            raise
        except HardwareError:
            return None

    def nearest_node(self, handle: Handle) -> int | None:
        """The NUMA node whose memory is nearest; None if there are several, or the driver does not say.

        Not nvmlDeviceGetNumaNodeId: that is the node that a GPU's own memory is, on a Grace Hopper.
        """
        try:
            words = self.optional(
                "nvmlDeviceGetMemoryAffinity", handle, _NODE_WORDS, _SCOPE_NODE, absent=NOT_HERE
            )
        except (DriverUnavailable, GpuLost, HardwareTimeout):
            raise
        except HardwareError:
            return None
        mask = sum(int(word) << 64 * at for at, word in enumerate(words or ()))
        return mask.bit_length() - 1 if mask.bit_count() == 1 else None

    def persistence(self, handle: Handle) -> bool | None:
        """Whether persistence mode is on: without it a GPU is initialised anew by each first client."""
        mode = self.optional("nvmlDeviceGetPersistenceMode", handle)
        return None if mode is None else bool(mode)

    def compute_mode(self, handle: Handle) -> ComputeMode:
        mode = self.optional("nvmlDeviceGetComputeMode", handle)
        return ComputeMode.DEFAULT if mode is None else ComputeMode(mode)

    def fields(self, handle: Handle) -> HealthFields:
        """Recovery action and remapped rows, in one call. The row fields work with live MIG instances too."""
        wanted = [_RECOVERY_ACTION, _REMAPPED_PENDING, _REMAPPED_FAILURE]
        answers = self.optional("nvmlDeviceGetFieldValues", handle, wanted) or ()
        # All three are unsigned int; wider types below 2^32 have the same first four bytes.
        values = {answer.fieldId: answer.value.uiVal for answer in answers if answer.nvmlReturn == 0}
        return HealthFields(
            recovery=_recovery(values.get(_RECOVERY_ACTION)),
            rows_pending=bool(values.get(_REMAPPED_PENDING)),
            rows_failed=bool(values.get(_REMAPPED_FAILURE)),
        )

    def fabric_ok(self, handle: Handle) -> bool | None:
        """Whether the GPU has joined its NVLink fabric; None for GPUs without one. While it joins, CUDA
        fails.

        None also for a GPU that never began to join (for example passed through alone into a VM): it can
        work without.
        """
        info = self._fabric(handle)
        # The state is one byte in the header and four in pynvml: the other three are undefined.
        state = _FABRIC_NOT_SUPPORTED if info is None else info.state & 0xFF
        if state in (_FABRIC_NOT_SUPPORTED, _FABRIC_NOT_STARTED):
            return None
        return bool(state == _FABRIC_COMPLETED and info.status == 0)

    def clique(self, handle: Handle) -> str | None:
        """``<cluster uuid>.<clique>`` of the fabric that the GPU has joined; None if there is none."""
        info = self._fabric(handle) if self.fabric_ok(handle) else None
        if info is None:
            return None
        cluster = bytes(info.clusterUuid)
        return f"{UUID(bytes=cluster)}.{info.cliqueId}" if any(cluster) else None

    def _fabric(self, handle: Handle) -> Any:  # noqa: ANN401 - a structure of pynvml
        info = self.structure("c_nvmlGpuFabricInfoV_t")
        # A library that does not know this version of the structure answers with a version mismatch.
        answered = self.optional("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is not None
        return info if answered else None

    # --- MIG -------------------------------------------------------------------------------------

    def mig_mode(self, handle: Handle) -> MigMode | None:
        modes = self.optional("nvmlDeviceGetMigMode", handle)
        return None if modes is None else MigMode(current=bool(modes[0]), pending=bool(modes[1]))

    def mig_without_reset(self, handle: Handle) -> bool:
        """Whether its MIG mode changes without a GPU reset; False if the driver does not report it."""
        answers = self.optional("nvmlDeviceGetFieldValues", handle, [_MIG_WITHOUT_RESET]) or ()
        return any(answer.nvmlReturn == 0 and answer.value.uiVal == 1 for answer in answers)

    def mig_handles(self, handle: Handle) -> dict[int, Handle]:
        """NVML's index to handle; indexes can have gaps."""
        found = {
            index: self.optional(
                "nvmlDeviceGetMigDeviceHandleByIndex", handle, index, absent=NOT_HERE | {NOT_FOUND}
            )
            for index in range(self.most_mig_devices(handle))
        }
        return {index: Handle(mig) for index, mig in found.items() if mig is not None}

    def mig_attributes(self, mig: Handle, uuid: MigUuid) -> MigAttributes:
        """uuid: its own."""
        attributes = self.call("nvmlDeviceGetAttributes", mig)
        return MigAttributes(
            uuid=uuid,
            gi_id=int(self.call("nvmlDeviceGetGpuInstanceId", mig)),
            ci_id=int(self.call("nvmlDeviceGetComputeInstanceId", mig)),
            compute_slices=int(attributes.computeInstanceSliceCount),
            # The header says MB; an A100's 1g.5gb answers 4864, the 4.75 GiB that nvidia-smi prints.
            memory_bytes=int(attributes.memorySizeMB) * MIB,
            multiprocessors=int(attributes.multiprocessorCount),
        )

    def gpu_instance(self, handle: Handle, gi_id: int) -> MigInstance:
        """Profile (nvidia-smi's id, not NVML's constant) and placement of a GPU instance. For root only."""
        info = self.call("nvmlGpuInstanceGetInfo", self.call("nvmlDeviceGetGpuInstanceById", handle, gi_id))
        return MigInstance(int(info.profileId), placement_of(gi_id, info))

    def gi_profiles(self, handle: Handle) -> Mapping[int, GiProfile]:
        """Profile id to profile, for this GPU: the same id means other profiles on other models.

        Remembered, unless there are none: older drivers know them only in MIG mode.
        """
        known, address = self.memory.profiles, self.address(handle)
        if not known.get(address):
            known[address] = self._gi_profiles(handle)
        return known[address]

    def _gi_profiles(self, handle: Handle) -> Mapping[int, GiProfile]:
        profiles: dict[int, GiProfile] = {}
        end = frozenset({INVALID_ARGUMENT})
        for constant in range(MOST_PROFILES):
            try:
                info = self.optional("nvmlDeviceGetGpuInstanceProfileInfo", handle, constant, 1, absent=end)
            except Unsupported:
                continue  # the GPU has no such profile
            if info is None:
                break
            attribute = self._attribute(handle, constant)
            if attribute is not None:
                profiles[int(info.id)] = GiProfile(
                    slices=int(info.sliceCount),
                    attribute=attribute,
                    memory_bytes=int(info.memorySizeMB) * MIB,
                    most=int(info.instanceCount),
                    engines=_engines(info),
                )
        return profiles

    def most_mig_devices(self, handle: Handle) -> int:
        """How many MIG devices the GPU can have; 0 if the driver does not report it."""
        return int(self.optional("nvmlDeviceGetMaxMigDeviceCount", handle) or 0)

    def _attribute(self, handle: Handle, constant: int) -> str | None:
        """The attribute in a profile's name; None if it is not known: the profile cannot be named then."""
        if constant in _ATTRIBUTES:
            return _ATTRIBUTES[constant]
        info = self.optional("nvmlDeviceGetGpuInstanceProfileInfo", handle, constant, 2, absent=NOT_HERE)
        match = _NAMED_ATTRIBUTE.search(_text(info.name)) if info is not None else None
        return match[1] if match else None

    # --- links -----------------------------------------------------------------------------------

    def common_ancestor(self, a: Handle, b: Handle) -> LinkPath:
        """How two GPUs are connected over PCIe; the farthest if the driver does not report it."""
        level = self.optional("nvmlDeviceGetTopologyCommonAncestor", a, b, absent=NOT_HERE)
        return _ANCESTORS.get(50 if level is None else level, LinkPath.CROSS_CPU)

    def nvlinks(self, handle: Handle) -> list[NvLinkPeer]:
        """The far ends of a GPU's active NVLinks."""
        remotes = []
        for link in range(_MAX_LINKS):
            state = self.optional("nvmlDeviceGetNvLinkState", handle, link, absent=NOT_HERE)
            if not state:
                continue
            pci = self.optional("nvmlDeviceGetNvLinkRemotePciInfo", handle, link, absent=NOT_HERE)
            if pci is not None:
                remotes.append(NvLinkPeer(PciBusId(pci.busId), self._remote_is_switch(handle, link)))
        return remotes

    def _remote_is_switch(self, handle: Handle, link: int) -> bool | None:
        kind = self.optional("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, absent=NOT_HERE)
        return None if kind in (None, _REMOTE_UNKNOWN) else kind == _REMOTE_SWITCH

    # --- events ----------------------------------------------------------------------------------

    def create_event_set(self) -> EventSet:
        return EventSet(self.call("nvmlEventSetCreate"))

    def register(self, handle: Handle, event_set: EventSet) -> bool:
        """Subscribe to XIDs and changes of a GPU; False if it supports neither."""
        supported = self.optional("nvmlDeviceGetSupportedEventTypes", handle) or 0
        mask = supported & (EVENT_XID | EVENTS_CHANGED)
        if mask:
            self.optional("nvmlDeviceRegisterEvents", handle, mask, event_set)
        return bool(mask)

    def wait(self, event_set: EventSet, timeout_ms: int) -> NvmlEvent | None:
        """The next event; None after the timeout. Blocks the thread."""
        data = self.optional("nvmlEventSetWait_v2", event_set, timeout_ms, absent=frozenset({TIMEOUT}))
        if data is None:
            return None
        return NvmlEvent(
            gpu=self.address(data.device),
            kind=int(data.eventType),
            data=int(data.eventData),
            gi_id=None if data.gpuInstanceId == NO_INSTANCE else int(data.gpuInstanceId),
            ci_id=None if data.computeInstanceId == NO_INSTANCE else int(data.computeInstanceId),
        )

    def free_event_set(self, event_set: EventSet) -> None:
        self.optional("nvmlEventSetFree", event_set, absent=NOT_HERE)


def _engines(info: Any) -> Engines:  # noqa: ANN401 - a structure of pynvml
    return Engines(
        copy=int(info.copyEngineCount),
        decoder=int(info.decoderCount),
        encoder=int(info.encoderCount),
        jpeg=int(info.jpegCount),
        ofa=int(info.ofaCount),
    )


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def placement_of(gi_id: int, info: Any) -> Placement:  # noqa: ANN401 - a structure of pynvml
    """The placement in what NVML says of a GPU instance. Raises HardwareError if it is none."""
    try:
        return Placement(int(info.placement.start), int(info.placement.size))
    except ValueError as error:
        raise HardwareError(f"GPU instance {gi_id} reports an invalid placement: {error}") from error


def _recovery(value: int | None) -> RecoveryAction | None:
    """The action; None for a number that this version does not know."""
    try:
        return None if value is None else RecoveryAction(value)
    except ValueError:
        return None
