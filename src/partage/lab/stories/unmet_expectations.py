"""Whether an expectation is true of what the node shows. Pure: a snapshot in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from partage.lab.stories.model import Expect
from partage.plan.report import Report
from partage.sim.kubelet.pod_status import ContainerStatus, PodStatus
from partage.values import Frozen


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
        matching = [status for status in now.pods if fnmatchcase(status.pod.key, pattern)]
        if not matching:
            yield f"no pod is called {pattern}"
        for status in matching:
            if status.phase != phase:
                reason = f" ({status.message or status.reason})" if status.reason else ""
                yield f"{status.pod.key} is {status.phase}{reason}, not {phase}"


def _environments(expect: Expect, now: NodeSnapshot) -> Iterator[str]:
    for key, variables in expect.env.items():
        pattern, _, container = key.partition(":")
        matching = [status for status in now.pods if fnmatchcase(status.pod.key, pattern)]
        if not matching:
            yield f"no pod is called {pattern}"
        for status in matching:
            for found in _containers(status, container):
                yield from _variables(f"{status.pod.key}:{found.name}", variables, found.env)


def _containers(status: PodStatus, name: str) -> list[ContainerStatus]:
    """The named one, or all that are no init containers."""
    main = {container.name for container in status.pod.containers}
    return [one for one in status.containers if (one.name == name if name else one.name in main)]


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
