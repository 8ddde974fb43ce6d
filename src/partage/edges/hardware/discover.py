"""Read the whole node once: what the driver and the node's files say, as an Inventory.

The connections between GPUs (PCIe paths, NVLinks, NVSwitches) are read once and kept. What MIG allows is
asked only for a GPU whose placements no catalogue has. The driver answers root only, and before R550 only
while MIG mode is on. Compute instances are not asked for: the driver lists them for a GPU instance that
exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from msgspec.structs import replace

from partage.edges.hardware.gpu_queries import Handle, NvLinkPeer
from partage.edges.hardware.host import CapabilityMinors, Host, nvml_address
from partage.edges.hardware.instances import empty_instances, possible_starts, profile_names
from partage.edges.hardware.memory_limits import cgroup_root, limit_support
from partage.edges.hardware.mig_devices import read_mig_devices, with_files
from partage.edges.hardware.nvml_queries import Nvml
from partage.edges.host.slurm_limits import limits_by_slurm
from partage.errors import DriverUnavailable, GpuLost, HardwareError, NotPermitted, Unsupported
from partage.model.geometry import Geometry, MigProfile, ProfileSpec, driver_geometry
from partage.model.gpu import Driver, Gpu, Inventory, Link, LostGpu, MigDevice, MigMode, NoDriver
from partage.model.health import GpuCondition
from partage.model.ids import GpuUuid, PciBusId
from partage.values import Frozen

Lacks = Callable[[Gpu], bool]
"""Whether nothing but the driver knows what this GPU allows."""


class AskedGeometries:
    """The geometries that were asked for. What a driver said of a GPU holds as long as it is loaded; one that
    said nothing is asked again when the MIG mode has changed."""

    def __init__(self, lacks: Lacks) -> None:
        self._lacks = lacks
        self._found: dict[tuple[GpuUuid, str], Geometry] = {}
        self._nothing: set[tuple[GpuUuid, str, MigMode | None]] = set()

    def of(self, nvml: Nvml, handle: Handle, gpu: Gpu, driver_version: str) -> Geometry | None:
        """What the driver says of ``gpu``; None if it need not be asked, or says nothing. Raises GpuLost,
        DriverUnavailable."""
        known = self._found.get((gpu.uuid, driver_version))
        unanswered = (gpu.uuid, driver_version, gpu.mig_mode)
        if known is not None or unanswered in self._nothing:
            return known
        try:
            geometry = ask_geometry(nvml, handle, gpu) if self._lacks(gpu) else None
        except (GpuLost, DriverUnavailable):
            raise
        except HardwareError:
            return None  # the GPU works all the same; asked again next time
        if geometry is None:
            self._nothing.add(unanswered)
        else:
            self._found[gpu.uuid, driver_version] = geometry
        return geometry


def ask_geometry(nvml: Nvml, handle: Handle, gpu: Gpu) -> Geometry | None:
    """What the driver says; None if it says nothing of places to this user, or in this MIG mode. Raises
    HardwareError."""
    try:
        specs = tuple(_specs(nvml, handle, gpu.memory_bytes))
    except (NotPermitted, Unsupported):
        return None
    return driver_geometry(gpu.product, specs, nvml.most_mig_devices(handle))


def _specs(nvml: Nvml, handle: Handle, memory_bytes: int) -> Iterator[ProfileSpec]:
    kinds = nvml.gi_profiles(handle)
    for profile_id, (name, _) in profile_names(kinds, memory_bytes).items():
        places = possible_starts(nvml, handle, profile_id) or ()
        sizes = {place.size for place in places}
        if len(sizes) != 1:
            continue  # nowhere, or not a place that a step could name
        kind = kinds[profile_id]
        starts = tuple(sorted(place.start for place in places))
        yield ProfileSpec(
            profile=MigProfile.parse(name),
            compute_slices=kind.slices,
            size=sizes.pop(),
            starts=starts,
            preferred_starts=starts,
            max_count=kind.most,
            memory_bytes=kind.memory_bytes,
            engines=kind.engines,
        )


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


_NO_GPUS = frozenset({"DGX Display", "NVIDIA DGX Display"})
"""Products that only drive a monitor. NVIDIA's plugin ignores them too."""


class GpuIdentity(Frozen):
    """What is still known of a GPU that no longer answers."""

    uuid: GpuUuid | None
    pci_bus_id: PciBusId | None


