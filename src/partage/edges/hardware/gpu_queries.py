"""Queries to NVML about the node, its GPUs and their links, in the types and units of ``model``; None if
absent.

What is remembered of GPUs and MIG devices while one session lasts saves calls of the driver. Only what others
cannot change meanwhile is used without a question: facts of a GPU, its MIG profiles, and what belongs to the
UUID of a MIG device, which is another one for every device that is made. Which MIG devices there are is asked
anew (``mig_devices``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NewType
from uuid import UUID

from partage.edges.hardware.binding import ABSENT, INVALID_ARGUMENT, Binding
from partage.edges.hardware.host import Host
from partage.errors import DriverUnavailable, GpuLost, HardwareError, HardwareTimeout, NotFound
from partage.model.geometry import Placement
from partage.model.gpu import (
    ADDRESSING_MODES,
    BRANDS,
    ComputeMode,
    Driver,
    Gpu,
    LinkPath,
    NoDriver,
    RecoveryAction,
    architecture_name,
    cuda_version,
)
from partage.model.ids import GpuUuid, MigUuid, PciBusId
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.edges.hardware.nvml_queries import GiProfile, MigAttributes


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

    gpus: what stays on a GPU as long as its MIG mode does; the rest of these values is not read.
    names_instances: the process lists of GPUs in MIG mode were seen to name the instances of processes; else
    the MIG devices have to be asked for theirs.
    """

    def __init__(self) -> None:
        self.names_instances = False
        self.is_stale = False
        self.gpus: dict[GpuUuid, Gpu] = {}
        self.migs: dict[int, Mapping[MigUuid, KnownMig]] = {}
        self.profiles: dict[int, Mapping[int, GiProfile]] = {}
        self.places: dict[int, tuple[Placement, ...] | None] = {}

    def forget(self) -> None:
        """Forget all GPUs and MIG devices: something has changed them."""
        self.is_stale = False
        for kept in (self.gpus, self.migs, self.profiles, self.places):
            kept.clear()

    def forget_gpu(self, uuid: GpuUuid, address: int) -> None:
        """Forget one GPU and its MIG devices. address: of its handle."""
        self.gpus.pop(uuid, None)
        for kept in (self.migs, self.profiles, self.places):
            kept.pop(address, None)


_RECOVERY_ACTION, _REMAPPED_PENDING, _REMAPPED_FAILURE = 230, 144, 145
_MEMORY_V2 = 0x02000028
"""Version of nvmlMemory_v2_t: size and version of the structure in one number (nvml.h)."""

_FABRIC_NOT_SUPPORTED, _FABRIC_NOT_STARTED, _FABRIC_COMPLETED = 0, 1, 3
_MAX_LINKS = 36
_NODE_WORDS, _SCOPE_NODE = 16, 0
"""NUMA nodes are asked for in words of 64; scope 0: NVML_AFFINITY_SCOPE_NODE."""

_REMOTE_SWITCH, _REMOTE_UNKNOWN = 2, 0xFF
_ANCESTORS = {
    0: LinkPath.SAME_BOARD,
    10: LinkPath.SINGLE_SWITCH,
    20: LinkPath.MULTI_SWITCH,
    30: LinkPath.HOST_BRIDGE,
    40: LinkPath.SAME_CPU,
    50: LinkPath.CROSS_CPU,
}
NOT_HERE = ABSENT | {INVALID_ARGUMENT}
"""Return codes for an index or constant that this GPU or library does not know."""

Handle = NewType("Handle", object)
"""NVML's handle of a device; valid only in the session that returned it."""


class PciInfo(Frozen):
    """device_id, subsystem_id: device and vendor id, ``0x233010de``, of the GPU and of its board.
    subsystem_id: None if the driver says none.
    """

    bus_id: PciBusId
    device_id: str
    subsystem_id: str | None


class HealthFields(Frozen):
    """What the driver reports about one GPU. None: it has no such field."""

    recovery: RecoveryAction | None
    rows_pending: bool
    rows_failed: bool


class NvLinkPeer(Frozen):
    """The far end of an active NVLink. is_switch: None if the driver does not report it."""

    bus_id: PciBusId
    is_switch: bool | None


class GpuQueries(Binding):
    """Reads the node and its GPUs through an open session. Every method may raise a HardwareError."""

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
        return Driver(str(self.call("nvmlSystemGetDriverVersion")), cuda_version(cuda), self.lacks)

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
        board = f"0x{info.pciSubSystemId:08x}" if info.pciSubSystemId else None
        return PciInfo(PciBusId(info.busId), f"0x{info.pciDeviceId:08x}", board)

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
        return str(self._unneeded(call, handle) or "") or None

    def brand(self, handle: Handle) -> str | None:
        """``Nvidia``, ``Tesla``: see ``BRANDS``."""
        return BRANDS.get(self._unneeded("nvmlDeviceGetBrand", handle, absent=NOT_HERE))

    def addressing_mode(self, handle: Handle) -> str | None:
        """``HMM``, ``ATS`` or ``None``; None if driver or GPU know no such mode."""
        return ADDRESSING_MODES.get(self._unneeded("nvmlDeviceGetAddressingMode", handle, absent=NOT_HERE))

    def _unneeded(self, call: str, handle: Handle, *more: int, absent: frozenset[int] = ABSENT) -> Any:  # noqa: ANN401 - of that call
        """An answer without which a GPU is no worse; None if there is none."""
        try:
            return self.optional(call, handle, *more, absent=absent)
        except (DriverUnavailable, GpuLost, HardwareTimeout):
            raise
        except HardwareError:
            return None

    def nearest_node(self, handle: Handle) -> int | None:
        """The NUMA node whose memory is nearest; None if there are several, or the driver does not say.

        Not nvmlDeviceGetNumaNodeId: that is the node that a GPU's own memory is, on a Grace Hopper.
        """
        words = self._unneeded(
            "nvmlDeviceGetMemoryAffinity", handle, _NODE_WORDS, _SCOPE_NODE, absent=NOT_HERE
        )
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


def _recovery(value: int | None) -> RecoveryAction | None:
    """The action; None for a number that this version does not know."""
    try:
        return None if value is None else RecoveryAction(value)
    except ValueError:
        return None
