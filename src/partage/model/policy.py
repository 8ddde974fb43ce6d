"""The policy: for every GPU of a node, how it is shared. One value, whatever file it was read from.

``Policy`` is what the operator wants, in terms of selectors; ``plan.offer.assign`` lays it over an inventory.
Two kinds of entry exist because the file formats speak of two things: Partage's own format and
mig-parted's select *GPUs*, NVIDIA's selects the devices of a *resource*.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from partage.model.ids import ResourceName
from partage.model.layout import LayoutItem


class Strategy(StrEnum):
    """What a GPU is used for. All shares held on one GPU belong to one strategy."""

    EXCLUSIVE = "exclusive"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"


class Interval(StrEnum):
    """Length of a time slice (``nvidia-smi compute-policy --set-timeslice``)."""

    DEFAULT = "default"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class Exclusive:
    """One container holds the device."""


@dataclass(frozen=True, slots=True)
class TimeSlicing:
    """Contexts take turns. replicas: 2 or more. interval: None leaves the slice length alone."""

    replicas: int
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class MpsClient:
    """One share of unequal shares. memory_bytes, threads_percent: None means an even part."""

    name: str | None = None
    memory_bytes: int | None = None
    threads_percent: int | None = None


@dataclass(frozen=True, slots=True)
class Mps:
    """Processes run side by side through one MPS server.

    replicas: 2 or more; the number of clients where ``clients`` is given.
    clients:  unequal shares, in the order of the file; empty for even ones.
    exclusive_process: whether the GPU is put in exclusive-process mode meanwhile.
    multi_user: one server for the clients of all users; False: users wait for each other. None: where the
    driver can do it.
    protocol: version of the daemon's control interface. 2; or 3: shares that differ have namespaces, each
    with limits of its own.
    """

    replicas: int
    clients: tuple[MpsClient, ...] = ()
    exclusive_process: bool = True
    multi_user: bool | None = None
    protocol: int = 2


Sharing = Exclusive | TimeSlicing | Mps
"""How one device, a whole GPU or a MIG device, is shared."""


@dataclass(frozen=True, slots=True)
class DesiredMig:
    """The MIG layout that a GPU should have. enabled False: MIG mode off (mig-parted says so).

    named: the layout's name (``all-balanced``) in place of ``items``; which MIG devices that are depends on
    the GPU's model (``model.named_layouts``).
    """

    items: tuple[LayoutItem, ...] = ()
    enabled: bool = True
    named: str | None = None


# --- which GPUs ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AllDevices:
    """Every GPU of the node (``all``)."""


@dataclass(frozen=True, slots=True)
class RemainingGpus:
    """Every GPU that no other entry selects."""


@dataclass(frozen=True, slots=True)
class GpuCriteria:
    """GPUs that meet every criterion given; an empty criterion is none.

    index: NVML indexes. uuid: UUIDs. model: product names or catalogue ids, ``*`` allowed.
    pci: bus addresses. device_filter: mig-parted's ``0xDDDDVVVV[:0xSSSSVVVV]``, lower case.
    """

    index: tuple[int, ...] = ()
    uuid: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    device_filter: tuple[str, ...] = ()


GpuSelector = AllDevices | RemainingGpus | GpuCriteria


@dataclass(frozen=True, slots=True)
class LowestIndexes:
    """The n lowest NVML indexes, lost GPUs counted (NVIDIA's ``devices: n``)."""

    n: int


@dataclass(frozen=True, slots=True)
class ListedDevices:
    """NVIDIA's ``devices`` list. mig_index: pairs ``(gpu, mig device)`` of ``"0:1"``; uuid: GPU or MIG."""

    index: tuple[int, ...] = ()
    mig_index: tuple[tuple[int, int], ...] = ()
    uuid: tuple[str, ...] = ()


DeviceSelector = AllDevices | LowestIndexes | ListedDevices


# --- entries -----------------------------------------------------------------------------------


class WatchAction(StrEnum):
    """What happens to a container that exceeds its share."""

    OFF = "off"
    WARN = "warn"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class GpuEntry:
    """For these GPUs, this. ``mig`` set: the layout, and ``sharing`` is that of each MIG device.

    origin: path in the file, ``gpus[1]``; problems found later point there.
    name:   the resource's name in place of the default; None: the default.
    """

    origin: str
    select: GpuSelector
    sharing: Sharing = field(default_factory=Exclusive)
    mig: DesiredMig | None = None
    name: ResourceName | None = None
    guard: bool = False
    watch: WatchAction = WatchAction.WARN


@dataclass(frozen=True, slots=True)
class ResourceEntry:
    """For these devices of this resource, this sharing (an item of NVIDIA's ``sharing.*.resources``).

    rename: the name of the shares; None: the resource's own, with ``.shared`` where that is asked for.
    """

    origin: str
    resource: ResourceName
    devices: DeviceSelector
    sharing: TimeSlicing | Mps
    rename: ResourceName | None = None
    shared_suffix: bool = False
    fail_requests_greater_than_one: bool = False


class MigStrategy(StrEnum):
    """How MIG devices are named: not at all, as ``nvidia.com/gpu``, or by profile."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class AllocationPolicy(StrEnum):
    """Which shares are preferred for one request."""

    DISTRIBUTED = "distributed"
    PACKED = "packed"


class DeviceListStrategy(StrEnum):
    """How a container is told which devices it has (NVIDIA's ``deviceListStrategy``)."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


class DeviceIdStrategy(StrEnum):
    """What a container's devices are called (NVIDIA's ``deviceIDStrategy``)."""

    UUID = "uuid"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class NamePattern:
    """Devices whose product or profile matches get this resource name. ``*`` matches any run."""

    pattern: str
    name: ResourceName


@dataclass(frozen=True, slots=True)
class Options:
    """What holds for all GPUs of the node. The defaults are those of Partage's own format.

    rename_shared, fail_requests_greater_than_one: for ``GpuEntry``; a ``ResourceEntry`` has its own.
    gpu_names, mig_names: first match wins (NVIDIA's ``resources``).
    driver_root, dev_root: host prefixes of the driver and of the device nodes.
    imex_channels: () or (0,).
    """

    rename_shared: bool = True
    fail_requests_greater_than_one: bool = True
    mig_strategy: MigStrategy = MigStrategy.MIXED
    allocation: AllocationPolicy = AllocationPolicy.DISTRIBUTED
    device_list: tuple[DeviceListStrategy, ...] = (DeviceListStrategy.ENVVAR,)
    device_ids: DeviceIdStrategy = DeviceIdStrategy.UUID
    device_specs: bool = False
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    nvidia_ctk: str = "/usr/bin/nvidia-ctk"
    driver_root: str = "/"
    dev_root: str = "/"
    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    fail_on_init_error: bool = True
    gpu_names: tuple[NamePattern, ...] = ()
    mig_names: tuple[NamePattern, ...] = ()

    @property
    def uses_cdi(self) -> bool:
        """Containers are told by CDI, among others."""
        return any(
            way in (DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI)
            for way in self.device_list
        )

    @property
    def only_cdi(self) -> bool:
        """Containers are told by CDI alone: nothing else is put into the answer."""
        return bool(self.device_list) and all(
            way in (DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI)
            for way in self.device_list
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator wants of a node.

    source: the file's name as given, empty for the built-in policy. format: ``partage/v1``,
    ``nvidia/v1`` or ``mig-parted/v1``. later_wins: an entry may overrule an earlier one (mig-parted);
    otherwise two entries for one device are an error.
    """

    entries: tuple[GpuEntry | ResourceEntry, ...] = ()
    options: Options = field(default_factory=Options)
    source: str = ""
    format: str = "partage/v1"
    later_wins: bool = False


ALL_EXCLUSIVE = Policy()
"""The policy without a policy: every GPU exclusive."""
