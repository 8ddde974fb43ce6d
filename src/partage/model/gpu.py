"""The GPUs of a node, their MIG devices, the links between them, and the driver: one immutable snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum

from partage.model.driver_limit import LimitSetter, LimitSupport
from partage.model.geometry import Geometry, Placement
from partage.model.ids import DeviceUuid, GpuUuid, MigUuid, PciBusId
from partage.values import Frozen, Tagged

ARCHITECTURES = {
    2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere",
    8: "ada", 9: "hopper", 10: "blackwell", 13: "rubin",
}  # fmt: skip
"""Architecture by NVML's number. Source: nvml.h, NVML_DEVICE_ARCH_*."""

UNKNOWN_ARCHITECTURE = "unknown"

BRANDS = {
    0: "Unknown", 1: "Quadro", 2: "Tesla", 3: "NVS", 4: "Grid", 5: "GeForce", 6: "Titan", 7: "NvidiaVApps",
    8: "NvidiaVPC", 9: "NvidiaVCS", 10: "NvidiaVWS", 11: "NvidiaCloudGaming", 12: "QuadroRTX",
    13: "NvidiaRTX", 14: "Nvidia", 15: "GeForceRTX", 16: "TitanRTX",
}  # fmt: skip
"""Brand by NVML's number, in the words of NVIDIA's DRA driver. Source: nvml.h, nvmlBrandType_t; go-nvlib."""

ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}
"""How CPU memory is addressed, by NVML's number. Source: nvml.h, NVML_DEVICE_ADDRESSING_MODE_*."""


def architecture_name(number: int | None) -> str:
    """``hopper`` for NVML's 9; ``unknown`` for None and for a number that is not in the table."""
    return ARCHITECTURES.get(number or 0, UNKNOWN_ARCHITECTURE)


def cuda_version(number: int) -> str:
    """``12.4`` for the driver's 12040. Source: nvml.h, nvmlSystemGetCudaDriverVersion."""
    return f"{number // 1000}.{number % 1000 // 10}"


class NamedNumber(IntEnum):
    """A number of NVIDIA's libraries that files and messages write as a word."""

    @property
    def word(self) -> str:
        """``exclusive-process`` for EXCLUSIVE_PROCESS."""
        return self.name.lower().replace("_", "-")


class ComputeMode(NamedNumber):
    """Who may open a context on a GPU. Source: nvml.h, nvmlComputeMode_t."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class RecoveryAction(NamedNumber):
    """What the driver says a GPU needs. Source: nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (230)."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


class LinkPath(NamedNumber):
    """How two GPUs are joined over PCIe; nearer is greater, in NVIDIA's scoring (facts 3.5)."""

    CROSS_CPU = 10
    SAME_CPU = 20
    HOST_BRIDGE = 30
    MULTI_SWITCH = 40
    SINGLE_SWITCH = 50
    SAME_BOARD = 60


class MigMode(Frozen):
    """current: MIG mode now; pending: MIG mode after the next reset."""

    current: bool
    pending: bool


class MigDevice(Frozen):
    """One compute instance: the device that CUDA sees and a container gets.

    index:        position in NVML's list of the GPU's MIG devices, the ``1`` of ``0:1``.
    profile:      canonical name, ``1g.10gb``, ``1c.3g.40gb``, ``1g.10gb+me``.
    placement:    memory slices of its GPU instance; None if only root may read them.
    memory_bytes: memory of its GPU instance.
    gi_minor, ci_minor: N of ``/dev/nvidia-caps/nvidia-capN``; None if not known.
    missing_file: one of these files that does not exist on the node; empty: none is known to be missing.
    multiprocessors: of its compute instance; None if not known.
    """

    uuid: MigUuid
    index: int
    gi_id: int
    ci_id: int
    profile: str
    placement: Placement | None
    memory_bytes: int
    gi_minor: int | None = None
    ci_minor: int | None = None
    missing_file: str = ""
    multiprocessors: int | None = None

    @property
    def known_placement(self) -> Placement:
        """The placement where it must be known: in a simulation, and where steps are planned.

        Raises ValueError.
        """
        if self.placement is None:
            raise ValueError(f"only root may read where MIG device {self.uuid} is")
        return self.placement

    @property
    def capability_files(self) -> tuple[str, ...]:
        """The files that give access to its GPU instance and to itself, as far as they are known."""
        minors = (self.gi_minor, self.ci_minor)
        return tuple(capability_file(minor) for minor in minors if minor is not None)


