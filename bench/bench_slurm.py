"""How long Slurm's files take for 1,000 nodes of 8 GPUs: ``python -m bench.bench_slurm``.

Every node has UUIDs of its own, as recorded nodes have, and one of four policies; wall clock of one process,
from the inventories to the text.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from msgspec.structs import replace

from partage.edges.files.policy import parse_policy
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.sim.node.files.load import load_machine
from partage.slurm.cluster import NodeSource, make_config
from partage.slurm.decide.type_names import TypeNames
from partage.slurm.model import SlurmVersion
from partage.slurm.text.conf_writer import config_files

NODES = 1000
BUDGET_S = 2.0
POLICIES = (
    "version: partage/v1\n",
    "version: partage/v1\ngpus: [{select: {index: [0, 1]}, mps: {replicas: 4}}]\n",
    "version: partage/v1\ngpus: [{select: all, mps: {replicas: 10}}]\n",
    "version: partage/v1\ngpus: [{select: {index: [7]}, mig: {layout: [3g.40gb, 2g.20gb, 1g.10gb]}}]\n",
)


@dataclass(frozen=True)
class SlurmCost:
    """seconds: for all nodes. lines: of gres.conf."""

    seconds: float
    lines: int


def measure(nodes: int = NODES) -> SlurmCost:
    """Write the configuration of that many nodes."""
    machine = load_machine("8xh100-sxm5-80gb").inventory
    policies = [parse_policy(text, "policy.yaml").policy for text in POLICIES]
    sources = tuple(
        NodeSource((f"g{n:04}",), _own(machine, n), policies[n % len(policies)]) for n in range(nodes)
    )
    began = time.perf_counter()
    made = make_config(sources, SlurmVersion(24, 11, 5), TypeNames.SHORT)
    files = config_files(made.config)
    return SlurmCost(time.perf_counter() - began, files["gres.conf"].count("\n"))


def _own(machine: Inventory, number: int) -> Inventory:
    gpus = tuple(replace(gpu, uuid=GpuUuid(f"{gpu.uuid[:-6]}{number:06}")) for gpu in machine.gpus)
    return replace(machine, gpus=gpus, links=())


def line(cost: SlurmCost) -> str:
    """One sentence."""
    what = f"Slurm's files for {NODES:,} nodes of 8 GPUs"
    return f"{what}: {cost.seconds:.2f} s ({cost.lines:,} lines of gres.conf)"


if __name__ == "__main__":
    print(line(measure()))
