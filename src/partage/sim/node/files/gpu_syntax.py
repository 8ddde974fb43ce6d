"""Reads the GPUs of a machine file. What a row leaves out follows from the GPU's model."""

from __future__ import annotations

import re

from msgspec.structs import replace

from partage.edges.files.catalogue import GpuModel, load
from partage.edges.files.safeyaml import Value
from partage.model.gpu import (
    ARCHITECTURES,
    UNKNOWN_ARCHITECTURE,
    ComputeMode,
    Gpu,
    MigMode,
    RecoveryAction,
    architecture_name,
)
from partage.model.policy import Interval
from partage.sim.node.files.mig_syntax import read_instances
from partage.sim.node.files.reading import (
    MachineField,
    choice,
    index_number,
    matching,
    optional,
    some_text,
    unlike,
    uuid,
    whole_number,
)
from partage.sim.node.machine import new_gpu
from partage.sim.node.topology import numa_node
from partage.units import MIB

GPU_KEYS = (
    "index", "uuid", "minor", "name", "memory_bytes", "pci_bus_id", "pci_device_id", "compute_capability",
    "architecture", "brand", "numa_node", "mig_mode", "mig_devices", "empty_instances",
    "compute_mode", "time_slice", "recovery",
)  # fmt: skip


_PCI_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", re.ASCII)
_PCI_DEVICE_ID = re.compile(r"0x[0-9A-Fa-f]{8}", re.ASCII)
_NOT_SUPPORTED = "not-supported"
_UNKNOWN_DEVICE = "0x00000000"


def read_gpu(row: MachineField, position: int, count: int, *, strict: bool) -> Gpu | None:
    """The GPU of one row, the ``position``-th of ``count``; None where problems leave no GPU.

    strict: an unknown key is a problem.
    """
    if strict:
        row.only(GPU_KEYS)
    before = len(row.problems)
    model_gpu = _of_model(row, position, numa_node(position, count))
    if model_gpu is None:
        return None
    gpu = _with_row(row, model_gpu)
    devices, empty = read_instances(row, gpu, strict=strict) if len(row.problems) == before else ((), ())
    mode = row.read("mig_mode", _default_mode(gpu, on=bool(devices or empty)), optional(_mode_pair))
    if mode and (mode.current or mode.pending) and _lacks_mig(gpu):
        row.at("mig_mode").wrong(f"{gpu.product} has no MIG")
    if (devices or empty) and not (mode and mode.current):
        key = "mig_devices" if devices else "empty_instances"
        row.at(key).wrong("MIG instances exist only while MIG mode is on", "mig_mode: [1, 1]")
    return replace(gpu, mig_mode=mode, mig_devices=devices, empty_instances=empty)


def pci_bus_id(value: Value) -> str:
    """A PCI address. Raises ValueError."""
    return matching(value, _PCI_BUS_ID, "a PCI address such as 00000000:1A:00.0")


def _of_model(row: MachineField, position: int, numa: int) -> Gpu | None:
    """A new GPU of the row's model. For a model that the catalogue lacks, the row must have the memory."""
    name = row.needed("name", some_text)
    if name is None:
        return None
    found = load().find(name)
    if found and found[0].products:
        model, product = found
        spelled = product if load().by_id(name) else name
        gpu = new_gpu(position, model, product, numa)
        return replace(gpu, product=spelled, recovery=None)
    if row.has("memory_bytes"):
        return new_gpu(position, _unknown_model(name), name, numa)
    row.at("name").wrong(f"the catalogue has no {name!r}, and memory_bytes is not given", load().advice(name))
    return None


def _unknown_model(name: str) -> GpuModel:
    return GpuModel(
        id=name,
        products=(name,),
        pci_device_ids=(_UNKNOWN_DEVICE,),
        architecture=UNKNOWN_ARCHITECTURE,
        compute_capability=(0, 0),
        memory_bytes=0,
        memory_derived=True,
        mig=False,
        mig_survives_reboot=False,
        mig_needs_reset=False,
        geometry=None,
        renamed_geometries={},
    )


def _with_row(row: MachineField, gpu: Gpu) -> Gpu:
    """The GPU with the values of its row in place of those of its model."""
    index = row.read("index", gpu.index, index_number)
    return replace(
        gpu,
        index=index,
        uuid=row.read("uuid", gpu.uuid, uuid),
        minor=row.read("minor", index, index_number),
        architecture=row.read("architecture", gpu.architecture, _architecture),
        compute_capability=row.read("compute_capability", gpu.compute_capability, _capability),
        memory_bytes=row.whole("memory_bytes", gpu.memory_bytes, MIB),
        pci_bus_id=row.read("pci_bus_id", gpu.pci_bus_id, pci_bus_id),
        pci_device_id=row.read("pci_device_id", gpu.pci_device_id, _pci_device_id),
        numa_node=row.read("numa_node", gpu.numa_node, optional(_numa)),
        compute_mode=row.read("compute_mode", ComputeMode.DEFAULT, _compute_mode),
        recovery=row.read("recovery", gpu.recovery, optional(_recovery)),
    )


def _lacks_mig(gpu: Gpu) -> bool:
    """Whether the catalogue knows that the product has no MIG."""
    found = load().by_product(gpu.product)
    return found is not None and not found[0].mig


def _default_mode(gpu: Gpu, *, on: bool) -> MigMode | None:
    """MIG mode where the file has none: on if the row has instances; None on a model without MIG."""
    return MigMode(on, on) if gpu.mig_mode or on else None


def _pci_device_id(value: Value) -> str:
    return matching(value, _PCI_DEVICE_ID, "a device id such as 0x233010de").lower()


def _numa(value: Value) -> int | None:
    """NUMA node; the kernel's -1 means none."""
    return None if value == -1 else index_number(value)


def _architecture(value: Value) -> str:
    """By name, or by NVML's number."""
    if isinstance(value, str) and value in (*ARCHITECTURES.values(), UNKNOWN_ARCHITECTURE):
        return str(value)
    return architecture_name(whole_number(value))


def _capability(value: Value) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2:
        return whole_number(value[0], 0, 99), whole_number(value[1], 0, 99)
    raise unlike("two whole numbers as in [9, 0]", value)


def read_time_slice(row: MachineField) -> Interval | None:
    """``default``, ``short``, ``medium``, ``long``; None for ``not-supported``."""
    intervals: dict[str, Interval | None] = {interval.value: interval for interval in Interval}
    intervals[_NOT_SUPPORTED] = None
    return intervals[row.read("time_slice", Interval.DEFAULT.value, lambda value: choice(value, intervals))]


def _compute_mode(value: Value) -> ComputeMode:
    return ComputeMode(whole_number(value, 0, max(ComputeMode)))


def _recovery(value: Value) -> RecoveryAction:
    return RecoveryAction(whole_number(value, 0, max(RecoveryAction)))


def _mode_pair(value: Value) -> MigMode:
    if isinstance(value, list) and len(value) == 2 and all(word in (0, 1) for word in value):
        return MigMode(bool(value[0]), bool(value[1]))
    raise unlike("the current and the pending mode as in [1, 1]", value)
