"""Small nodes, targets and resources for the tests of ``plan``."""

from __future__ import annotations

from msgspec.structs import replace

from partage.model.geometry import Placement
from partage.model.gpu import Driver, Gpu, Inventory, MigDevice, MigMode
from partage.model.ids import MEMORY_RESOURCE, GpuUuid, MigUuid, PciBusId, ResourceName, ShareId, share_id
from partage.model.policy import Exclusive, Mps, Sharing, TimeSlicing
from partage.model.share import DeviceOffer, Guarantee, Resource
from partage.model.strategy import Strategy
from partage.plan.offer.assign import Assignment
from partage.plan.offer.gpu_devices import Target
from partage.units import GIB

NAME = ResourceName("nvidia.com/gpu")


def gpu(
    index: int, *, memory_bytes: int = 80 * GIB, capability: tuple[int, int] = (9, 0), migs: int = 0
) -> Gpu:
    """An H100 unless told otherwise, with ``migs`` MIG devices of 1g.10gb. Its minor is not its index."""
    uuid = GpuUuid(f"GPU-{index:08d}-0000-0000-0000-000000000000")
    return Gpu(
        index=index,
        uuid=uuid,
        minor=index + 10,
        product="NVIDIA H100 80GB HBM3",
        architecture="hopper",
        compute_capability=capability,
        memory_bytes=memory_bytes,
        pci_bus_id=PciBusId(f"00000000:{index:02X}:00.0"),
        pci_device_id="0x233010de",
        numa_node=index // 4,
        mig_mode=MigMode(current=migs > 0, pending=migs > 0),
        mig_devices=tuple(_mig(uuid, n) for n in range(migs)),
        brand="Nvidia",
        addressing_mode="HMM",
        pcie_root="pci0000:00",
    )


def _mig(uuid: GpuUuid, n: int) -> MigDevice:
    return MigDevice(
        uuid=MigUuid(f"MIG-{uuid.removeprefix('GPU-')}-{n}"),
        index=n,
        gi_id=7 + n,
        ci_id=0,
        profile="1g.10gb",
        placement=Placement(n, 1),
        memory_bytes=10 * GIB,
        gi_minor=100 + 10 * n,
        ci_minor=101 + 10 * n,
    )


def node(*gpus: Gpu, driver: str = "550.163.01", open_to_env: bool | None = False) -> Inventory:
    """A node of these GPUs with two control nodes."""
    return Inventory(
        driver=Driver(driver, "12.4"),
        gpus=gpus,
        control_nodes=("/dev/nvidia-uvm", "/dev/nvidiactl"),
        open_to_env=open_to_env,
    )


def target(of: Gpu, sharing: Sharing | None = None, *, mig: int | None = None, **more: object) -> Target:
    """``of``, or its MIG device number ``mig``, shared like that."""
    sharing = Exclusive() if sharing is None else sharing
    device = None if mig is None else of.mig_devices[mig]
    known = Target(of, device, sharing, strategy_of(sharing, mig), NAME, origin=f"gpus[{of.index}]")
    return replace(known, **more)


def strategy_of(sharing: Sharing, mig: int | None = None) -> Strategy:
    """The GPU's strategy."""
    if mig is not None:
        return Strategy.MIG
    kinds = {Exclusive: Strategy.EXCLUSIVE, TimeSlicing: Strategy.TIME_SLICING, Mps: Strategy.MPS}
    return kinds[type(sharing)]


def assignment(*targets: Target) -> Assignment:
    """These targets, no problems."""
    return Assignment(targets, strategies={one.gpu.uuid: one.strategy for one in targets})


def offering(
    index: int,
    replicas: int = 1,
    *,
    shared: Strategy | None = None,
    mig: int | None = None,
    single: bool = False,
) -> DeviceOffer:
    """GPU ``index``, or a MIG device of it; time-sliced where it has replicas and nothing else is said."""
    if shared is None:
        shared = Strategy.TIME_SLICING if replicas > 1 else Strategy.EXCLUSIVE
    of = gpu(index, migs=0 if mig is None else mig + 1)
    return DeviceOffer(
        device=of.uuid if mig is None else of.mig_devices[mig].uuid,
        gpu=of.uuid,
        index=str(index) if mig is None else f"{index}:{mig}",
        gpu_index=index,
        resource=NAME,
        strategy=shared if mig is None else Strategy.MIG,
        shared=shared,
        replicas=replicas,
        memory_bytes=80 * GIB // replicas,
        guarantee=Guarantee.NONE if replicas > 1 else Guarantee.HARD,
        count=replicas,
        nodes=(f"/dev/nvidia{of.minor}",),
        single=single,
        profile=None if mig is None else "1g.10gb",
    )


def unit_row(index: int, units: int, unit_bytes: int = GIB, *, spread: bool = False) -> DeviceOffer:
    """GPU ``index``, shared by MPS in units of memory."""
    shared = offering(index, 2, shared=Strategy.MPS)
    return replace(
        shared,
        resource=MEMORY_RESOURCE,
        replicas=units,
        count=units,
        memory_bytes=unit_bytes,
        guarantee=Guarantee.ADVISORY,
        by_memory=True,
        spread=spread,
        limits_in_env=True,
    )


def resource(*offerings: DeviceOffer) -> Resource:
    """All under ``nvidia.com/gpu``."""
    return Resource(NAME, offerings)


def ids(*offerings: DeviceOffer) -> list[ShareId]:
    """Every share's id."""
    return [id_ for one in offerings for id_ in one.share_ids]


def share(index: int, replica: int | None = None) -> ShareId:
    """The id of one share of GPU ``index``; None: of all of it."""
    return share_id(gpu(index).uuid, replica)
