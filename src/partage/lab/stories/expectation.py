"""Read what a story expects: ``expect: {allocatable: {nvidia.com/gpu: 7}}``."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TypeVar

from partage.codec.fields import Field, Table
from partage.codec.reader import Read, Reader, by_type, members
from partage.lab.stories.model import DEFAULT_WITHIN_S, Expect, full_pattern
from partage.model.health import HealthState
from partage.plan.report import MigConfigState
from partage.sim.kubelet.pod_status import PodPhase
from partage.text import numbers

T = TypeVar("T")

_MOST_GPUS = 64
_LONGEST_WAIT_S = 60
_SECONDS = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)\s*s?", re.ASCII)


def read_expectation(step: Table, gpus: Collection[int] | None) -> Expect | None:
    """The ``expect`` of a step, with its ``within``. gpus: indexes that the machine has; None: not known."""
    place = step.required("expect")
    reader = Reader(
        Expect,
        ("allocatable", "capacity", "pods", "env", "health", "waiting", "mig_config", "problem"),
        reads={
            "pods": _by_pod(by_type(PodPhase)),
            "env": _by_pod(members(_pattern)),
            "health": lambda field: _health(field, gpus),
            "waiting": lambda field: _indexes(field, gpus),
            "mig_config": _mig_config,
        },
    )
    table = place.table(reader.keys) if place else None
    if place is None or table is None:
        return None
    within_s = step.value("within", _within, DEFAULT_WITHIN_S)
    return reader.fill(table, path=place.place.path, within_s=within_s)


def _by_pod(read: Read[T]) -> Read[dict[str, T]]:
    named = members(read)
    return lambda field: {full_pattern(name): value for name, value in named(field).items()}


def _pattern(place: Field) -> str | None:
    """The value of a variable: text, or a number that stands for its digits."""
    if type(place.value) is int:
        return str(place.value)
    return place.text()


def _health(place: Field, gpus: Collection[int] | None) -> dict[str, tuple[int, ...]]:
    table = place.table(tuple(state.value for state in HealthState))
    named = [state.value for state in HealthState if table and state.value in table]
    return {state: _indexes(table.here(state), gpus) for state in named} if table else {}


def _indexes(place: Field, gpus: Collection[int] | None) -> tuple[int, ...]:
    found = [_index(item, gpus) for item in place.items(at_most=_MOST_GPUS) or []]
    return tuple(number for number in found if number is not None)


def _index(place: Field, gpus: Collection[int] | None) -> int | None:
    number = place.integer(0)
    if number is not None and gpus is not None and number not in gpus:
        place.error(f"the machine has no GPU {number}", f"it has {numbers(gpus) or 'none'}")
        return None
    return number


def _mig_config(place: Field) -> str | None:
    return "" if place.value == "" else place.choice(MigConfigState)


def _within(place: Field) -> float | None:
    match = _SECONDS.fullmatch(str(place.value))
    if match and 0 < float(match[1]) <= _LONGEST_WAIT_S:
        return float(match[1])
    place.error(f"has to be a time up to {_LONGEST_WAIT_S}s", "within: 5s")
    return None
