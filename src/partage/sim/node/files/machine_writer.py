"""Writes machine files: read back, a file gives the same node again."""

from __future__ import annotations

from typing import Any

from partage.model.gpu import Driver, EmptyInstance, Gpu, Inventory, Link, MigDevice
from partage.model.ids import GpuUuid
from partage.sim.node.files.machine_file import KIND, VERSION


def machine_to_json(inventory: Inventory, recorded: str = "") -> dict[str, Any]:
    """The machine file of a node: read back, it is the same inventory except for ``simulated``.

    recorded: date of the recording, ``2025-11-21``; empty leaves it out.
    """
    index = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    vgpu = inventory.vgpu
    return {
        "version": VERSION,
        "kind": KIND,
        **_recorded(inventory, recorded),
        **_driver(inventory),
        "boot_id": inventory.boot_id,
        "open_to_env": inventory.open_to_env,
        "fabric_manager": inventory.fabric_manager,
        "virtual": inventory.virtual,
        "machine_type": inventory.machine_type,
        "vgpu": vgpu and {"version": vgpu.version, "branch": vgpu.branch},
        "device_nodes": list(inventory.control_nodes),
        "gpus": [_gpu(gpu) for gpu in inventory.gpus],
        "lost": [
            {"index": row.index, "uuid": row.uuid, "pci_bus_id": row.pci_bus_id, "reason": row.reason}
            for row in inventory.lost
        ],
        "links": [_link(link, index) for link in inventory.links],
    }


def _recorded(inventory: Inventory, date: str) -> dict[str, Any]:
    driver = inventory.driver
    version = driver.version if isinstance(driver, Driver) else None
    return {"recorded": {"date": date, "driver": version}} if date else {}


def _driver(inventory: Inventory) -> dict[str, Any]:
    driver = inventory.driver
    if isinstance(driver, Driver):
        return {"driver": driver.version, "cuda_driver": driver.cuda}
    return {"no_driver": {"kind": driver.kind, "reason": driver.reason, "hint": driver.hint}}


def _link(link: Link, index: dict[GpuUuid, int]) -> dict[str, Any]:
    path = link.path.word
    return {"a": index[link.a], "b": index[link.b], "path": path, "nvlinks": link.nvlinks}


def _gpu(gpu: Gpu) -> dict[str, Any]:
    mode = gpu.mig_mode
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "minor": gpu.minor,
        "name": gpu.product,
        "memory_bytes": gpu.memory_bytes,
        "pci_bus_id": gpu.pci_bus_id,
        "pci_device_id": gpu.pci_device_id,
        "compute_capability": list(gpu.compute_capability),
        "architecture": gpu.architecture,
        "numa_node": gpu.numa_node,
        "mig_mode": [int(mode.current), int(mode.pending)] if mode else None,
        "mig_devices": [_mig_device(device) for device in gpu.mig_devices],
        "empty_instances": [_empty_instance(one) for one in gpu.empty_instances],
        "compute_mode": int(gpu.compute_mode),
        "recovery": None if gpu.recovery is None else int(gpu.recovery),
        "persistence": gpu.persistence,
        "pci_class": gpu.pci_class,
        "clique": gpu.clique,
    }


def _empty_instance(one: EmptyInstance) -> dict[str, Any]:
    place = one.placement
    return {"gi": one.gi_id, "profile": one.profile, "start": place.start, "size": place.size}


def _mig_device(device: MigDevice) -> dict[str, Any]:
    return {
        "gi": device.gi_id,
        "ci": device.ci_id,
        "profile": device.profile,
        "start": device.placement.start,
        "size": device.placement.size,
        "uuid": device.uuid,
        "memory_bytes": device.memory_bytes,
        "gi_minor": device.gi_minor,
        "ci_minor": device.ci_minor,
        "multiprocessors": device.multiprocessors,
    }
