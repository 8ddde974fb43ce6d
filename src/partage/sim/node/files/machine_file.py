"""Reads machine files. All problems are reported at once, each with file and path.

A file is a machine, or has one under ``machine``. Keys are written in kebab-case, and in JSON in camelCase;
snake_case, which files of before have, is read too. An unknown key is a problem. What is left out follows
from the GPU's model: a file may be as short as ``gpus: [{name: NVIDIA L4}]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from partage.codec.fields import Dialect, Field, Notes, Table
from partage.codec.reader import Reader, number, word_of
from partage.codec.yaml_document import YamlDocument, describe, read_document
from partage.errors import HardwareError, InputError
from partage.model.driver_limit import LimitBackend, LimitObstacle, LimitSupport
from partage.model.gpu import (
    Driver,
    Gpu,
    Inventory,
    Link,
    LinkPath,
    LostGpu,
    NoDriver,
    VgpuHost,
    cuda_version,
)
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.mps import DaemonSpec, MpsNamespace
from partage.model.step import StartDaemon
from partage.model.strategy import Interval
from partage.plan.offer.memory_units import MOST_NAMESPACES
from partage.sim.node.daemons import start_daemon
from partage.sim.node.effects import apply_fault
from partage.sim.node.faults import TimedFault
from partage.sim.node.files.fault_syntax import read_timed_fault
from partage.sim.node.files.gpu_syntax import ReadGpu, read_gpu
from partage.sim.node.files.value_syntax import gpu_uuid, read_index, read_pci_bus_id
from partage.sim.node.limits import support_with
from partage.sim.node.machine import DRIVER, MOST_GPUS, Machine, derived_uuid, has_nvswitch, links_between
from partage.sim.node.state import power_on

VERSION, KIND = "partage/v1", "Machine"
_KEYS = (
    "version", "kind", "recorded", "driver", "cuda-driver", "no-driver", "gpus", "lost", "links",
    "device-nodes", "boot-id", "open-to-env", "restricted-mps", "fabric-manager", "virtual", "machine-type",
    "vgpu", "faults", "mps-daemons", "memory-limits",
)  # fmt: skip
_DIALECT = Dialect(
    any_spelling=True,
    homes={"count": "--machine, as in 4xl4; in a file every GPU has a row of its own"},
)
LIMIT_WORDS = {
    "dmem": LimitSupport(LimitBackend.DMEM),
    "misc": LimitSupport(LimitBackend.MISC),
    "off": LimitSupport(obstacle=LimitObstacle.MODE),
    **{
        obstacle.value: LimitSupport(obstacle=obstacle)
        for obstacle in (
            LimitObstacle.CGROUP_V1,
            LimitObstacle.KERNEL,
            LimitObstacle.SILENT,
        )
    },
}
"""Whether the driver limits the memory of containers. Branches before 615 do not, whatever is written."""

_LINK_PATHS = {path.word: path for path in LinkPath}
_MOST_NVLINKS = 64
_LOST_KEYS = ("index", "uuid", "pci-bus-id", "reason")
_LINK_KEYS = ("a", "b", "path", "nvlinks")
_DEVICE_FILE = re.compile(r"/[^\x00-\x1f]{0,1023}")


def read_machine(data: bytes, name: str) -> Machine:
    """The machine that a file describes. Raises InputError with all problems."""
    place = _machine_field(read_document(data, name), name)
    top = place.table(_KEYS)
    machine = _machine(top, name) if top else None
    place.notes.finish()
    assert machine is not None, "a machine that is no mapping has been noted"
    return machine


def _machine_field(document: YamlDocument, name: str) -> Field:
    """The machine in a document."""
    value, key = document.value, "machine"
    wrapped = isinstance(value, dict) and key in value
    inner = value[key] if isinstance(value, dict) and wrapped else value
    whole = Notes(document, name, _DIALECT).top()
    return whole.member(key, inner) if wrapped else whole


def _machine(top: Table, name: str) -> Machine:
    if "version" in top:
        _header(top)
    rows = _gpus(top)
    gpus = tuple(row.gpu for row in rows)
    lost = _lost_gpus(top)
    _nothing_twice(top, gpus, lost)
    nvswitch: bool | None = has_nvswitch(gpus)
    inventory = Inventory(
        driver=_driver(top),
        gpus=gpus,
        lost=lost,
        links=_links(top, {gpu.index: gpu for gpu in gpus}) if "links" in top else links_between(gpus),
        control_nodes=tuple(_device_nodes(top)),
        boot_id=top.text("boot-id", derived_uuid("", "boot", 0)),
        open_to_env=top.nullable("open-to-env", Field.boolean, None),
        restricted_mps=top.value("restricted-mps", Field.boolean, False),
        fabric_manager=top.nullable("fabric-manager", Field.boolean, nvswitch),
        virtual=top.nullable("virtual", Field.boolean, False),
        simulated=True,
        machine_type=top.text("machine-type", ""),
        vgpu=top.nullable("vgpu", _vgpu, None),
    )
    faults = _faults(top, inventory)
    slices = {row.gpu.index: row.time_slice for row in rows if row.time_slice is not Interval.DEFAULT}
    daemons = tuple(read_daemons(top, inventory))
    limits = top.value("memory-limits", word_of(LIMIT_WORDS), None)
    if limits is not None:
        known = (replace(gpu, limits=support_with(limits, inventory.driver, gpu)) for gpu in gpus)
        inventory = replace(inventory, gpus=tuple(known))
    return Machine(name, inventory, tuple(faults), _recorded(top), slices, daemons, limits)


def _header(top: Table) -> None:
    for key, word in (("version", VERSION), ("kind", KIND)):
        field = top.get(key)
        if field and field.value != word:
            field.error(f"{describe(field.value)} is not the {key} of a machine", f"write {key}: {word}")


def _recorded(top: Table) -> str:
    """The date of the recording; empty if there is none."""
    row = top.value("recorded", lambda field: field.table(("date", "driver")), None)
    return row.text("date", "") if row else ""


def _driver(top: Table) -> Driver | NoDriver:
    absent = top.get("no-driver")
    if absent is None:
        version = top.value("driver", Field.some_text, DRIVER.version)
        return Driver(version, top.value("cuda-driver", _cuda, DRIVER.cuda))
    row = absent.table(("kind", "reason", "hint"))
    if row is None:
        return NoDriver("", "")
    kind = row.value("kind", Field.some_text, "driver-missing")
    return NoDriver(kind, row.value("reason", Field.some_text, "there is no driver"), row.text("hint", ""))


def _vgpu(field: Field) -> VgpuHost | None:
    row = field.table(("version", "branch"))
    return None if row is None else VgpuHost(row.text("version", ""), row.text("branch", ""))


def _cuda(field: Field) -> str | None:
    """``12.4``, as text or as the driver's 12040."""
    if isinstance(field.value, str):
        return field.some_text()
    number = field.integer(1000)
    return None if number is None else cuda_version(number)


