"""The machine that a simulation begins with, and how its GPUs are made. Values only: no files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from msgspec import field

from partage.edges.files.catalogue import GpuModel
from partage.model.driver_limit import LimitSupport
from partage.model.gpu import ADDRESSING_MODES, BRANDS, Driver, Gpu, Inventory, MigMode, RecoveryAction
from partage.model.ids import GpuUuid, PciBusId
from partage.model.mps import DaemonSpec
from partage.model.paths import CONTROL_NODES
from partage.model.strategy import Interval
from partage.sim.node.faults import TimedFault
from partage.sim.node.topology import has_nvswitch, links_between
from partage.values import Frozen

MOST_GPUS = 64
DRIVER = Driver(version="580.95.05", cuda="13.0")
"""The driver of machines that name none: it supports all models of the catalogue, from Volta to Blackwell."""


class Machine(Frozen):
    """A simulated node before it is powered on, and the faults that will happen on it.

    name: as the user wrote it. recorded: date of the recording that it comes from, empty for none.
    time_slices: time slices that are not the default, by GPU index; None: the GPU has no time slice to set.
    daemons: MPS daemons that serve. limits: whether its driver can limit the memory of containers; None: it
    is not said.
    """

    name: str
    inventory: Inventory
    faults: tuple[TimedFault, ...] = ()
    recorded: str = ""
    time_slices: Mapping[int, Interval | None] = field(default_factory=dict)
    daemons: tuple[DaemonSpec, ...] = ()
    limits: LimitSupport | None = None


def new_gpu(position: int, model: GpuModel, product: str, numa: int | None) -> Gpu:
    """A new GPU of that model. Its UUID is computed from model and position."""
    return Gpu(
        index=position,
        uuid=GpuUuid(derived_uuid("GPU", model.id, position)),
        minor=position,
        product=product,
        architecture=model.architecture,
        compute_capability=model.compute_capability,
        memory_bytes=model.memory_bytes,
        pci_bus_id=PciBusId(f"00000000:{0x0A + 3 * position:02X}:00.0"),
        pci_device_id=model.pci_device_id(product),
        numa_node=numa,
        mig_mode=MigMode(current=False, pending=False) if model.mig else None,
        recovery=RecoveryAction.NONE,
        brand=BRANDS[14],
        addressing_mode=ADDRESSING_MODES[1],
        pcie_root=f"pci0000:{0x09 + 3 * position:02x}",
    )


def simulated_inventory(gpus: tuple[Gpu, ...]) -> Inventory:
    """A healthy node of these GPUs, with a plausible topology."""
    return Inventory(
        driver=DRIVER,
        gpus=gpus,
        links=links_between(gpus),
        control_nodes=CONTROL_NODES,
        boot_id=derived_uuid("", "boot", 0),
        open_to_env=False,
        fabric_manager=has_nvswitch(gpus),
        virtual=False,
        simulated=True,
    )


def derived_uuid(kind: str, *seed: object) -> str:
    """The UUID of that seed, always the same: ``GPU-...``, ``MIG-...``, or bare for an empty kind."""
    digest = hashlib.sha256("/".join(map(str, ("partage", kind, *seed))).encode()).hexdigest()
    bare = f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
    return f"{kind}-{bare}" if kind else bare