class Discovery:
    """Reads the node repeatedly, and remembers what does not change. For one thread."""

    def __init__(self, nvml: Nvml, host: Host, lacks_geometry: Lacks = lambda _: False) -> None:
        """lacks_geometry: the GPUs whose driver is asked what MIG allows on them."""
        self._geometries = AskedGeometries(lacks_geometry)
        self._nvml = nvml
        self._host = host
        self._topology = Topology()
        self._seen: dict[int, GpuIdentity] = {}
        self._listed = 0
        self._virtual = host.virtual()
        self._machine_type = host.machine_type()

    def without_driver(self, reason: NoDriver) -> Inventory:
        """What is known of a node whose driver does not work."""
        return self._inventory(reason)

    def inventory(self) -> Inventory:
        """The whole node. Raises DriverUnavailable; a GPU that fails becomes a LostGpu."""
        driver = self._nvml.driver()
        count = self._count()
        minors = self._host.capability_minors()
        found: dict[Gpu, Handle] = {}
        lost: list[LostGpu] = []
        for index in range(count):
            try:
                gpu, handle = self._gpu(index, minors)
                gpu = replace(gpu, geometry=self._geometries.of(self._nvml, handle, gpu, driver.version))
            except DriverUnavailable:
                raise
            except HardwareError as error:
                lost.append(self._lost(index, count, error))
            else:
                if gpu.product not in _NO_GPUS:
                    found[gpu] = handle
        addresses = [gpu.pci_bus_id for gpu in found] + [gpu.pci_bus_id for gpu in lost if gpu.pci_bus_id]
        links = self._topology.links(self._nvml, driver.version, found, addresses)
        return self._inventory(driver, tuple(found), tuple(lost), links)

    def conditions(self) -> tuple[GpuCondition, ...]:
        """The driver's report on each GPU, by index; without lost GPUs whose UUID is not known."""
        count = self._count()
        found = (self._condition(index, count) for index in range(count))
        return tuple(condition for condition in found if condition is not None)

    def _inventory(
        self,
        driver: Driver | NoDriver,
        gpus: tuple[Gpu, ...] = (),
        lost: tuple[LostGpu, ...] = (),
        links: tuple[Link, ...] = (),
    ) -> Inventory:
        toolkit = self._host.toolkit()
        return Inventory(
            driver=driver,
            gpus=gpus,
            lost=lost,
            links=links,
            control_nodes=self._host.control_nodes(),
            boot_id=self._host.boot_id(),
            open_to_env=None if toolkit is None else toolkit.accepts_env,
            toolkit=toolkit,
            fabric_manager=self._fabric_manager(gpus),
            virtual=self._virtual,
            machine_type=self._machine_type,
            limits_by=limits_by_slurm(self._host.etc, self._host.run.parent, cgroup_root(self._host)),
            vgpu=next(filter(None, (self._host.vgpu(gpu.pci_bus_id) for gpu in gpus)), None),
        )

    def _fabric_manager(self, gpus: Sequence[Gpu]) -> bool | None:
        """Read only if a reset depends on it (``plan.reconcile.resets``), because it reads all of /proc."""
        resets = [gpu for gpu in gpus if gpu.architecture == "ampere" and gpu.mig_mode is not None]
        return self._host.fabric_manager() if len(resets) > 1 else None

    def _count(self) -> int:
        """How many GPUs NVML lists. When the number changes, what was remembered by index is dropped."""
        count = self._nvml.count()
        if count != self._listed:
            self._listed = count
            self._seen.clear()
            self._nvml.memory.forget()
        return count

    def _gpu(self, index: int, minors: CapabilityMinors) -> tuple[Gpu, Handle]:
        """One GPU. A failure is tried again once: MIG devices may be destroyed while they are read."""
        try:
            return self._read_gpu(index, minors)
        except (DriverUnavailable, GpuLost):
            raise
        except HardwareError:
            self._nvml.memory.forget()
            return self._read_gpu(index, self._host.capability_minors())

    def _read_gpu(self, index: int, minors: CapabilityMinors) -> tuple[Gpu, Handle]:
        nvml = self._nvml
        handle = nvml.handle(index)
        uuid = nvml.gpu_uuid(handle)
        known = self._known(index, handle, uuid)
        in_mig_mode = known.mig_enabled
        devices = self._mig_devices(handle, known.minor, known.memory_bytes, minors) if in_mig_mode else ()
        empty = empty_instances(nvml, handle, known.memory_bytes, devices) if in_mig_mode else ()
        gpu = replace(
            known,
            index=index,
            mig_devices=devices,
            mig_hidden=empty is None or any(device.placement is None for device in devices),
            empty_instances=empty or (),
            compute_mode=nvml.compute_mode(handle),
            recovery=nvml.fields(handle).recovery,
            persistence=nvml.persistence(handle),
            pci_class=self._host.pci_class(known.pci_bus_id),
            clique=nvml.clique(handle),
        )
        return gpu, handle

    def _known(self, index: int, handle: Handle, uuid: GpuUuid) -> Gpu:
        """What does not change on a GPU. After a change of its MIG mode it may be another device file."""
        nvml, memory = self._nvml, self._nvml.memory
        mig_mode = nvml.mig_mode(handle)
        known = memory.gpus.get(uuid)
        if known is not None and known.mig_mode == mig_mode:
            self._seen[index] = GpuIdentity(uuid, known.pci_bus_id)
            return known
        memory.forget_gpu(uuid, nvml.address(handle))
        pci = nvml.pci(handle)
        self._seen[index] = GpuIdentity(uuid, pci.bus_id)
        minor = nvml.minor(handle)
        known = memory.gpus[uuid] = Gpu(
            index=index,
            uuid=uuid,
            minor=index if minor is None else minor,  # WSL says none
            product=nvml.product(handle),
            architecture=nvml.architecture(handle),
            compute_capability=nvml.compute_capability(handle),
            memory_bytes=nvml.memory_bytes(handle),
            pci_bus_id=pci.bus_id,
            pci_device_id=pci.device_id,
            pci_subsystem_id=pci.subsystem_id,
            numa_node=self._numa_node(handle, pci.bus_id),
            mig_mode=mig_mode,
            serial=nvml.board_text("nvmlDeviceGetSerial", handle),
            board_part_number=nvml.board_text("nvmlDeviceGetBoardPartNumber", handle),
            vbios_version=nvml.board_text("nvmlDeviceGetVbiosVersion", handle),
            brand=nvml.brand(handle),
            addressing_mode=nvml.addressing_mode(handle),
            limits=limit_support(nvml, self._host, handle, pci.bus_id, mig_mode),
            pcie_root=self._host.pcie_root(pci.bus_id),
        )
        return known

    def _numa_node(self, handle: Handle, pci_bus_id: PciBusId) -> int | None:
        """As the kernel says; where it says none, as in many virtual machines, as the driver does."""
        node = self._host.numa_node(pci_bus_id)
        return self._nvml.nearest_node(handle) if node is None else node

    def _mig_devices(
        self, handle: Handle, gpu_minor: int, memory_bytes: int, minors: CapabilityMinors
    ) -> tuple[MigDevice, ...]:
        devices = read_mig_devices(
            self._nvml, handle, gpu_minor=gpu_minor, gpu_memory_bytes=memory_bytes, minors=minors
        )
        return with_files(self._host, gpu_minor, devices)

    def _condition(self, index: int, count: int) -> GpuCondition | None:
        try:
            handle = self._nvml.handle(index)
            uuid = self._nvml.gpu_uuid(handle)
            known = self._nvml.memory.gpus.get(uuid)
            if (known.product if known else self._nvml.product(handle)) in _NO_GPUS:
                return None
            fields = self._nvml.fields(handle)
            mig_mode = self._nvml.mig_mode(handle)
            return GpuCondition(
                gpu=uuid,
                recovery=fields.recovery,
                rows_pending=fields.rows_pending,
                rows_failed=fields.rows_failed,
                fabric_ok=self._nvml.fabric_ok(handle),
                mig_mode=mig_mode is not None and mig_mode.current,
            )
        except DriverUnavailable:
            raise
        except HardwareError as error:
            lost = self._lost(index, count, error)
            return None if lost.uuid is None else GpuCondition(gpu=lost.uuid, lost=lost.reason)

    def _lost(self, index: int, count: int, error: HardwareError) -> LostGpu:
        identity = self._seen.get(index) or self._identity_by_address(index, count)
        return LostGpu(index, identity.uuid, identity.pci_bus_id, error.problems[0].message)

    def _identity_by_address(self, index: int, count: int) -> GpuIdentity:
        """The identity of a GPU that has never answered: NVML lists GPUs in the order of their PCI addresses.

        Known only if the kernel module lists as many GPUs and agrees about all that answer.
        """
        addresses = self._host.gpu_addresses()
        agreed = len(addresses) == count and all(
            identity.pci_bus_id == nvml_address(addresses[place]) for place, identity in self._seen.items()
        )
        if not agreed:
            return GpuIdentity(None, None)
        return GpuIdentity(self._host.gpu_uuid(addresses[index]), nvml_address(addresses[index]))
