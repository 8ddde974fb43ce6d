"""GPUs and MIG devices as machine files say them. What a row leaves out follows from the GPU's model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from partage.edges.files.catalogue import GpuModel, geometry_of, load
from partage.edges.files.safeyaml import Value
from partage.model.gpu import ComputeMode, Gpu, MigDevice, MigMode, RecoveryAction
from partage.model.placement import Placement
from partage.model.profile import MigProfile
from partage.sim.machine import derived_uuid, new_gpu
from partage.sim.mig import ci_minor, device_fault, gi_minor, instance_memory, together_faults
from partage.sim.reading import Place, optional, some_text, unlike, whole_number
from partage.sim.topology import numa_node
from partage.units import MIB

GPU_KEYS = (
    "index", "uuid", "minor", "name", "memory_bytes", "pci_bus_id", "pci_device_id", "compute_capability",
    "architecture", "brand", "numa_node", "mig_mode", "mig_devices", "compute_mode", "recovery",
)  # fmt: skip
MIG_KEYS = ("gi", "ci", "profile", "start", "size", "uuid", "memory_bytes", "gi_minor", "ci_minor")

_ARCHITECTURES = {
    2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper",
    10: "blackwell",
}  # fmt: skip
"""By NVML's number. Source: nvml.h, NVML_DEVICE_ARCH_*."""

_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9./-]{0,99}", re.ASCII)
_PCI_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", re.ASCII)
_PCI_DEVICE_ID = re.compile(r"0x[0-9A-Fa-f]{8}", re.ASCII)
_HIGHEST_INDEX = 1023
_HIGHEST_SLICE = 63
_UNKNOWN_DEVICE = "0x00000000"


def read_gpu(row: Place, position: int, count: int, *, strict: bool) -> Gpu | None:
    """The GPU of one row, the ``position``-th of ``count``; None after problems that leave nothing of it.

    strict: an unknown key is a problem.
    """
    if strict:
        row.only(GPU_KEYS)
    before = len(row.problems)
    fresh = _fresh(row, position, numa_node(position, count))
    if fresh is None:
        return None
    gpu = _in_its_own_words(row, fresh)
    devices = _mig_devices(row, gpu, strict=strict) if len(row.problems) == before else ()
    mode = row.read("mig_mode", _default_mode(gpu, devices), optional(_mode_pair))
    if mode and (mode.current or mode.pending) and _lacks_mig(gpu):
        row.at("mig_mode").wrong(f"{gpu.product} has no MIG")
    if devices and not (mode and mode.current):
        row.at("mig_devices").wrong("MIG devices exist only while MIG mode is on", "mig_mode: [1, 1]")
    return replace(gpu, mig_mode=mode, mig_devices=devices)


def index_number(value: Value) -> int:
    """An index, a minor or an id. Raises ValueError."""
    return whole_number(value, 0, _HIGHEST_INDEX)


def uuid(value: Value) -> str:
    """A UUID as the driver writes it. Raises ValueError."""
    return _matching(value, _UUID, "a UUID")


def pci_bus_id(value: Value) -> str:
    """A PCI address. Raises ValueError."""
    return _matching(value, _PCI_BUS_ID, "a PCI address such as 00000000:1A:00.0")


def _fresh(row: Place, position: int, numa: int) -> Gpu | None:
    """The GPU as its model has it. One that the catalogue lacks needs at least its memory."""
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
        return new_gpu(position, _unheard_of(name), name, numa)
    row.at("name").wrong(f"the catalogue has no {name!r}, and memory_bytes is not given", load().advice(name))
    return None


def _unheard_of(name: str) -> GpuModel:
    return GpuModel(
        id=name,
        products=(name,),
        pci_device_ids=(_UNKNOWN_DEVICE,),
        architecture="unknown",
        compute_capability=(0, 0),
        memory_bytes=0,
        memory_derived=True,
        mig=False,
        mig_survives_reboot=False,
        mig_needs_reset=False,
        geometry=None,
        renamed_geometries={},
    )


def _in_its_own_words(row: Place, gpu: Gpu) -> Gpu:
    """The GPU with what its row says in place of what its model does."""
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


def _default_mode(gpu: Gpu, devices: tuple[MigDevice, ...]) -> MigMode | None:
    """Where the file does not say: what the model can, switched on if MIG devices live."""
    on = bool(devices)
    return MigMode(on, on) if gpu.mig_mode or on else None


def _pci_device_id(value: Value) -> str:
    return _matching(value, _PCI_DEVICE_ID, "a device id such as 0x233010de").lower()


