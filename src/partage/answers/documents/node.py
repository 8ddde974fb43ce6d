"""The node as it is: driver, GPUs, lost GPUs, links."""

from __future__ import annotations

from partage.answers.documents.document import GpuName, row
from partage.model.geometry import Placement
from partage.model.gpu import Gpu, Inventory, Link, LostGpu, MigDevice, MigMode, NoDriver
from partage.model.ids import MigUuid, PciBusId
from partage.values import Frozen


class DriverRow(Frozen, omit_defaults=True):
    """The driver, or why there is none. state: ``ok``, else the kind of ``NoDriver``."""

    state: str
    version: str | None = None
    cuda: str | None = None
    reason: str | None = None
    hint: str | None = None


class MigDeviceRow(Frozen):
    """One MIG device. gpu_instance, compute_instance: the driver's ids. placement: None: only root may read
    it.
    """

    index: int
    uuid: MigUuid
    profile: str
    gpu_instance: int
    compute_instance: int
    placement: Placement | None
    memory_bytes: int


class GpuRow(GpuName):
    """One GPU that answers. compute_capability: ``9.0``. compute_mode, recovery_action: NVML's words."""

    minor: int
    product: str
    architecture: str
    compute_capability: str
    memory_bytes: int
    pci_bus_id: PciBusId
    pci_device_id: str
    numa_node: int | None
    compute_mode: str
    mig_mode: MigMode | None
    mig_devices: tuple[MigDeviceRow, ...]
    recovery_action: str | None
    serial: str | None
    board_part_number: str | None
    vbios_version: str | None


class LinkRow(Frozen):
    """How two GPUs are connected. gpus: their indexes, -1 for a GPU that does not answer."""

    gpus: tuple[int, int]
    path: str
    nvlinks: int


class NodeRow(Frozen, kw_only=True):
    """A node. open_to_env: pods can set ``NVIDIA_VISIBLE_DEVICES`` themselves; None: not known. boot_id: of
    the kernel's last start. lost: GPUs that do not answer.
    """

    simulated: bool
    driver: DriverRow
    gpus: tuple[GpuRow, ...]
    lost: tuple[LostGpu, ...]
    links: tuple[LinkRow, ...]
    open_to_env: bool | None
    boot_id: str


def node_row(inventory: Inventory) -> NodeRow:
    """The row of a node."""
    return row(
        NodeRow,
        inventory,
        driver=driver_row(inventory),
        gpus=tuple(gpu_row(gpu) for gpu in inventory.gpus),
        links=tuple(_link_row(link, inventory) for link in inventory.links),
    )


def driver_row(inventory: Inventory) -> DriverRow:
    """The row of its driver."""
    driver = inventory.driver
    if isinstance(driver, NoDriver):
        return DriverRow(driver.kind, reason=driver.reason, hint=driver.hint)
    return DriverRow("ok", driver.version, driver.cuda)


def gpu_row(gpu: Gpu) -> GpuRow:
    """The row of one of its GPUs."""
    return row(
        GpuRow,
        gpu,
        compute_capability=".".join(map(str, gpu.compute_capability)),
        compute_mode=gpu.compute_mode.word,
        mig_devices=tuple(_mig_device_row(device) for device in gpu.mig_devices),
        recovery_action=None if gpu.recovery is None else gpu.recovery.word,
    )


def _mig_device_row(device: MigDevice) -> MigDeviceRow:
    return row(MigDeviceRow, device, gpu_instance=device.gi_id, compute_instance=device.ci_id)


def _link_row(link: Link, inventory: Inventory) -> LinkRow:
    index = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    first, second = sorted((index.get(link.a, -1), index.get(link.b, -1)))
    return row(LinkRow, link, gpus=(first, second), path=link.path.word)
