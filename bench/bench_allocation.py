"""How long choosing and answering take by themselves, without gRPC: ``python -m bench.bench_allocation``.

One process, one thread, wall clock, garbage collection on; the list of available ids is shuffled once, as the
kubelet sends it in any order. p99 tells more about the machine's other work than about the code.
"""

from __future__ import annotations

import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.policy import Policy
from partage.model.share import Resource, resources_of
from partage.plan.offer.advertise import advertise
from partage.plan.offer.assign import assign
from partage.plan.serve.allocate_response import AllocateResponder
from partage.plan.serve.preferred_allocation import PreferredAllocator
from partage.sim.node.machine_names import parse_machine

CALLS = 2000


@dataclass(frozen=True)
class Row:
    """One line of the table; times in microseconds."""

    what: str
    size: int
    p50: float
    p99: float


def measured(what: str, size: int, call: Callable[[], object], calls: int = CALLS) -> Row:
    """Time ``call`` that often, after a tenth of it for warming up."""
    for _ in range(calls // 10):
        call()
    times = []
    for _ in range(calls):
        started = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - started) / 1000)
    percent = statistics.quantiles(times, n=100)
    return Row(what, size, percent[49], percent[98])


def node(machine: str, policy: Policy) -> tuple[Resource, PreferredAllocator, AllocateResponder, float]:
    """The only resource of that node, what serves it, and how long that took to build, in microseconds."""
    inventory = parse_machine(machine).inventory
    offer = advertise(assign(policy, inventory, geometry_of), inventory, policy)
    (resource,) = resources_of(offer).values()
    started = time.perf_counter_ns()
    chooser = PreferredAllocator(resource, inventory.links, policy.options.allocation)
    answerer = AllocateResponder(resource, inventory, policy.options, "/run/partage")
    return resource, chooser, answerer, (time.perf_counter_ns() - started) / 1000


def rows_of(what: str, machine: str, policy: Policy, sizes: Sequence[int]) -> list[Row]:
    """Preferred allocation and Allocate, for each size."""
    resource, chooser, answerer, built = node(machine, policy)
    ids = [id_ for offering in resource.offerings for id_ in offering.share_ids]
    random.Random(0).shuffle(ids)
    rows = [Row(f"{what}: build chooser and answerer", len(ids), built, built)]
    for size in sizes:
        chosen = chooser.prefer(ids, [], size)
        rows.append(measured(f"{what}: prefer", size, lambda n=size: chooser.prefer(ids, [], n)))  # type: ignore[misc]
        rows.append(measured(f"{what}: answer", size, lambda some=chosen: answerer.answer(some)))  # type: ignore[misc]
    return rows


def sliced(replicas: int, **plugin: object) -> Policy:
    """NVIDIA's format: every GPU in that many shares."""
    shared = {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": replicas}]}}
    text = json.dumps({"version": "v1", "sharing": shared, "flags": {"plugin": plugin}})
    return parse_policy(text, "bench").policy


def main() -> None:
    """Print the table."""
    plain = parse_policy("version: partage/v1", "bench").policy
    rows = [
        *rows_of("8 GPUs x 48 shares", "8xh100-sxm5-80gb", sliced(48), (1, 4, 8)),
        *rows_of("the same, with device specs", "8xh100-sxm5-80gb", sliced(48, passDeviceSpecs=True), (8,)),
        *rows_of("8 GPUs x 10 shares", "8xh100-sxm5-80gb", sliced(10), (1, 4, 8)),
        *rows_of("8 whole GPUs, NVSwitch", "8xh100-sxm5-80gb", plain, (1, 4, 8)),
        *rows_of("16 whole GPUs, NVSwitch", "16xh100-sxm5-80gb", plain, (1, 8)),
        *rows_of("16 whole GPUs, two NVLink cube meshes", "16xv100", plain, (1, 7, 8)),
    ]
    print(f"microseconds, {CALLS} calls a line, CPython {platform.python_version()}, {platform.machine()}\n")
    print(f"{'':52}{'size':>6}{'p50':>10}{'p99':>10}")
    for row in rows:
        print(f"{row.what:52}{row.size:6}{row.p50:10.1f}{row.p99:10.1f}")


if __name__ == "__main__":
    main()
