"""Reads machine files. All problems are reported at once, each with file and path.

A file is a machine, or has one under ``machine``. Files of Partage have ``version: partage/v1``, and in them
an unknown key is a problem; recordings of other tools may have more keys than are read here. What is left
out follows from the GPU's model: a file may be as short as ``gpus: [{name: NVIDIA L4}]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partage.edges.files.safeyaml import LIMIT_PROBLEMS, Value, describe, read_document
from partage.errors import InputError, Problem
from partage.model.gpu import Driver, Gpu, Inventory, Link, LinkPath, LostGpu, NoDriver, cuda_version
from partage.model.policy import Interval
from partage.sim.node.effects import apply_fault
from partage.sim.node.faults import TimedFault
from partage.sim.node.files.fault_syntax import parse_timed_fault
from partage.sim.node.files.gpu_syntax import pci_bus_id, read_gpu, read_time_slice
from partage.sim.node.files.reading import (
    MachineField,
    any_text,
    choice,
    index_number,
    optional,
    truth,
    unlike,
    uuid,
    whole_number,
)
from partage.sim.node.machine import DRIVER, MOST_GPUS, Machine, derived_uuid
from partage.sim.node.state import power_on
from partage.sim.node.topology import has_nvswitch, links_between

VERSION, KIND = "partage/v1", "Machine"
_KEYS = (
    "version", "kind", "recorded", "driver", "cuda_driver", "no_driver", "gpus", "lost", "links",
    "device_nodes", "boot_id", "open_to_env", "fabric_manager", "virtual", "faults",
)  # fmt: skip
_LINK_PATHS = {path.word: path for path in LinkPath}
_MOST_NVLINKS = 64


def read_machine(data: bytes, name: str) -> Machine:
    """The machine that a file describes. Raises InputError with all problems."""
    top = MachineField(name, read_document(data, name).value)
    place = top.at("machine") if top.has("machine") else top
    machine = _machine(place, name) if place.is_mapping() else None
    if top.problems or machine is None:
        raise InputError(_first(top.problems, name))
    return machine


def _first(problems: list[Problem], name: str) -> list[Problem]:
    """The first problems, and how many more there are."""
    more = len(problems) - LIMIT_PROBLEMS
    rest = [Problem(name, "", "error", f"and {more} more problems")] if more > 0 else []
    return problems[:LIMIT_PROBLEMS] + rest


def _machine(place: MachineField, name: str) -> Machine:
    if place.has("version"):
        _header(place)
    gpus = _gpus(place)
    lost = _lost_gpus(place)
    _nothing_twice(place, gpus, lost)
    nvswitch: bool | None = has_nvswitch(gpus)
    virtual: bool | None = False
    inventory = Inventory(
        driver=_driver(place),
        gpus=gpus,
        lost=lost,
        links=_links(place, {gpu.index: gpu for gpu in gpus}) if place.has("links") else links_between(gpus),
        control_nodes=tuple(_device_nodes(place)),
        boot_id=place.read("boot_id", derived_uuid("", "boot", 0), any_text),
        open_to_env=place.read("open_to_env", None, optional(truth)),
        fabric_manager=place.read("fabric_manager", nvswitch, optional(truth)),
        virtual=place.read("virtual", virtual, optional(truth)),
        simulated=True,
    )
    faults = _faults(place, inventory)
    return Machine(name, inventory, tuple(faults), place.at("recorded").text("date", ""), _time_slices(place))


def _header(place: MachineField) -> None:
    for key, word in (("version", VERSION), ("kind", KIND)):
        value = place.at(key).value
        if place.has(key) and value != word:
            place.at(key).wrong(f"{describe(value)} is not the {key} of a machine", f"write {key}: {word}")
    place.only(_KEYS)


def _driver(place: MachineField) -> Driver | NoDriver:
    if not place.has("no_driver"):
        return Driver(place.text("driver", DRIVER.version), place.read("cuda_driver", DRIVER.cuda, _cuda))
    row = place.at("no_driver")
    row.is_mapping()
    kind, reason = row.text("kind", "driver-missing"), row.text("reason", "there is no driver")
    return NoDriver(kind, reason, row.read("hint", "", any_text))


def _cuda(value: Value) -> str:
    """``12.4``, as text or as the driver's 12040."""
    if isinstance(value, str) and value:
        return str(value)
    return cuda_version(whole_number(value, 1000))


