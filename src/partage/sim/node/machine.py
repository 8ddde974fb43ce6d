"""Machines for the simulation: from a name, ``8xa100-40gb+2xl40s``, or from a file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from partage.edges.files.catalogue import GpuModel, load
from partage.errors import InputError, Problem, Unsatisfiable
from partage.model.gpu import Driver, Gpu, Inventory, MigMode, RecoveryAction
from partage.model.policy import Interval
from partage.sim.node.faults import TimedFault
from partage.sim.node.topology import has_nvswitch, links_between, numa_node

MOST_GPUS = 64
DRIVER = Driver(version="580.95.05", cuda="13.0")
"""Of named machines: a branch that drives everything in the catalogue from Volta to Blackwell."""

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_TERM = re.compile(r"(?:(\d{1,9})\s*[xX]\s*)?(\S.*)", re.ASCII)
_LONGEST = 1000
_SUFFIXES = frozenset({".yaml", ".yml", ".json"})


@dataclass(frozen=True, slots=True)
class Machine:
    """A simulated node as it is switched on, and what will go wrong by itself.

    name: what it was called by. recorded: date of the recording it comes from, empty for none.
    slices: time slices that are not default, by GPU index; None: that GPU has none that can be set.
    """

    name: str
    inventory: Inventory
    faults: tuple[TimedFault, ...] = ()
    recorded: str = ""
    slices: Mapping[int, Interval | None] = field(default_factory=dict)


def parse_machine(text: str) -> Machine:
    """The machine of that name: ``COUNTxMODEL`` or ``MODEL``, several joined by ``+``.

    A model is an id of the catalogue or a product name. Raises InputError with the nearest names, and
    Unsatisfiable for a model whose MIG placements nobody has published.
    """
    return Machine(text, simulated_inventory(named_gpus(text, MOST_GPUS)))


def named_gpus(text: str, most: int) -> tuple[Gpu, ...]:
    """The GPUs of a machine of that name. Raises InputError (for more than ``most``, too), Unsatisfiable."""
    if len(text) > _LONGEST:
        raise InputError(f"{text[:40]!r}... is too long for the name of a machine")
    terms = [_term(part.strip(), text) for part in text.split("+")]
    total = sum(count for count, _, _ in terms)
    if total > most:
        raise InputError(f"machine {text!r} has {total} GPUs; a simulated node has at most {most}")
    wanted = [(model, product) for count, model, product in terms for _ in range(count)]
    return tuple(
        new_gpu(position, model, product, numa_node(position, total))
        for position, (model, product) in enumerate(wanted)
    )


def load_machine(text: str) -> Machine:
    """The machine of a file, or of a name. Raises InputError, Unsatisfiable."""
    if is_name(text):
        return parse_machine(text)
    from partage.edges.files.safeyaml import LIMIT_BYTES
    from partage.sim.node.machine_file import read_machine

    try:
        with Path(text).open("rb") as file:
            data = file.read(LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError([Problem(text, "", "error", f"cannot be read: {reason}")]) from error
    return read_machine(data, text)


def is_name(text: str) -> bool:
    """Whether it is the name of a machine: no slash, no .yaml, .yml or .json, and no file is called so."""
    path = Path(text)
    return "/" not in text and path.suffix.lower() not in _SUFFIXES and not _is_file(path)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _term(part: str, text: str) -> tuple[int, GpuModel, str]:
    match = _TERM.fullmatch(part)
    if match is None:
        raise InputError(
            f"{text!r} is not a machine", "a machine is called 8xa100-40gb or 4xh200-141gb+4xl40s"
        )
    count = int(match[1] or 1)
    if count == 0:
        raise InputError(f"machine {text!r}: {part!r} is no GPU at all")
    return count, *_model(match[2])


def _model(name: str) -> tuple[GpuModel, str]:
    found = load().find(name)
    if found is None:
        raise InputError(f"no GPU model is called {name!r}", load().advice(name))
    if found[0] not in load().simulable():
        raise Unsatisfiable(f"{name!r} cannot be simulated: {found[0].no_geometry}")
    return found


def new_gpu(position: int, model: GpuModel, product: str, numa: int | None) -> Gpu:
    """A fresh GPU of that model; its UUID follows from model and position."""
    return Gpu(
        index=position,
        uuid=derived_uuid("GPU", model.id, position),
        minor=position,
        product=product,
        architecture=model.architecture,
        compute_capability=model.compute_capability,
        memory_bytes=model.memory_bytes,
        pci_bus_id=f"00000000:{0x0A + 3 * position:02X}:00.0",
        pci_device_id=model.pci_device_id(product),
        numa_node=numa,
        mig_mode=MigMode(current=False, pending=False) if model.mig else None,
        recovery=RecoveryAction.NONE,
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
    """A UUID that the same seed always gives: ``GPU-...``, ``MIG-...``, or bare for an empty kind."""
    digest = hashlib.sha256("/".join(map(str, ("partage", kind, *seed))).encode()).hexdigest()
    bare = f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
    return f"{kind}-{bare}" if kind else bare
