"""What a story expects: how it is read (``expect: {allocatable: {nvidia.com/gpu: 7}}``), and whether it is
true of what the node shows. Pure: a snapshot in, sentences out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from partage.codec.fields import Field, Table
from partage.codec.reader import Read, Reader, by_type, members
from partage.lab.stories.model import DEFAULT_WITHIN_S, Expect, full_pattern
from partage.model.health import HealthState
from partage.plan.report import MigConfigState, Report
from partage.sim.kubelet.pods import ContainerStatus, PodPhase, PodStatus
from partage.text import numbers
from partage.values import Frozen

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
            "health": lambda field: _read_health(field, gpus),
            "waiting": lambda field: _indexes(field, gpus),
            "mig_config": _read_mig_config,
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


def _read_health(place: Field, gpus: Collection[int] | None) -> dict[str, tuple[int, ...]]:
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


def _read_mig_config(place: Field) -> str | None:
    return "" if place.value == "" else place.choice(MigConfigState)


def _within(place: Field) -> float | None:
    match = _SECONDS.fullmatch(str(place.value))
    if match and 0 < float(match[1]) <= _LONGEST_WAIT_S:
        return float(match[1])
    place.error(f"has to be a time up to {_LONGEST_WAIT_S}s", "within: 5s")
    return None


class NodeSnapshot(Frozen):
    """The node at one moment, as the kubelet and the agent say. report: None before the agent's first."""

    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]
    pods: tuple[PodStatus, ...]
    report: Report | None


def unmet_expectations(expect: Expect, now: NodeSnapshot) -> list[str]:
    """What is not as it should be; empty where all is."""
    return [
        *_counts("allocatable", expect.allocatable, now.allocatable),
        *_counts("capacity", expect.capacity, now.capacity),
        *_phases(expect, now),
        *_environments(expect, now),
        *_health(expect, now.report),
        *_waiting(expect, now.report),
        *_mig_config(expect, now.report),
        *_problem(expect, now.report),
    ]


def _counts(what: str, wanted: Mapping[str, int], found: Mapping[str, int]) -> Iterator[str]:
    for name, count in wanted.items():
        if found.get(name, 0) != count:
            yield f"{what} {name} is {found.get(name, 0)}, not {count}"


def _phases(expect: Expect, now: NodeSnapshot) -> Iterator[str]:
    for pattern, phase in expect.pods.items():
        if not (matching := _matching(now, pattern)):
            yield f"no pod is called {pattern}"
        for status in matching:
            if status.phase != phase:
                reason = f" ({status.message or status.reason})" if status.reason else ""
                yield f"{status.pod.key} is {status.phase}{reason}, not {phase}"


def _matching(now: NodeSnapshot, pattern: str) -> list[PodStatus]:
    return [status for status in now.pods if fnmatchcase(status.pod.key, pattern)]


def _environments(expect: Expect, now: NodeSnapshot) -> Iterator[str]:
    for key, variables in expect.env.items():
        pattern, _, container = key.partition(":")
        if not (matching := _matching(now, pattern)):
            yield f"no pod is called {pattern}"
        for status in matching:
            for container_status in _containers(status, container):
                yield from _variables(
                    f"{status.pod.key}:{container_status.name}", variables, container_status.env
                )


def _containers(status: PodStatus, name: str) -> list[ContainerStatus]:
    """The named one, or all that are no init containers."""
    main = {container.name for container in status.pod.containers}
    return [
        container
        for container in status.containers
        if (container.name == name if name else container.name in main)
    ]


def _variables(where: str, wanted: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    for name, pattern in wanted.items():
        if name not in found:
            yield f"{where} has no {name}"
        elif not fnmatchcase(found[name], pattern):
            yield f"{where} has {name}={found[name]}, not {pattern}"


def _health(expect: Expect, report: Report | None) -> Iterator[str]:
    states = {gpu.index: gpu.health for gpu in report.gpus} if report else {}
    for word, indexes in expect.health.items():
        for index in indexes:
            phase = states.get(index)
            if phase is None:
                yield f"the agent knows no GPU {index}"
            elif phase.state != word:
                yield f"GPU {index} is {phase.state}, not {word}"


def _waiting(expect: Expect, report: Report | None) -> Iterator[str]:
    if expect.waiting is None:
        return
    found = tuple(gpu.index for gpu in report.gpus if gpu.waits) if report else ()
    if found != tuple(sorted(expect.waiting)):
        yield f"GPUs {list(found)} wait for their holders, not {list(expect.waiting)}"


def _mig_config(expect: Expect, report: Report | None) -> Iterator[str]:
    if expect.mig_config is None:
        return
    found = report.mig_config if report else None
    state = (found.state or "unknown") if found else ""
    if state != expect.mig_config:
        reason = f" ({found.reason})" if found and found.reason else ""
        wanted = expect.mig_config or "absent"
        yield f"the MIG layout of the label is {state or 'not asked for'}{reason}, not {wanted}"


def _problem(expect: Expect, report: Report | None) -> Iterator[str]:
    if expect.problem is None:
        return
    said = [str(problem) for problem in report.policy.problems] if report else []
    if not expect.problem and said:
        yield f"the agent reports a problem: {said[0]}"
    if expect.problem and not any(expect.problem.lower() in text.lower() for text in said):
        yield f"the agent reports no problem with {expect.problem!r}" + (f", but {said[0]}" if said else "")
