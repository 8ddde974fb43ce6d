"""Workloads that nobody tuned for: random mixes of pods, and what they get by ``ssp`` and by FGD.

``python -m bench.held_out NODES.csv [FIRST [COUNT]]``: nodes as for ``partage simulate --nodes``; FIRST: the
seed of the first mix. Prints a table, and ends with 1 where ssp is more than 0.1 points below FGD at load 100
or 130. Kinds of mixes, in turn: many pods of several GPUs; much CPU beside each GPU; parts of GPUs alone;
GPU models by name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from partage.plan.placement.mix import WHOLE_MILLI, PodType
from partage.whatif.decide.placements import PlacementPolicy, place_all
from partage.whatif.fleet import rooms_of_table

KINDS = ("several GPUs", "much CPU", "parts alone", "by model")
MOST_BELOW = 0.1
_PODS = 4000


def mix(seed: int, models: Sequence[str]) -> list[PodType]:
    """Pods of 60 to 300 types, in an order that is as random."""
    random = Random(seed)
    kind = KINDS[seed % len(KINDS)]
    parts = random.sample(range(5, 100), random.randint(2, 14))
    of_parts = [random.random() ** 1.5 for _ in parts]
    weights = {
        "whole": 0.0 if kind == "parts alone" else random.random(),
        "part": random.random(),
        "several": 0.0
        if kind == "parts alone"
        else random.uniform(0.1, 0.3)
        if kind == "several GPUs"
        else random.uniform(0, 0.1),
        "cpu": random.uniform(0.1, 0.5) if kind == "much CPU" else random.uniform(0, 0.3),
    }
    cpu_per_gpu = random.uniform(14, 22) if kind == "much CPU" else random.uniform(5, 14)
    named = random.uniform(0.1, 0.5) if kind == "by model" else 0.0

    def pod() -> PodType:
        wants = random.choices([*weights], [*weights.values()])[0]
        if wants == "cpu":
            return PodType(random.choice((2000, 4000, 8000, 16_000)), 16_384)
        names = (
            frozenset(random.sample(models, random.randint(1, 3))) if random.random() < named else frozenset()
        )
        gpus = random.choice((2, 4, 8)) if wants == "several" else 1
        milli = 10 * random.choices(parts, of_parts)[0] if wants == "part" else WHOLE_MILLI
        # Pods of several GPUs have less CPU for each.
        of_gpus = gpus * milli / WHOLE_MILLI * (0.7 if gpus > 1 else 1)
        cpu = max(1, int(random.uniform(0.3, 1.7) * cpu_per_gpu * of_gpus))
        return PodType(1000 * cpu, 8192 * (gpus + (milli == WHOLE_MILLI)), gpus, milli, names)

    types = [pod() for _ in range(random.randint(60, 300))]
    often = [random.random() for _ in types]
    return random.choices(types, often, k=_PODS)


def main(nodes: str, first: int = 0, count: int = 16) -> int:
    _, rooms = rooms_of_table(Path(nodes))
    models = sorted({room.model for room in rooms if room.left})
    bad = 0
    print("| mix | kind | ssp 100 | ssp 130 | FGD 100 | FGD 130 | ssp - FGD |")
    print("|---|---|---|---|---|---|---|")
    for seed in range(first, first + count):
        pods = mix(seed, models)
        ssp, fgd = (
            place_all(policy, pods, rooms, load=130, seed=seed).allocation
            for policy in (PlacementPolicy.SSP, PlacementPolicy.FGD)
        )
        last = max(fgd)
        more = ssp[100] - fgd[100], ssp[last] - fgd[last]
        bad += min(more) < -MOST_BELOW
        figures = " | ".join(f"{figure:.2f}" for figure in (ssp[100], ssp[last], fgd[100], fgd[last]))
        row = f"| {seed} | {KINDS[seed % len(KINDS)]} | {figures} | {more[0]:+.2f}, {more[1]:+.2f} |"
        print(row, flush=True)
    print(f"below FGD by more than {MOST_BELOW}: {bad} of {count}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:4])))