def _matching(value: Value, pattern: re.Pattern[str], kind: str) -> str:
    if isinstance(value, str) and pattern.fullmatch(value):
        return str(value)
    raise unlike(kind, value)


def _numa(value: Value) -> int | None:
    """NUMA node; the kernel's -1 means none."""
    return None if value == -1 else index_number(value)


def _architecture(value: Value) -> str:
    """By name, or by NVML's number."""
    if isinstance(value, str) and value in (*_ARCHITECTURES.values(), "unknown"):
        return str(value)
    return _ARCHITECTURES.get(whole_number(value), "unknown")


def _capability(value: Value) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2:
        return whole_number(value[0], 0, 99), whole_number(value[1], 0, 99)
    raise unlike("two whole numbers as in [9, 0]", value)


def _compute_mode(value: Value) -> ComputeMode:
    return ComputeMode(whole_number(value, 0, max(ComputeMode)))


def _recovery(value: Value) -> RecoveryAction:
    return RecoveryAction(whole_number(value, 0, max(RecoveryAction)))


def _mode_pair(value: Value) -> MigMode:
    if isinstance(value, list) and len(value) == 2 and all(word in (0, 1) for word in value):
        return MigMode(bool(value[0]), bool(value[1]))
    raise unlike("the current and the pending mode as in [1, 1]", value)


# --- MIG devices -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seat:
    """What a row of ``mig_devices`` has to say."""

    profile: MigProfile
    gi: int
    ci: int
    start: int


def _mig_devices(row: Place, gpu: Gpu, *, strict: bool) -> tuple[MigDevice, ...]:
    """In the order of the file, which is NVML's index."""
    before = len(row.problems)
    rows = list(row.at("mig_devices").rows())
    devices = tuple(_mig_device(place, gpu, index, strict=strict) for index, place in enumerate(rows))
    if len(row.problems) > before:
        return ()
    whole = tuple(device for device in devices if device)
    for fault in together_faults(geometry_of(gpu), whole):
        row.at("mig_devices").wrong(fault)
    return whole


def _mig_device(place: Place, gpu: Gpu, index: int, *, strict: bool) -> MigDevice | None:
    if strict:
        place.only(MIG_KEYS)
    seat = _seat(place)
    span = _span(place, gpu, seat) if seat else None
    if seat is None or span is None:
        return None
    placement, memory_bytes = span
    return MigDevice(
        uuid=place.read("uuid", derived_uuid("MIG", gpu.uuid, "file", seat.gi, seat.ci), uuid),
        index=index,
        gi_id=seat.gi,
        ci_id=seat.ci,
        profile=str(seat.profile),
        placement=placement,
        memory_bytes=place.whole("memory_bytes", memory_bytes, MIB),
        gi_minor=_minor(place, "gi_minor", gi_minor(gpu.minor, seat.gi)),
        ci_minor=_minor(place, "ci_minor", ci_minor(gpu.minor, seat.gi, seat.ci)),
    )


def _minor(place: Place, key: str, derived: int) -> int | None:
    """What the file says, null included; the arithmetic where it says nothing."""
    said: int | None = derived
    return place.read(key, said, optional(whole_number))


def _seat(place: Place) -> _Seat | None:
    profile = place.needed("profile", _profile)
    numbers = [place.needed(key, parse) for key, parse in _SEAT_NUMBERS.items()]
    gi, ci, start = numbers
    if profile is None or gi is None or ci is None or start is None:
        return None
    return _Seat(profile, gi, ci, start)


_SEAT_NUMBERS: dict[str, Callable[[Value], int]] = {
    "gi": index_number,
    "ci": index_number,
    "start": lambda value: whole_number(value, 0, _HIGHEST_SLICE),
}


def _profile(value: Value) -> MigProfile:
    return MigProfile.parse(some_text(value))


def _span(place: Place, gpu: Gpu, seat: _Seat) -> tuple[Placement, int] | None:
    """Placement and memory of the GPU instance; None, with a problem put down, where it cannot sit there."""
    geometry = geometry_of(gpu)
    spec = geometry.spec(seat.profile) if geometry else None
    size = place.whole("size", spec.size if spec else 0, 1, _HIGHEST_SLICE + 1)
    if geometry is None:
        if size and place.has("memory_bytes"):
            return Placement(seat.start, size), 0
        place.wrong(f"size and memory_bytes are needed: the catalogue knows no placements of {gpu.product}")
        return None
    placement = Placement(seat.start, max(size, 1))
    fault = device_fault(geometry, seat.profile, placement)
    if fault or spec is None:
        place.wrong(fault or f"{geometry.model} has no profile {seat.profile}")
        return None
    return placement, instance_memory(spec, geometry, gpu.memory_bytes)
