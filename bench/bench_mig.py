"""How long planning MIG takes for one node: ``python -m bench.bench_mig``.

Eight H100, each with a random live layout, some of its devices in use, and a random wanted layout. Timed is
all that ``partage plan`` decides: assign the policy, advertise, find the steps of every GPU. Processor time
of one process, everything imported, the first round left out.
"""

from __future__ import annotations

import gc
import platform
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of, load_catalogue
from partage.model.gpu import Gpu, Inventory, MigMode
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.layout import LayoutItem
from partage.model.policy import DesiredMig, GpuCriteria, GpuEntry, Options, Policy
from partage.plan.offer.desired import resolve
from partage.plan.reconcile.known_node import with_observed
from partage.plan.reconcile.mig_plan import MigPlan
from partage.plan.reconcile.node_plan import Observed, Snapshot
from partage.plan.reconcile.planner import plan_node
from partage.sim.node.machine import simulated_inventory
from partage.sim.node.machine_names import named_gpus
from partage.sim.node.mig import create_layout
from tests.oracle import enumerate_mig as oracle

MODEL = "h100-sxm5-80gb"
GPUS = 8
CASES = 200
BUSY = 0.3
"""Which part of the live MIG devices is in use."""

BUDGET_MS = 50.0


@dataclass(frozen=True)
class Case:
    """A node and what is wanted of it."""

    inventory: Inventory
    policy: Policy
    uses: tuple[GpuUse, ...]


@dataclass(frozen=True)
class Spent:
    """Milliseconds of processor time. planned, refused: GPUs for which a way was found, and was not."""

    median: float
    worst: float
    planned: int
    refused: int


def cases(count: int = CASES) -> Iterator[Case]:
    """Random ones, the same every time."""
    chance = random.Random(1)
    layouts = [[f"{name}@{start}" for name, start in one] for one in sorted(oracle.fixed_layouts(MODEL))]
    for number in range(count):
        bare = named_gpus(f"{GPUS}x{MODEL}", GPUS)
        gpus = tuple(_laid_out(gpu, chance.choice(layouts), str(number)) for gpu in bare)
        uses = tuple(
            GpuUse(gpu.uuid, UseKind.POD, "default/pod", None, device.uuid, device.gi_id, device.ci_id)
            for gpu in gpus
            for device in gpu.mig_devices
            if chance.random() < BUSY
        )
        wanted = [_entry(index, chance.choice(layouts)) for index in range(GPUS)]
        yield Case(simulated_inventory(gpus), Policy(tuple(wanted), Options(), "bench", "bench"), uses)


def _laid_out(gpu: Gpu, layout: list[str], birth: str) -> Gpu:
    model = load_catalogue().by_id(MODEL)
    assert model is not None
    assert model.geometry is not None
    devices = create_layout(gpu, model.geometry, [LayoutItem.parse(one) for one in layout], birth)
    return replace(gpu, mig_mode=MigMode(current=True, pending=True), mig_devices=devices)


def _entry(index: int, layout: list[str]) -> GpuEntry:
    """The layout without its starts: where everything comes to sit is what takes the time."""
    items = tuple(LayoutItem.parse(one.partition("@")[0]) for one in layout)
    return GpuEntry(f"gpus[{index}]", GpuCriteria(index=(index,)), mig=DesiredMig(items))


def decide(case: Case) -> MigPlan:
    """Everything between looking and answering."""
    desired = resolve(case.policy, case.inventory, geometry_of)
    observed = Observed(with_observed(None, case.inventory), daemons=(), uses=tuple(case.uses))
    return plan_node(desired, Snapshot(0.0, observed), geometry_of).mig


def measure(count: int = CASES) -> Spent:
    """Decide them all."""
    some = list(cases(count))
    decide(some[0])
    # What else this process has in memory is none of the planner's business.
    gc.collect()
    gc.freeze()
    spent, plans = [], []
    for case in some:
        started = time.process_time()
        plans.append(decide(case))
        spent.append(1000 * (time.process_time() - started))
    gc.unfreeze()
    planned = sum(len(plan.planned) for plan in plans)
    return Spent(statistics.median(spent), max(spent), planned, sum(len(plan.blocked) for plan in plans))


def line(spent: Spent) -> str:
    """One line for the report."""
    ways = f"{spent.planned} GPUs with a way, {spent.refused} with somebody in it"
    times = f"median {spent.median:.1f} ms, worst {spent.worst:.1f} ms of {CASES} random nodes"
    return f"planning MIG for {GPUS} GPUs, processor time: {times} ({ways})"


def main() -> None:
    """Print the line."""
    print(f"CPython {platform.python_version()}, {platform.machine()}\n{line(measure())}")


if __name__ == "__main__":
    main()
