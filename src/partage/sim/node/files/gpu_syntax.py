"""Reads the GPUs of a machine file. What a row leaves out follows from the GPU's model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from partage.codec.fields import Field, Table
from partage.codec.reader import number, word_of
from partage.edges.files.catalogue import choose_one, load_catalogue
from partage.model.geometry import GpuModel
from partage.model.gpu import (
    ADDRESSING_MODES,
    ARCHITECTURES,
    BRANDS,
    UNKNOWN_ARCHITECTURE,
    ComputeMode,
    Gpu,
    MigMode,
    RecoveryAction,
    architecture_name,
)
from partage.model.strategy import Interval
from partage.sim.node.files.mig_syntax import read_geometry, read_instances
from partage.sim.node.files.value_syntax import gpu_uuid, read_index, read_pci_bus_id
from partage.sim.node.machine import new_gpu, numa_node
from partage.units import MIB
from partage.values import Frozen

GPU_KEYS = (
    "index", "uuid", "minor", "name", "memory-bytes", "pci-bus-id", "pci-device-id", "pci-subsystem-id",
    "compute-capability", "architecture", "brand", "addressing-mode", "numa-node", "pcie-root",
    "mig-mode", "mig-devices", "empty-instances",
    "compute-mode", "time-slice", "recovery", "persistence", "mig-geometry",
    "serial", "board-part-number", "vbios-version", "pci-class", "clique",
)  # fmt: skip


_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_PCI_DEVICE_ID = re.compile(r"0x[0-9A-Fa-f]{8}", re.ASCII)


class _Slice(Frozen):
    """A time slice of a file. interval: None if the GPU does not support one."""

    interval: Interval | None


NOT_SUPPORTED = "not-supported"
"""The time slice of a GPU that keeps its own."""

_TIME_SLICES = {interval.value: _Slice(interval) for interval in Interval} | {NOT_SUPPORTED: _Slice(None)}


class ReadGpu(Frozen):
    """What a row says of a GPU. time_slice: None if the GPU does not support one."""

    gpu: Gpu
    time_slice: Interval | None


def read_gpu(place: Field, position: int, count: int) -> ReadGpu | None:
    """The ``position``-th GPU of ``count``; None where problems leave no GPU."""
    before = place.notes.errors
    row = place.table(GPU_KEYS)
    model_gpu = _of_model(row, position, numa_node(position, count)) if row else None
    if row is None or model_gpu is None:
        return None
    time_slice = row.value("time-slice", word_of(_TIME_SLICES), _Slice(Interval.DEFAULT))
    gpu = _with_row(row, model_gpu)
    if place.notes.errors == before:
        gpu = replace(
            gpu, geometry=row.nullable("mig-geometry", lambda at: read_geometry(at, gpu.product), None)
        )
    devices, empty = read_instances(row, gpu) if place.notes.errors == before else ((), ())
    mode = row.nullable("mig-mode", _mode_pair, _default_mode(gpu, on=bool(devices or empty)))
    if gpu.geometry is not None and (mode is None or _lacks_mig(gpu)):
        row.here("mig-geometry").error(f"{gpu.product} has no MIG")
    if mode and (mode.current or mode.pending) and _lacks_mig(gpu):
        row.here("mig-mode").error(f"{gpu.product} has no MIG")
    if (devices or empty) and not (mode and mode.current):
        key = "mig-devices" if devices else "empty-instances"
        row.here(key).error("MIG instances exist only while MIG mode is on", "mig-mode: [1, 1]")
    gpu = replace(gpu, mig_mode=mode, mig_devices=devices, empty_instances=empty)
    return ReadGpu(gpu, time_slice.interval)


def _of_model(row: Table, position: int, numa: int) -> Gpu | None:
    """A new GPU of the row's model. For a model that the catalogue lacks, the row must have the memory."""
    name = row.needed("name", Field.some_text)
    if name is None:
        return None
    catalogue = load_catalogue()
    if variants := catalogue.variants(name):
        row.here("name").error(f"{name!r} is the name of several GPU models", choose_one(variants))
        return None
    found = catalogue.find(name)
    if found and found[0].products:
        model, product = found
        spelled = product if catalogue.by_id(name) or not catalogue.by_product(name) else name
        gpu = new_gpu(position, model, product, numa)
        return replace(gpu, product=spelled, recovery=None)
    if "memory-bytes" in row:
        return new_gpu(position, _unknown_model(name), name, numa)
    advice = catalogue.advice(name)
    row.here("name").error(f"the catalogue has no {name!r}, and memory-bytes is not given", advice)
    return None


def _unknown_model(name: str) -> GpuModel:
    return GpuModel(
        id=name,
        products=(name,),
        pci_device_ids=(),
        architecture=UNKNOWN_ARCHITECTURE,
        compute_capability=(0, 0),
        memory_bytes=0,
    )


