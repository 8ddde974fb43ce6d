"""Lists of nodes: CSV with the columns of the published GPU traces of Alibaba.

Columns, by their names in the first line, in any order: ``gpu`` (how many), ``model``, and ``sn`` or
``name``; where known also ``cpu_milli`` and ``memory_mib``. Other columns are left alone.
"""

from __future__ import annotations

from pathlib import Path

from partage.edges.files.csv_table import Row, WrongCell, read_table, whole_number
from partage.errors import InputError, Problem
from partage.text import listed
from partage.units import MIB
from partage.values import Frozen

NEEDED = ("gpu", "model")
_MOST_GPUS = 64


class FleetRow(Frozen):
    """One node. model: as written. cpu_milli, memory_bytes: None: not said."""

    name: str
    gpus: int
    model: str
    cpu_milli: int | None = None
    memory_bytes: int | None = None


def read_fleet(path: Path) -> tuple[FleetRow, ...]:
    """The nodes, in the order of the file. Raises InputError with all problems, up to ten."""
    rows = read_table(path, NEEDED, _row)
    if not rows:
        raise InputError(
            [Problem(str(path), "", "error", "names no nodes", "one line for each node is needed")]
        )
    names = [one.name for one in rows if one.name]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        message = f"names {listed(twice, 4)} more than once"
        hint = "each node is one line; without sn and name, nodes are numbered"
        raise InputError([Problem(str(path), "", "error", message, hint)])
    return tuple(one if one.name else _named(one, place) for place, one in enumerate(rows))


def _row(row: Row) -> FleetRow:
    gpus, model = whole_number(row, "gpu"), (row.get("model") or "").strip()
    if not 1 <= gpus <= _MOST_GPUS:
        hint = "leave nodes without GPUs out"
        raise WrongCell(f"gpu is {gpus}, a number from 1 to {_MOST_GPUS} is needed", hint)
    if not model:
        raise WrongCell("model is empty", "partage machines lists the models")
    cpu, memory_mib = whole_number(row, "cpu_milli", 0), whole_number(row, "memory_mib", 0)
    name = (row.get("sn") or row.get("name") or "").strip()
    return FleetRow(name, gpus, model, cpu or None, memory_mib * MIB or None)


def _named(one: FleetRow, place: int) -> FleetRow:
    return FleetRow(f"node-{place}", one.gpus, one.model, one.cpu_milli, one.memory_bytes)