def _device_nodes(place: MachineField) -> list[str]:
    nodes = []
    for row in place.at("device_nodes").items():
        if isinstance(row.value, str) and row.value.startswith("/"):
            nodes.append(str(row.value))
        else:
            row.wrong(str(unlike("the path of a device file", row.value)))
    return nodes


def _gpus(place: MachineField) -> tuple[Gpu, ...]:
    rows = list(place.at("gpus").items())
    if len(rows) > MOST_GPUS:
        place.at("gpus").wrong(f"{len(rows)} GPUs; a simulated node has at most {MOST_GPUS}")
        return ()
    if not rows and not (place.has("lost") or place.has("no_driver")):
        place.at("gpus").wrong("a machine needs at least one GPU")
    strict = place.has("version")
    gpus = [
        read_gpu(row, position, len(rows), strict=strict)
        for position, row in enumerate(rows)
        if row.is_mapping()
    ]
    return tuple(sorted((gpu for gpu in gpus if gpu), key=lambda gpu: gpu.index))


def _time_slices(place: MachineField) -> dict[int, Interval | None]:
    """Time slices that are not the default, by index. Other readers report bad lists, rows and indexes."""
    rows = place.at("gpus").value
    time_slices: dict[int, Interval | None] = {}
    for position in range(len(rows) if isinstance(rows, list) else 0):
        row = place.at("gpus").at(position)
        interval = read_time_slice(row)
        index = row.value.get("index", position) if isinstance(row.value, dict) else None
        if interval is not Interval.DEFAULT and isinstance(index, int):
            time_slices[index] = interval
    return time_slices


def _lost_gpus(place: MachineField) -> tuple[LostGpu, ...]:
    lost = [
        LostGpu(
            index=row.needed("index", index_number) or 0,
            uuid=row.read("uuid", None, optional(uuid)),
            pci_bus_id=row.read("pci_bus_id", None, optional(pci_bus_id)),
            reason=row.text("reason", "GPU is lost"),
        )
        for row in place.at("lost").rows()
    ]
    return tuple(sorted(lost, key=lambda row: row.index))


def _nothing_twice(place: MachineField, gpus: Sequence[Gpu], lost: Sequence[LostGpu]) -> None:
    """Report every index, UUID, minor and PCI address that two things have."""
    uuids = [uuid for gpu in gpus for uuid in (gpu.uuid, *(device.uuid for device in gpu.mig_devices))]
    names: Mapping[str, list[object]] = {
        "index": [*(gpu.index for gpu in gpus), *(row.index for row in lost)],
        "uuid": [*uuids, *(row.uuid for row in lost if row.uuid)],
        "minor": [gpu.minor for gpu in gpus],
        "pci_bus_id": [gpu.pci_bus_id.lower() for gpu in gpus],
    }
    for key, values in names.items():
        twice = sorted({str(value) for value in values if values.count(value) > 1})
        if twice:
            place.at("gpus").wrong(f"{key} {twice[0]} occurs twice")


def _links(place: MachineField, gpus: Mapping[int, Gpu]) -> tuple[Link, ...]:
    links: dict[frozenset[int], Link] = {}
    for row in place.at("links").rows():
        a, b = row.needed("a", index_number), row.needed("b", index_number)
        path = row.read("path", LinkPath.CROSS_CPU, _link_path)
        nvlinks = row.whole("nvlinks", 0, 0, _MOST_NVLINKS)
        if a is None or b is None:
            continue
        pair = frozenset({a, b})
        if a == b or pair in links or not pair <= gpus.keys():
            row.wrong(f"a link joins two GPUs of the machine, and every pair once; this one {a} and {b}")
            continue
        links[pair] = Link(gpus[a].uuid, gpus[b].uuid, path, nvlinks)
    return tuple(links.values())


def _link_path(value: Value) -> LinkPath:
    return _LINK_PATHS[choice(value, _LINK_PATHS)]


def _faults(place: MachineField, inventory: Inventory) -> list[TimedFault]:
    """The faults, in the order of the file. Each has to be possible on the node if it is the only one."""
    state = power_on(Machine("", inventory))
    faults = []
    for row in place.at("faults").rows():
        assert isinstance(row.value, dict)
        try:
            timed = parse_timed_fault(row.value)
            apply_fault(state, timed.fault)
        except (ValueError, InputError) as error:
            row.wrong(str(error))
        else:
            faults.append(timed)
    return faults