def _with_row(row: Table, gpu: Gpu) -> Gpu:
    """The GPU with the values of its row in place of those of its model."""
    index = row.value("index", read_index, gpu.index)
    return replace(
        gpu,
        index=index,
        uuid=row.value("uuid", gpu_uuid, gpu.uuid),
        minor=row.value("minor", read_index, index),
        architecture=row.value("architecture", _architecture, gpu.architecture),
        compute_capability=row.value("compute-capability", _capability, gpu.compute_capability),
        memory_bytes=row.value("memory-bytes", number(MIB), gpu.memory_bytes),
        pci_bus_id=row.value("pci-bus-id", read_pci_bus_id, gpu.pci_bus_id),
        pci_device_id=row.value("pci-device-id", _pci_device_id, gpu.pci_device_id),
        pci_subsystem_id=row.nullable("pci-subsystem-id", _pci_device_id, gpu.pci_subsystem_id),
        numa_node=_numa(row, gpu.numa_node),
        compute_mode=row.value("compute-mode", _compute_mode, ComputeMode.DEFAULT),
        recovery=row.nullable("recovery", _recovery, gpu.recovery),
        persistence=row.nullable("persistence", Field.boolean, gpu.persistence),
        pci_class=row.nullable("pci-class", number(0, 0xFFFFFF), None),
        clique=row.nullable("clique", Field.some_text, None),
        serial=row.nullable("serial", _serial, gpu.serial),
        board_part_number=row.nullable("board-part-number", Field.some_text, gpu.board_part_number),
        vbios_version=row.nullable("vbios-version", Field.some_text, gpu.vbios_version),
        brand=row.nullable("brand", _word_or_number(BRANDS), gpu.brand),
        addressing_mode=row.nullable(
            "addressing-mode", _word_or_number(ADDRESSING_MODES), gpu.addressing_mode
        ),
        pcie_root=row.nullable("pcie-root", _pcie_root, gpu.pcie_root),
    )


def _lacks_mig(gpu: Gpu) -> bool:
    """Whether the catalogue knows that the product has no MIG."""
    found = load_catalogue().by_product(gpu.product)
    return found is not None and not found[0].mig


def _default_mode(gpu: Gpu, *, on: bool) -> MigMode | None:
    """MIG mode where the file has none: on if the row has instances; None on a model without MIG."""
    return MigMode(on, on) if gpu.mig_mode or gpu.geometry or on else None


def _pci_device_id(field: Field) -> str | None:
    found = field.matching(_PCI_DEVICE_ID, "a device id such as 0x233010de")
    return None if found is None else found.lower()


def _numa(row: Table, default: int | None) -> int | None:
    """NUMA node; the kernel's -1 means none."""
    field = row.get("numa-node")
    return None if field and field.value == -1 else row.nullable("numa-node", read_index, default)


def _architecture(field: Field) -> str | None:
    """By name, or by NVML's number."""
    if isinstance(field.value, str):
        return field.word({name: name for name in (*ARCHITECTURES.values(), UNKNOWN_ARCHITECTURE)})
    number = field.integer(0)
    return None if number is None else architecture_name(number)


def _word_or_number(words: Mapping[int, str]) -> Callable[[Field], str | None]:
    """Reads one of these words, or NVML's number for it."""

    def read(field: Field) -> str | None:
        if isinstance(field.value, str):
            return field.word({word: word for word in words.values()})
        number = field.integer(0, max(words))
        return None if number is None else words.get(number)

    return read


def _pcie_root(field: Field) -> str | None:
    return field.matching(_PCIE_ROOT, "a root complex such as pci0000:16")


def _serial(field: Field) -> str | None:
    """Serial numbers look like numbers."""
    return str(field.value) if type(field.value) is int else field.some_text()


def _capability(field: Field) -> tuple[int, int] | None:
    numbers = [item.integer(0, 99) for item in field.items(at_most=2) or ()]
    match numbers:
        case [int(major), int(minor)]:
            return major, minor
        case _:
            field.error("has to be two whole numbers, as in [9, 0]")
            return None


def _compute_mode(field: Field) -> ComputeMode | None:
    number = field.integer(0, max(ComputeMode))
    return None if number is None else ComputeMode(number)


def _recovery(field: Field) -> RecoveryAction | None:
    number = field.integer(0, max(RecoveryAction))
    return None if number is None else RecoveryAction(number)


def _mode_pair(field: Field) -> MigMode | None:
    match field.value:
        case [0 | 1 as current, 0 | 1 as pending]:
            return MigMode(bool(current), bool(pending))
        case _:
            field.unfit("the current and the pending mode, as in [1, 1]")
            return None
