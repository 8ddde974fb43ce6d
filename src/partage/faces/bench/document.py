"""A run as a JSON document, ``kind: Bench``, and back. Keys are added, never renamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from partage.faces.bench.model import (
    Bench,
    Cell,
    Experiment,
    Failure,
    Key,
    Machine,
    MemoryTry,
    Mode,
    Repeat,
    Settings,
    Turn,
)
from partage.faces.bench.summary import Finding, findings
from partage.faces.recorded import API_VERSION, Recorded

_T = TypeVar("_T")
_Flat = TypeVar("_Flat", Machine, Settings)

_SMALLEST, _LARGEST = 1e-7, 1e15
_LARGEST_BYTES = 256 * 2**20


def to_document(bench: Bench) -> dict[str, Any]:
    """All of it. ``summary`` repeats what the samples say, for readers that do not compute."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Bench",
        "at": bench.at,
        "command": list(bench.command),
        "versions": dict(bench.versions),
        "machine": _camel(asdict(bench.machine)),
        "settings": _camel(asdict(bench.settings)),
        "remarks": list(bench.remarks),
        "summary": [_finding_row(finding) for finding in findings(bench)],
        "memory": [_memory_row(one) for one in bench.memory],
        "cells": [_cell_row(cell) for cell in bench.cells],
    }


def _finding_row(finding: Finding) -> dict[str, Any]:
    spread = {name: round(value, 4) for name, value in asdict(finding.spread).items() if name != "count"}
    return {"name": finding.name, "unit": finding.unit, **spread, "repeats": finding.spread.count}


def _memory_row(one: MemoryTry) -> dict[str, Any]:
    return {
        "mode": str(one.mode),
        "limitBytes": one.limit_bytes,
        "source": one.source,
        "promise": one.promise,
        "thirds": one.thirds,
        "expected": one.expected,
        "seen": one.seen,
        "message": one.message,
    }


def _cell_row(cell: Cell) -> dict[str, Any]:
    return {
        "experiment": str(cell.key.experiment),
        "mode": str(cell.key.mode),
        "processes": cell.key.processes,
        "points": cell.points,
        "rounds": cell.rounds,
        "clientsSeen": cell.clients_seen,
        "repeats": [
            {"pass": repeat.number, "turns": [_turn_row(turn) for turn in repeat.turns]}
            for repeat in cell.repeats
        ],
    }


def _turn_row(turn: Turn) -> dict[str, Any]:
    if turn.failure is not None:
        return {"failure": asdict(turn.failure)}
    row: dict[str, Any] = {
        "startedSeconds": turn.started_s,
        "endedSeconds": turn.ended_s,
        "startSeconds": turn.start_s,
        "value": turn.value,
        "requests": turn.requests,
        "latenciesUs": list(turn.latencies_us) or None,
    }
    return {name: value for name, value in row.items() if value is not None}


def _camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    """``deadline_s`` is ``deadlineSeconds``; tuples are lists."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        first, *rest = name.replace("_s", "_seconds").split("_") if name.endswith("_s") else name.split("_")
        found[first + "".join(part.capitalize() for part in rest)] = (
            list(value) if isinstance(value, tuple) else value
        )
    return found


# --- back --------------------------------------------------------------------------------------


def _bench(document: Mapping[str, Any]) -> Bench:
    return Bench(
        at=str(document["at"]),
        command=tuple(map(str, document["command"])),
        versions={str(name): str(value) for name, value in document["versions"].items()},
        machine=_fields(Machine(system="", processor="", processors=0), document["machine"]),
        settings=_fields(Settings(), document["settings"]),
        cells=tuple(map(_cell, document["cells"])),
        memory=tuple(map(_memory, document["memory"])),
        remarks=tuple(map(str, document.get("remarks", ()))),
    )


def _fields(default: _Flat, row: Mapping[str, Any]) -> _Flat:
    """A flat value from its row; keys of newer versions are passed over, missing ones keep their default."""
    found: dict[str, Any] = {}
    for (name, old), key in zip(asdict(default).items(), _camel(asdict(default)), strict=True):
        value = row.get(key, old)
        if isinstance(old, tuple):
            value = tuple(type(old[0])(one) for one in value) if old else tuple(map(str, value))
        else:
            value = _or_none(int, value) if old is None else type(old)(value)
        found[name] = value
    return type(default)(**found)


def _cell(row: Mapping[str, Any]) -> Cell:
    key = Key(Experiment(row["experiment"]), Mode(row["mode"]), int(row["processes"]))
    repeats = tuple(
        Repeat(int(one["pass"]), tuple(_turn(turn, key) for turn in one["turns"])) for one in row["repeats"]
    )
    if key.processes < 1 or not repeats or any(len(repeat.turns) != key.processes for repeat in repeats):
        raise ValueError(f"{key} has no repeats, or one without {key.processes} turns")
    seen = row.get("clientsSeen")
    points, rounds = int(row.get("points", 0)), int(row.get("rounds", 0))
    if key.experiment is not Experiment.INFERENCE:
        _check(f"work of {key}", points, rounds)
    return Cell(key, repeats, points, rounds, None if seen is None else int(seen))


def _turn(row: Mapping[str, Any], key: Key) -> Turn:
    if failure := row.get("failure"):
        return Turn(failure=Failure(str(failure["what"]), str(failure["message"])))
    turn = Turn(
        started_s=float(row["startedSeconds"]),
        ended_s=float(row["endedSeconds"]),
        value=_or_none(float, row.get("value")),
        requests=_or_none(int, row.get("requests")),
        latencies_us=tuple(map(float, row.get("latenciesUs", ()))),
        start_s=_or_none(float, row.get("startSeconds")),
    )
    _check(f"duration of {key}", turn.seconds)
    if key.experiment is Experiment.INFERENCE:
        _check(f"number of requests of {key}", turn.requests or 0, len(turn.latencies_us))
    _check(f"latency of {key}", *turn.latencies_us)
    return turn


def _check(what: str, *values: float) -> None:
    """No document can say anything that cannot be computed with."""
    for value in values:
        if not _SMALLEST <= value <= _LARGEST:
            raise ValueError(f"{value} is no {what}")


def _or_none(kind: Callable[[Any], _T], value: object) -> _T | None:
    return None if value is None else kind(value)


def _memory(row: Mapping[str, Any]) -> MemoryTry:
    return MemoryTry(
        mode=Mode(row["mode"]),
        limit_bytes=int(row["limitBytes"]),
        source=str(row["source"]),
        promise=str(row["promise"]),
        thirds=float(row["thirds"]),
        seen=str(row["seen"]),
        message=str(row.get("message", "")),
    )


_RECORDED = Recorded(
    "Bench", "recorded run of partage bench", "partage bench --save FILE writes one", _LARGEST_BYTES, _bench
)
read_bench = _RECORDED.read
from_document = _RECORDED.from_document
