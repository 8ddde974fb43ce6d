"""The policy: how each GPU of a node is shared. One value for every file format.

``Policy`` selects GPUs by criteria; ``plan.offer.assign`` applies it to the GPUs of a node. There are two
kinds of entries because the file formats differ: Partage's own format and mig-parted's select *GPUs*,
NVIDIA's selects devices of a *resource*.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from msgspec import field

from partage.model.ids import ResourceName
from partage.model.layout import LayoutItem
from partage.model.strategy import Interval, Strategy, Via
from partage.values import Frozen, Tagged


class Exclusive(Tagged):
    """One container holds the device."""

    strategy: ClassVar[Strategy] = Strategy.EXCLUSIVE


class UnitPlacement(StrEnum):
    """On which GPU a container gets units of memory: where least is left that is enough, or most."""

    BINPACK = "binpack"
    SPREAD = "spread"


class MemoryUnits(Frozen):
    """A device is shared by amounts of memory: a container asks for a number of units of one device.

    unit_bytes: whole MiB.
    """

    unit_bytes: int
    placement: UnitPlacement = UnitPlacement.BINPACK


class SharingClient(Frozen):
    """One of several unequal shares. memory_bytes, threads_percent: None means an equal part of the rest.

    threads_percent: only under MPS.
    """

    name: str | None = None
    memory_bytes: int | None = None
    threads_percent: int | None = None


class TimeSlicing(Tagged):
    """Processes take turns on the device.

    replicas: 2 or more; the number of clients if ``clients`` is given; 0 with units.
    interval: None leaves the length of the slice alone.
    units:    shares by amounts of memory, in place of replicas and clients.
    clients:  unequal shares, in the order of the file; empty for equal ones.
    limited:  the driver is to hold each container to the memory of its shares (``model.driver_limit``).
    """

    strategy: ClassVar[Strategy] = Strategy.TIME_SLICING
    replicas: int
    interval: Interval | None = None
    units: MemoryUnits | None = None
    clients: tuple[SharingClient, ...] = ()
    limited: bool = False


class Mps(Tagged):
    """Processes run at the same time through one MPS server.

    replicas: 2 or more; the number of clients if ``clients`` is given; 0 with units.
    clients:  unequal shares, in the order of the file; empty for equal ones.
    units:    shares by amounts of memory, in place of replicas and clients.
    exclusive_process: whether the GPU is set to exclusive-process mode meanwhile.
    multi_user: one server for the clients of all users; False: one user at a time. None: if the driver can
    do it.
    protocol: version of the daemon's control interface. 2; or 3: unequal shares have namespaces with limits
    of their own.
    """

    strategy: ClassVar[Strategy] = Strategy.MPS
    replicas: int
    clients: tuple[SharingClient, ...] = ()
    exclusive_process: bool = True
    multi_user: bool | None = None
    protocol: int = 2
    units: MemoryUnits | None = None


Sharing = Exclusive | TimeSlicing | Mps
"""How one device, a whole GPU or a MIG device, is shared."""


def clients_of(sharing: Sharing) -> tuple[SharingClient, ...]:
    """The unequal shares of a device; () if its shares are equal."""
    return () if isinstance(sharing, Exclusive) else sharing.clients


class DesiredMig(Frozen):
    """The MIG layout that a GPU should have. enabled False: MIG mode off (as mig-parted's mig-enabled).

    named: name of a layout (``all-balanced``) instead of ``items``; its MIG devices depend on the GPU model
    (``model.layout``). on_demand: in a policy, instead of both: what claims ask for is made
    (``plan.offer.on_demand``). spared: GPU instances without a MIG device that are not touched: while there
    is one, nothing is changed.
    """

    items: tuple[LayoutItem, ...] = ()
    enabled: bool = True
    named: str | None = None
    on_demand: bool = False
    spared: tuple[LayoutItem, ...] = ()


# --- which GPUs ------------------------------------------------------------------------------


class AllDevices(Tagged):
    """Every GPU of the node, or every device of the resource (``all``)."""


class RemainingGpus(Tagged):
    """Every GPU that no other entry selects (``rest``)."""


class GpuCriteria(Tagged):
    """GPUs that meet every criterion given; an empty tuple is no criterion.

    index: NVML indexes. uuid: UUIDs as written, in any case. model: product names or ids of the catalogue,
    ``*`` allowed. pci: bus addresses. device_filter: mig-parted's ``0xDDDDVVVV[:0xSSSSVVVV]``, lower case;
    other text matches no GPU.
    """

    index: tuple[int, ...] = ()
    uuid: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    device_filter: tuple[str, ...] = ()


GpuSelector = AllDevices | RemainingGpus | GpuCriteria


class LowestIndexes(Tagged):
    """The n devices with the lowest NVML indexes, lost GPUs included (NVIDIA's ``devices: n``)."""

    n: int


class ListedDevices(Tagged):
    """NVIDIA's ``devices`` list. mig_index: pairs ``(gpu, mig device)`` of ``"0:1"``; uuid: of GPUs or MIG
    devices, as written.
    """

    index: tuple[int, ...] = ()
    mig_index: tuple[tuple[int, int], ...] = ()
    uuid: tuple[str, ...] = ()


DeviceSelector = AllDevices | LowestIndexes | ListedDevices


# --- entries -----------------------------------------------------------------------------------


class LabelCondition(Frozen):
    """The Node has the label ``key`` with one of these values."""

    key: str
    values: tuple[str, ...]


class WatchAction(StrEnum):
    """What happens to a container that exceeds its share."""

    OFF = "off"
    WARN = "warn"
    KILL = "kill"


class SparedPods(StrEnum):
    """Pods that a drain leaves alone, unless the policy names them.

    bare: no controller makes them again. system-critical: of the priority of system-cluster-critical or more.
    """

    BARE = "bare"
    SYSTEM_CRITICAL = "system-critical"


class Drain(Frozen):
    """Pods that hold shares are asked to leave, so that the GPU can change.

    deadline_s: for how long, in seconds. also: which of the pods that are spared otherwise.
    """

    deadline_s: int = 600
    also: tuple[SparedPods, ...] = ()


class GpuEntry(Tagged):
    """How the selected GPUs are used. If ``mig`` is set, ``sharing`` is that of each MIG device.

    origin: path in the file, ``gpus[1]``; problems that are found later name it.
    name:   name of the resource; None: the default name.
    drain: how pods that hold shares are asked to leave before the GPU changes; None: it waits until they end.
    when:   the entry counts on nodes whose labels meet all of these; () on every node.
    in_place_of: what the node's label asks for and Partage does not have (``node_labels.STOOD_FOR``), and
    this entry is the nearest; empty: nothing.
    via: how pods ask for its shares.
    """

    origin: str
    select: GpuSelector
    sharing: Sharing = field(default_factory=Exclusive)
    mig: DesiredMig | None = None
    name: ResourceName | None = None
    guard: bool = False
    watch: WatchAction = WatchAction.WARN
    drain: Drain | None = None
    when: tuple[LabelCondition, ...] = ()
    in_place_of: str = ""
    via: Via = Via.DEVICE_PLUGIN


class ResourceEntry(Tagged):
    """How the selected devices of a resource are shared (an item of NVIDIA's ``sharing.*.resources``).

    rename: name of the shares; None: the resource's own name, with ``.shared`` if the file asks for that.
    """

    origin: str
    resource: ResourceName
    devices: DeviceSelector
    sharing: TimeSlicing | Mps
    rename: ResourceName | None = None
    shared_suffix: bool = False
    fail_requests_greater_than_one: bool = False


class MigStrategy(StrEnum):
    """The resource name of MIG devices: none at all, ``nvidia.com/gpu``, or one for each profile."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class AllocationPolicy(StrEnum):
    """Which shares are preferred for a request."""

    DISTRIBUTED = "distributed"
    PACKED = "packed"


class DeviceListStrategy(StrEnum):
    """How a container learns which devices it has (NVIDIA's ``deviceListStrategy``)."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


class DeviceIdStrategy(StrEnum):
    """The names of a container's devices (NVIDIA's ``deviceIDStrategy``)."""

    UUID = "uuid"
    INDEX = "index"


class NamePattern(Frozen):
    """Devices whose product or profile matches ``pattern`` get this resource name. ``*`` matches any text."""

    pattern: str
    name: ResourceName


class Options(Frozen):
    """Settings for all GPUs of the node. The defaults are those of Partage's own format.

    rename_shared, fail_requests_greater_than_one: for ``GpuEntry``; a ``ResourceEntry`` has its own.
    gpu_names, mig_names: the first match counts (NVIDIA's ``resources``).
    driver_root, dev_root: host paths of the driver and of the device files.
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
        """CDI is one of the ways in which containers learn their devices."""
        return any(
            way in (DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI)
            for way in self.device_list
        )

    @property
    def only_cdi(self) -> bool:
        """CDI is the only way in which containers learn their devices."""
        return bool(self.device_list) and all(
            way in (DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI)
            for way in self.device_list
        )


class NodeLayouts(Frozen):
    """The MIG layouts that the label of a Node asks for, beside those of the policy's entries.

    name: the label's value. entries: as those of mig-parted: the last one that matches a GPU counts. Only
    their selectors and layouts matter; how devices are shared is said by the policy.
    """

    name: str
    entries: tuple[GpuEntry, ...]


class Policy(Frozen):
    """What the operator wants on a node.

    source: the file's name as given; empty for the built-in policy. format: ``partage/v1``, ``nvidia/v1``
    or ``mig-parted/v1``. later_wins: a later entry overrides an earlier one (mig-parted); otherwise two
    entries for one device are an error. layouts: of the node's label; None: it has none.
    """

    entries: tuple[GpuEntry | ResourceEntry, ...] = ()
    options: Options = field(default_factory=Options)
    source: str = ""
    format: str = "partage/v1"
    later_wins: bool = False
    layouts: NodeLayouts | None = None


ALL_EXCLUSIVE = Policy()
"""The policy that is used if none is given: every GPU exclusive."""