def _device_nodes(top: Table) -> Iterator[str]:
    for place in top.value("device-nodes", Field.items, []):
        node = place.matching(_DEVICE_FILE, "the path of a device file")
        if node is not None:
            yield node


def _gpus(top: Table) -> tuple[ReadGpu, ...]:
    places = top.value("gpus", lambda field: field.items(at_most=MOST_GPUS), None)
    if not places and not ("lost" in top or "no-driver" in top):
        top.here("gpus").error("a machine needs at least one GPU")
    places = places or []
    rows = [read_gpu(place, position, len(places)) for position, place in enumerate(places)]
    return tuple(sorted((row for row in rows if row), key=lambda row: row.gpu.index))


def _lost_gpus(top: Table) -> tuple[LostGpu, ...]:
    rows = [place.table(_LOST_KEYS) for place in top.value("lost", Field.items, [])]
    lost = [
        LostGpu(
            index=row.needed("index", read_index) or 0,
            uuid=row.nullable("uuid", gpu_uuid, None),
            pci_bus_id=row.nullable("pci-bus-id", read_pci_bus_id, None),
            reason=row.value("reason", Field.some_text, "GPU is lost"),
        )
        for row in rows
        if row
    ]
    return tuple(sorted(lost, key=lambda gpu: gpu.index))


