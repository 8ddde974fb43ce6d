"""Nodes and offers for the tests of what people see; made by hand: nothing here depends on the plan."""

from partage.model.geometry import Placement
from partage.model.gpu import Driver, Gpu, Inventory, LostGpu, MigDevice, MigMode
from partage.model.ids import GpuUuid, MigUuid, PciBusId, ResourceName
from partage.model.share import DeviceOffer, Guarantee
from partage.model.strategy import Strategy
from partage.units import GIB

EXCLUSIVE, SLICED, MPS, MIG = Strategy.EXCLUSIVE, Strategy.TIME_SLICING, Strategy.MPS, Strategy.MIG


def gpu(index, *migs):
    """An H100 with these MIG devices."""
    return Gpu(
        index=index,
        uuid=GpuUuid(f"GPU-{index}"),
        minor=index,
        product="NVIDIA H100 80GB HBM3",
        architecture="hopper",
        compute_capability=(9, 0),
        memory_bytes=80 * GIB,
        pci_bus_id=PciBusId(f"00000000:{index:02X}:00.0"),
        pci_device_id="0x233010de",
        mig_mode=MigMode(bool(migs), bool(migs)),
        mig_devices=tuple(
            MigDevice(MigUuid(f"MIG-{index}-{n}"), n, n, 0, profile, Placement(start, size), gib * GIB)
            for n, (profile, start, size, gib) in enumerate(migs)
        ),
    )


def offering(gpu_index, shared, replicas, guarantee, **more):
    """One offering of GPU ``gpu_index`` (of its MIG device ``device``, where given)."""
    fields = {
        "device": f"GPU-{gpu_index}",
        "gpu": f"GPU-{gpu_index}",
        "index": str(gpu_index),
        "gpu_index": gpu_index,
        "resource": ResourceName("nvidia.com/gpu"),
        "strategy": shared,
        "shared": shared,
        "replicas": replicas,
        "memory_bytes": 80 * GIB // replicas,
        "guarantee": guarantee,
        "count": replicas,
    }
    return DeviceOffer(**{**fields, **more})


def node(*gpus, lost=()):
    """A node with a driver."""
    return Inventory(Driver("580.95.05", "13.0"), gpus, tuple(LostGpu(n, None, None, "gone") for n in lost))


HARD, GUARDED, NONE = Guarantee.HARD, Guarantee.GUARDED, Guarantee.NONE
ADVISORY = Guarantee.ADVISORY
