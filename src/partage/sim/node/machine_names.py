"""Machines by name: ``COUNTxMODEL``, several joined by ``+``, as in ``8xa100-40gb+2xl40s``."""

from __future__ import annotations

import re
from pathlib import Path

from partage.edges.files.catalogue import load_catalogue, model_named
from partage.errors import InputError, Unsatisfiable
from partage.model.geometry import GpuModel
from partage.model.gpu import Gpu
from partage.sim.node.machine import MOST_GPUS, Machine, new_gpu, numa_node, simulated_inventory

_TERM = re.compile(r"(?:(\d{1,9})\s*[xX]\s*)?(\S.*)", re.ASCII)
_LONGEST = 1000
_SUFFIXES = frozenset({".yaml", ".yml", ".json"})


def parse_machine(text: str) -> Machine:
    """The machine of that name. A model is an id of the catalogue or a product name.

    Raises InputError with the nearest names, and Unsatisfiable for a model of which too little is published.
    """
    return Machine(text, simulated_inventory(named_gpus(text, MOST_GPUS)))


def named_gpus(text: str, most: int) -> tuple[Gpu, ...]:
    """The GPUs of a machine of that name. Raises InputError (also for more than ``most``), Unsatisfiable."""
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


def is_name(text: str) -> bool:
    """Whether it is a machine's name: no slash, no .yaml, .yml or .json, and no file of that name exists."""
    path = Path(text)
    return "/" not in text and path.suffix.lower() not in _SUFFIXES and not is_file(path)


def is_file(path: Path) -> bool:
    """Whether there is such a file; a text that cannot be a path names none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _term(part: str, text: str) -> tuple[int, GpuModel, str]:
    match = _TERM.fullmatch(part)
    if match is None:
        raise InputError(
            f"{text!r} is not a machine", "a machine is written 8xa100-40gb or 4xh200-141gb+4xl40s"
        )
    count = int(match[1] or 1)
    if count == 0:
        raise InputError(f"machine {text!r}: {part!r} means no GPU")
    return count, *_model(match[2])


def _model(name: str) -> tuple[GpuModel, str]:
    found = model_named(name, "for another GPU write a machine file, see docs/reference/machines.md")
    if found[0] not in load_catalogue().simulated_models():
        raise Unsatisfiable(
            f"{name!r} cannot be simulated: no name, memory or MIG placements are published for it",
            "record a node that has one, with partage record",
        )
    return found