def _nothing_twice(top: Table, gpus: Sequence[Gpu], lost: Sequence[LostGpu]) -> None:
    """Report every index, UUID, minor and PCI address that two things have."""
    uuids = [uuid for gpu in gpus for uuid in (gpu.uuid, *(device.uuid for device in gpu.mig_devices))]
    names: Mapping[str, list[object]] = {
        "index": [*(gpu.index for gpu in gpus), *(row.index for row in lost)],
        "uuid": [*uuids, *(row.uuid for row in lost if row.uuid)],
        "minor": [gpu.minor for gpu in gpus],
        "pci-bus-id": [gpu.pci_bus_id.lower() for gpu in gpus],
    }
    for key, values in names.items():
        twice = sorted({str(value) for value in values if values.count(value) > 1})
        if twice:
            top.here("gpus").error(f"{key} {twice[0]} occurs twice")


def _links(top: Table, gpus: Mapping[int, Gpu]) -> tuple[Link, ...]:
    links: dict[frozenset[int], Link] = {}
    for row in (place.table(_LINK_KEYS) for place in top.value("links", Field.items, [])):
        a, b = (row.needed("a", read_index), row.needed("b", read_index)) if row else (None, None)
        if row is None or a is None or b is None:
            continue
        path = row.value("path", word_of(_LINK_PATHS), LinkPath.CROSS_CPU)
        nvlinks = row.value("nvlinks", number(0, _MOST_NVLINKS), 0)
        pair = frozenset({a, b})
        if a == b or pair in links or not pair <= gpus.keys():
            row.whole.error(
                f"a link joins two GPUs of the machine, and every pair once; this one {a} and {b}"
            )
            continue
        links[pair] = Link(gpus[a].uuid, gpus[b].uuid, path, nvlinks)
    return tuple(links.values())


def _faults(top: Table, inventory: Inventory) -> Iterator[TimedFault]:
    """The faults, in the order of the file. Each has to be possible on the node if it is the only one."""
    state = power_on(Machine("", inventory))
    for place in top.value("faults", Field.items, []):
        timed = read_timed_fault(place)
        if timed is None:
            continue
        try:
            apply_fault(state, timed.fault)
        except (ValueError, InputError) as error:
            place.error(str(error))
        else:
            yield timed


_DAEMON_KEYS = ("device", "memory-bytes", "threads-percent", "multi-user", "namespaces", "slots")
_MOST_BYTES = 2**60


def read_daemons(top: Table, inventory: Inventory) -> Iterator[DaemonSpec]:
    """The daemons that serve, in the order of the file. Each has to be possible on the node, and is the only
    one of its device.
    """
    state = power_on(Machine("", inventory))
    homes: dict[str, tuple[GpuUuid, DeviceUuid]] = {}
    for gpu in inventory:
        homes[gpu.uuid] = gpu.uuid, gpu.uuid
        homes |= {mig.uuid: (gpu.uuid, mig.uuid) for mig in gpu.mig_devices}
    for place in top.value("mps-daemons", Field.items, []):
        row = place.table(_DAEMON_KEYS)
        device = row.needed("device", Field.some_text) if row else None
        if row is None or device is None:
            continue
        if device not in homes:
            row.here("device").error(f"no GPU and no MIG device of this machine has the UUID {device}")
            continue
        if device in state.daemons:
            row.here("device").error(f"{device} has a daemon already")
            continue
        try:
            home, uuid = homes[device]
            spec = _DAEMON.fill(row, gpu=home, device=uuid)
            state = start_daemon(state, StartDaemon(spec.gpu, spec))
        except (ValueError, HardwareError) as error:
            place.error(str(error))
        else:
            yield spec


def _namespaces(field: Field) -> tuple[MpsNamespace, ...]:
    """Raises ValueError."""
    tables = (place.table(_NAMESPACE.keys) for place in field.items() or ())
    return tuple(
        _NAMESPACE.fill(table, name=name)
        for table in tables
        if table and (name := table.needed("name", Field.some_text)) is not None
    )


_LIMITS = {"memory_bytes": number(1, _MOST_BYTES), "threads_percent": number(1, 100)}
_NAMESPACE = Reader(MpsNamespace, reads=_LIMITS, nulls=True)
_DAEMON = Reader(
    DaemonSpec,
    ("multi_user", "memory_bytes", "threads_percent", "namespaces", "slots"),
    reads={**_LIMITS, "namespaces": _namespaces, "slots": number(0, MOST_NAMESPACES)},
    nulls=True,
)
