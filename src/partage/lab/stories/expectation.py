"""Read what a story expects: ``expect: {allocatable: {nvidia.com/gpu: 7}}``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from partage.codec.fields import Field, Table
from partage.lab.stories.model import DEFAULT_WITHIN_S, Expect, full_pattern
from partage.model.health import HealthState

T = TypeVar("T")

_KEYS = ("allocatable", "capacity", "pods", "env", "health", "waiting", "problem")
_MOST_GPUS = 64
_LONGEST_WAIT_S = 60
_SECONDS = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)\s*s?", re.ASCII)


def read_expectation(step: Table) -> Expect | None:
    """The ``expect`` of a step, with its ``within``."""
    place = step.required("expect")
    table = place.table(_KEYS) if place else None
    if place is None or table is None:
        return None
    return Expect(
        path=place.place.path,
        within_s=_within(step.get("within")),
        allocatable=_each(table.get("allocatable"), lambda field: field.integer(0)),
        capacity=_each(table.get("capacity"), lambda field: field.integer(0)),
        pods=_by_pod(_each(table.get("pods"), Field.text)),
        env=_by_pod(_each(table.get("env"), lambda field: _each(field, _pattern))),
        health=_health(table.get("health")),
        waiting=_indexes(table.get("waiting")),
        problem=_problem(table.get("problem")),
    )


def _each(place: Field | None, read: Callable[[Field], T | None]) -> dict[str, T]:
    members = (place.mapping() or {}) if place else {}
    values = {name: read(field) for name, field in members.items()}
    return {name: value for name, value in values.items() if value is not None}


def _by_pod(entries: Mapping[str, T]) -> dict[str, T]:
    return {full_pattern(name): value for name, value in entries.items()}


def _pattern(place: Field) -> str | None:
    """The value of a variable: text, or a number that stands for its digits."""
    if type(place.value) is int:
        return str(place.value)
    return place.text()


def _health(place: Field | None) -> dict[str, tuple[int, ...]]:
    table = place.table(tuple(state.value for state in HealthState)) if place else None
    if table is None:
        return {}
    found = {state.value: _indexes(table.get(state.value)) for state in HealthState}
    return {state: indexes for state, indexes in found.items() if indexes is not None}


def _indexes(place: Field | None) -> tuple[int, ...] | None:
    if place is None:
        return None
    numbers = [item.integer(0) for item in place.items(at_most=_MOST_GPUS) or []]
    return tuple(number for number in numbers if number is not None)


def _problem(place: Field | None) -> str | None:
    return place.text() if place else None


def _within(place: Field | None) -> float:
    if place is None:
        return DEFAULT_WITHIN_S
    match = _SECONDS.fullmatch(str(place.value))
    if match and 0 < float(match[1]) <= _LONGEST_WAIT_S:
        return float(match[1])
    place.error(f"has to be a time up to {_LONGEST_WAIT_S}s", "within: 5s")
    return DEFAULT_WITHIN_S
