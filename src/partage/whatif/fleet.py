"""The fleet of ``simulate --trace``: nodes of a table or of the command line, and which are alike.

A table is CSV with the columns of the published GPU traces of Alibaba, by their names in the first line, in
any order: ``gpu`` (how many), ``model``, and ``sn`` or ``name``; where known also ``cpu_milli`` and
``memory_mib``. Other columns are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from partage.answers.machine_list import read_machines
from partage.edges.files.catalogue import choose_one, load_catalogue, model_of
from partage.edges.files.csv_table import Row, WrongCell, read_table, whole_number
from partage.errors import InputError, PartageError, Problem, wrong_input
from partage.model.gpu import Inventory
from partage.plan.offer.select import model_names
from partage.plan.placement.mix import WHOLE_MILLI
from partage.plan.placement.room import Room
from partage.sim.node.machine_names import parse_machine
from partage.text import listed
from partage.units import MIB, format_bytes
from partage.whatif.decide.pods import Fleet, NamedNode, NodeKind

NEEDED = ("gpu", "model")
_MOST_GPUS = 64


class FleetRow(NamedNode):
    """A node of the table. cpu_milli, memory_bytes: None: not said."""

    cpu_milli: int | None = None
    memory_bytes: int | None = None


def read_fleet(path: Path) -> tuple[FleetRow, ...]:
    """The nodes, in the order of the file. Raises InputError with all problems, up to ten."""
    rows = read_table(path, NEEDED, _row)
    if not rows:
        raise wrong_input(path, "names no nodes", "one line for each node is needed")
    names = [row.name for row in rows if row.name]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        message = f"names {listed(twice, 4)} more than once"
        hint = "each node is one line; without sn and name, nodes are numbered"
        raise wrong_input(path, message, hint)
    return tuple(row if row.name else _named(row, place) for place, row in enumerate(rows))


def _row(row: Row) -> FleetRow:
    gpus, model = whole_number(row, "gpu"), (row.get("model") or "").strip()
    if not 1 <= gpus <= _MOST_GPUS:
        hint = "leave nodes without GPUs out"
        raise WrongCell(f"gpu is {gpus}, a number from 1 to {_MOST_GPUS} is needed", hint)
    if not model:
        raise WrongCell("model is empty", "partage machines lists the models")
    cpu, memory_mib = whole_number(row, "cpu_milli", 0), whole_number(row, "memory_mib", 0)
    name = (row.get("sn") or row.get("name") or "").strip()
    return FleetRow(name, model, gpus, cpu or None, memory_mib * MIB or None)


def _named(row: FleetRow, place: int) -> FleetRow:
    return replace(row, name=f"node-{place}")


def fleet_of_table(path: Path, models: Mapping[str, str]) -> Fleet:
    """The nodes of a table. models: what the names of models in it stand for (``--gpu-model``).

    Raises InputError for models that are not known, with all of them.
    """
    rows = read_fleet(path)
    meant = {name.lower(): model for name, model in models.items()}
    inventories: dict[tuple[int, str], Inventory] = {}
    problems: dict[str, Problem] = {}
    for row in rows:
        key = row.gpus, row.model
        if key in inventories or row.model in problems:
            continue
        try:
            inventories[key] = _inventory(row, meant.get(row.model.lower()))
        except PartageError as error:
            problems[row.model] = _unknown(path, row, error)
    if problems:
        raise InputError(tuple(problems.values()))
    kinds = {
        (row.gpus, row.model, row.cpu_milli, row.memory_bytes): NodeKind(
            title=_title(row),
            inventory=inventories[row.gpus, row.model],
            models=_names(inventories[row.gpus, row.model]) | {row.model.lower()},
            cpu_milli=row.cpu_milli,
            memory_bytes=row.memory_bytes,
        )
        for row in rows
    }
    places = {key: place for place, key in enumerate(kinds)}
    return Fleet(
        tuple(kinds.values()),
        tuple(row.name for row in rows),
        tuple(places[row.gpus, row.model, row.cpu_milli, row.memory_bytes] for row in rows),
    )


def rooms_of_table(path: Path) -> tuple[list[str], list[Room]]:
    """The nodes of a table as placement sees them, in the order of their names, which come first. Raises
    InputError; also where CPU or memory of a node are not said.
    """
    rows = sorted(read_fleet(path), key=lambda row: row.name)
    unsaid = [row.name for row in rows if row.cpu_milli is None or row.memory_bytes is None]
    if unsaid:
        message = f"says no cpu_milli or no memory_mib of {listed(unsaid, 4)}"
        hint = "--placement weighs GPUs against CPU: both are needed"
        raise wrong_input(path, message, hint)
    rooms = []
    for row in rows:
        cpu, memory = row.cpu_milli or 0, (row.memory_bytes or 0) // MIB
        rooms.append(Room(row.model.lower(), cpu, memory, [WHOLE_MILLI] * row.gpus, cpu, memory))
    return [row.name for row in rows], rooms


def fleet_of_machines(machines: Sequence[str]) -> Fleet:
    """The nodes of ``--machines``; their CPU and memory are not known. Raises what makes one impossible."""
    kinds: list[NodeKind] = []
    names: list[str] = []
    kind_of: list[int] = []
    for text, count, inventory in read_machines(machines):
        names += [text] if count == 1 else [f"{text}#{number + 1}" for number in range(count)]
        kind_of += [len(kinds)] * count
        kinds.append(NodeKind(text, inventory, _names(inventory)))
    if not names:
        raise InputError("--machines names no node", "--machines 125*8xh100-sxm5-80gb is 125 nodes of 8 GPUs")
    return Fleet(tuple(kinds), tuple(names), tuple(kind_of))


def parse_gpu_models(options: Sequence[str]) -> dict[str, str]:
    """``--gpu-model G2=a10`` as a mapping. Raises InputError."""
    found = {}
    for text in options:
        name, equals, model = text.partition("=")
        if not (name.strip() and equals and model.strip()):
            raise InputError(
                f"--gpu-model {text[:60]!r} is no pair NAME=MODEL", "--gpu-model V100M16=v100-sxm2-16gb"
            )
        found[name.strip()] = model.strip()
    return found


def _inventory(row: FleetRow, model: str | None) -> Inventory:
    return parse_machine(f"{row.gpus}x{model or row.model}").inventory


def _names(inventory: Inventory) -> frozenset[str]:
    """By which a trace may call the GPUs of a node, in lower case."""
    known = {model_of(gpu) for gpu in inventory} - {""}
    return frozenset(known | {name.lower() for gpu in inventory for name in model_names(gpu, None)})


def _title(row: FleetRow) -> str:
    """``2 x T4``, with CPU and memory where they are known."""
    more = []
    if row.cpu_milli is not None:
        more.append(f"{row.cpu_milli / 1000:g} CPUs")
    if row.memory_bytes is not None:
        more.append(format_bytes(row.memory_bytes))
    return f"{row.gpus} x {row.model}" + (f" ({', '.join(more)})" if more else "")


def _unknown(path: Path, row: FleetRow, error: PartageError) -> Problem:
    variants = load_catalogue().variants(row.model)
    hint = (
        f"{choose_one(variants)}: --gpu-model {row.model}={variants[0]}"
        if variants
        else f"--gpu-model {row.model}=MODEL says which GPU it is; partage machines lists the models"
    )
    return Problem(str(path), f"node {row.name}, model", "error", error.problems[0].message, hint)