def capability_file(minor: int) -> str:
    """The device file of a MIG capability, as a path in a container."""
    return f"/dev/nvidia-caps/nvidia-cap{minor}"


class EmptyInstance(Frozen):
    """A GPU instance without compute instances. It has no MIG device, but occupies slices."""

    gi_id: int
    profile: str
    placement: Placement


class Gpu(Frozen):
    """One physical GPU that answers.

    index:  NVML's index. minor: the N of ``/dev/nvidiaN``. On real nodes the two can differ.
    product: name as NVML returns it. architecture: ``volta``, ``ampere``, ... or ``unknown``.
    pci_device_id: device and vendor id, ``0x233010de``, lower case. pci_subsystem_id: the same of the board
    that carries it; None if not known. Boards of one device id can differ by it.
    mig_mode: None for a GPU without MIG.
    mig_hidden: only root may read where its MIG devices are, and which GPU instances are empty.
    serial, board_part_number, vbios_version: None if the driver does not report it, as for consumer GPUs.
    brand, addressing_mode: a word of ``BRANDS`` and of ``ADDRESSING_MODES``. pcie_root: the root complex
    above it, ``pci0000:00``. None: not known.
    recovery, persistence: None if the driver does not report it. persistence: persistence mode is on.
    pci_class: class code of the PCI device, ``0x030200`` for a GPU without display; None if not known.
    clique: cluster UUID and clique of the NVLink fabric that it has joined, ``<uuid>.<number>``; None: none.
    geometry: what its driver says that MIG allows; None where nobody asked, as for models of the catalogue.
    limits: whether containers can have memory limits of the driver's on it; None where nobody asked.
    """

    index: int
    uuid: GpuUuid
    minor: int
    product: str
    architecture: str
    compute_capability: tuple[int, int]
    memory_bytes: int
    pci_bus_id: PciBusId
    pci_device_id: str
    numa_node: int | None = None
    mig_mode: MigMode | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    empty_instances: tuple[EmptyInstance, ...] = ()
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    recovery: RecoveryAction | None = None
    persistence: bool | None = None
    mig_hidden: bool = False
    pci_class: int | None = None
    clique: str | None = None
    pci_subsystem_id: str | None = None
    geometry: Geometry | None = None
    serial: str | None = None
    board_part_number: str | None = None
    vbios_version: str | None = None
    brand: str | None = None
    addressing_mode: str | None = None
    pcie_root: str | None = None
    limits: LimitSupport | None = None

    @property
    def mig_enabled(self) -> bool:
        """MIG mode is on now."""
        return self.mig_mode is not None and self.mig_mode.current

    @property
    def mig_pending(self) -> bool:
        """MIG mode changes with the next reset."""
        return self.mig_mode is not None and self.mig_mode.current != self.mig_mode.pending

    @property
    def mig_unplaced(self) -> bool:
        """It is not known where its MIG devices are: only root may ask."""
        return any(device.placement is None for device in self.mig_devices)


def devices_of(gpus: Iterable[Gpu]) -> frozenset[DeviceUuid]:
    """The UUIDs of GPUs and of their MIG devices."""
    uuids: set[DeviceUuid] = set()
    for gpu in gpus:
        uuids |= {gpu.uuid, *(device.uuid for device in gpu.mig_devices)}
    return frozenset(uuids)


def gpu_of_mig_devices(gpus: Iterable[Gpu]) -> dict[DeviceUuid, GpuUuid]:
    """The GPU of each MIG device, by UUID."""
    return {device.uuid: gpu.uuid for gpu in gpus for device in gpu.mig_devices}


