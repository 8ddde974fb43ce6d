"""Writes machine files, YAML in kebab-case or JSON in camelCase. Read back, a file gives the same node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partage.model.geometry import ENGINE_KINDS, Geometry, ProfileSpec
from partage.model.gpu import Driver, EmptyInstance, Gpu, Inventory, Link, MigDevice
from partage.model.ids import GpuUuid
from partage.model.mps import DaemonSpec, MpsNamespace
from partage.model.strategy import Interval
from partage.sim.node.files.gpu_syntax import NOT_SUPPORTED
from partage.sim.node.files.machine_file import KIND, LIMIT_WORDS, VERSION
from partage.sim.node.machine import Machine

_YAML = frozenset({".yaml", ".yml"})


def is_yaml_name(name: str | None) -> bool:
    """Whether a machine file of that name is written as YAML."""
    return name is not None and Path(name).suffix.lower() in _YAML


def machine_text(machine: Machine, *, as_yaml: bool) -> str:
    """The text of a machine file: YAML or JSON. Read back, it is the same machine except for ``simulated``,
    its name and its faults. recorded: left out if it is empty.
    """
    rows = machine_rows(machine)
    if not as_yaml:
        return json.dumps(_in_camel_case(rows), indent=2) + "\n"
    import yaml

    return str(yaml.safe_dump(rows, sort_keys=False, allow_unicode=True, width=110))


def machine_rows(machine: Machine) -> dict[str, Any]:
    """What a machine file says of a node, with the keys of YAML."""
    inventory, slices = machine.inventory, machine.time_slices
    index = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    vgpu = inventory.vgpu
    return {
        "version": VERSION,
        "kind": KIND,
        **_recorded(inventory, machine.recorded),
        **_driver(inventory),
        "boot-id": inventory.boot_id,
        "open-to-env": inventory.open_to_env,
        **({"restricted-mps": True} if inventory.restricted_mps else {}),
        "fabric-manager": inventory.fabric_manager,
        "virtual": inventory.virtual,
        "machine-type": inventory.machine_type,
        "vgpu": vgpu and {"version": vgpu.version, "branch": vgpu.branch},
        "device-nodes": list(inventory.control_nodes),
        "gpus": [{**_gpu(gpu), **_time_slice(slices, gpu.index)} for gpu in inventory.gpus],
        "lost": [
            {"index": row.index, "uuid": row.uuid, "pci-bus-id": row.pci_bus_id, "reason": row.reason}
            for row in inventory.lost
        ],
        "links": [_link(link, index) for link in inventory.links],
        "mps-daemons": [_daemon(spec) for spec in machine.daemons],
        **_memory_limits(machine),
    }


def _memory_limits(machine: Machine) -> dict[str, str]:
    """Of a recorded node what was found on its GPUs: a simulated driver finds the rest itself."""
    found = machine.limits or next((gpu.limits for gpu in machine.inventory if gpu.limits is not None), None)
    words = {support: word for word, support in LIMIT_WORDS.items()}
    return {"memory-limits": words[found]} if found in words else {}


def _in_camel_case(value: Any) -> Any:  # noqa: ANN401  JSON
    match value:
        case dict():
            return {_camel_case(key): _in_camel_case(inner) for key, inner in value.items()}
        case list():
            return [_in_camel_case(inner) for inner in value]
        case _:
            return value


def _camel_case(key: str) -> str:
    """``memoryBytes`` for ``memory-bytes``."""
    first, *rest = key.split("-")
    return first + "".join(part.capitalize() for part in rest)


def _recorded(inventory: Inventory, date: str) -> dict[str, Any]:
    driver = inventory.driver
    version = driver.version if isinstance(driver, Driver) else None
    return {"recorded": {"date": date, "driver": version}} if date else {}


def _driver(inventory: Inventory) -> dict[str, Any]:
    driver = inventory.driver
    if isinstance(driver, Driver):
        return {"driver": driver.version, "cuda-driver": driver.cuda}
    return {"no-driver": {"kind": driver.kind, "reason": driver.reason, "hint": driver.hint}}


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
        "memory-bytes": gpu.memory_bytes,
        "pci-bus-id": gpu.pci_bus_id,
        "pci-device-id": gpu.pci_device_id,
        "pci-subsystem-id": gpu.pci_subsystem_id,
        "compute-capability": list(gpu.compute_capability),
        "architecture": gpu.architecture,
        "brand": gpu.brand,
        "addressing-mode": gpu.addressing_mode,
        "numa-node": gpu.numa_node,
        "pcie-root": gpu.pcie_root,
        "mig-mode": [int(mode.current), int(mode.pending)] if mode else None,
        "mig-devices": [_mig_device(device) for device in gpu.mig_devices],
        "empty-instances": [_empty_instance(instance) for instance in gpu.empty_instances],
        "compute-mode": int(gpu.compute_mode),
        "recovery": None if gpu.recovery is None else int(gpu.recovery),
        "persistence": gpu.persistence,
        "pci-class": gpu.pci_class,
        "clique": gpu.clique,
        "serial": gpu.serial,
        "board-part-number": gpu.board_part_number,
        "vbios-version": gpu.vbios_version,
        **({"mig-geometry": _geometry(gpu.geometry)} if gpu.geometry else {}),
    }


def _time_slice(slices: Mapping[int, Interval | None], gpu: int) -> dict[str, str]:
    if gpu not in slices:
        return {}
    interval = slices[gpu]
    return {"time-slice": NOT_SUPPORTED if interval is None else interval.value}


def _daemon(spec: DaemonSpec) -> dict[str, Any]:
    return {
        "device": spec.device,
        **_limits(spec),
        "multi-user": spec.multi_user,
        "namespaces": [{"name": namespace.name, **_limits(namespace)} for namespace in spec.namespaces],
        "slots": spec.slots,
    }


def _limits(of: DaemonSpec | MpsNamespace) -> dict[str, int | None]:
    return {"memory-bytes": of.memory_bytes, "threads-percent": of.threads_percent}


def _geometry(geometry: Geometry) -> dict[str, Any]:
    return {
        "most-instances": geometry.max_instances,
        "profiles": [_profile(spec) for spec in geometry.profiles],
    }


def _profile(spec: ProfileSpec) -> dict[str, Any]:
    return {
        "profile": str(spec.profile),
        "slices": spec.compute_slices,
        "size": spec.size,
        "starts": list(spec.starts),
        "count": spec.max_count,
        "memory-bytes": spec.memory_bytes,
        "engines": spec.engines and {kind: getattr(spec.engines, kind) for kind in ENGINE_KINDS},
    }


def _empty_instance(instance: EmptyInstance) -> dict[str, Any]:
    place = instance.placement
    return {"gi": instance.gi_id, "profile": instance.profile, "start": place.start, "size": place.size}


def _mig_device(device: MigDevice) -> dict[str, Any]:
    return {
        "gi": device.gi_id,
        "ci": device.ci_id,
        "profile": device.profile,
        "start": device.known_placement.start,
        "size": device.known_placement.size,
        "uuid": device.uuid,
        "memory-bytes": device.memory_bytes,
        "gi-minor": device.gi_minor,
        "ci-minor": device.ci_minor,
        "multiprocessors": device.multiprocessors,
    }