class LostGpu(Frozen):
    """A GPU that NVML lists but cannot open. uuid and pci_bus_id: None if they can no longer be read."""

    index: int
    uuid: GpuUuid | None
    pci_bus_id: PciBusId | None
    reason: str


class Link(Frozen):
    """How two GPUs are connected. nvlinks: number of active NVLinks between them, including those through
    NVSwitch.
    """

    a: GpuUuid
    b: GpuUuid
    path: LinkPath
    nvlinks: int = 0


class Driver(Tagged):
    """A working driver. version: ``550.163.01``; cuda: ``12.4``.

    lacks: functions of ``model.nvml_functions`` that its library does not have.
    """

    version: str
    cuda: str
    lacks: tuple[str, ...] = ()


PAUSED = "paused"
"""Kind of ``NoDriver``: the driver is left alone while something else exchanges it."""


class NoDriver(Tagged):
    """Why no GPU can be seen: a state with an explanation, not an exception.

    kind: ``library-missing``, ``driver-missing``, ``version-mismatch``, ``no-permission``, ``resetting``,
    ``paused``, ``failed``.
    """

    kind: str
    reason: str
    hint: str = ""


class VgpuHost(Frozen):
    """The driver of the hypervisor whose vGPUs this virtual machine has.

    version: ``550.144.02``; branch: ``r550_00``; both empty if it does not say.
    """

    version: str
    branch: str


class ToolkitConfig(Frozen):
    """What NVIDIA's container toolkit says of unprivileged containers. path: of its file, on the node.

    accepts_env: they may choose GPUs by NVIDIA_VISIBLE_DEVICES; stated: the file says so itself, else it is
    the toolkit's default. accepts_mounts: by volume mounts.
    """

    path: str
    accepts_env: bool
    stated: bool
    accepts_mounts: bool


class Inventory(Frozen):
    """One snapshot of a node.

    gpus:  ordered by index. lost: GPUs that do not answer, ordered by index.
    links: one for each unordered pair of GPUs that answer.
    control_nodes: control device files that exist (``/dev/nvidiactl`` ...), as paths in a container.
    boot_id: changes with every boot of the node.
    open_to_env: True if an unprivileged pod can set NVIDIA_VISIBLE_DEVICES itself; None: not known.
    fabric_manager: NVIDIA's fabric manager runs on this node; None: not known, or not needed.
    virtual: the node is a virtual machine; None: not known.
    simulated: the node is a simulation.
    machine_type: name of the machine in its firmware, ``DGXH100``; empty if not known.
    vgpu: the GPUs are vGPUs of this host; None: they are not.
    toolkit: where open_to_env was read; None: nowhere.
    restricted_mps: pods that ask for MPS shares are refused unless none of their processes is or can become
    the node's root. No machine knows that: whoever runs Partage says it.
    limits_by: what sets the driver's memory limits before a container starts; None: nobody looked.
    """

    driver: Driver | NoDriver
    gpus: tuple[Gpu, ...] = ()
    lost: tuple[LostGpu, ...] = ()
    links: tuple[Link, ...] = ()
    control_nodes: tuple[str, ...] = ()
    boot_id: str = ""
    open_to_env: bool | None = None
    fabric_manager: bool | None = None
    virtual: bool | None = None
    simulated: bool = False
    machine_type: str = ""
    vgpu: VgpuHost | None = None
    toolkit: ToolkitConfig | None = None
    restricted_mps: bool = False
    limits_by: LimitSetter | None = None

    def __iter__(self) -> Iterator[Gpu]:
        return iter(self.gpus)

    def gpu(self, uuid: GpuUuid) -> Gpu | None:
        """The GPU with this UUID if it answers, else None."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    @property
    def memory_of_devices(self) -> dict[DeviceUuid, int]:
        """Bytes of each GPU and MIG device, as NVML counts them."""
        return {gpu.uuid: gpu.memory_bytes for gpu in self.gpus} | {
            mig.uuid: mig.memory_bytes for gpu in self.gpus for mig in gpu.mig_devices
        }
