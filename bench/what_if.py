"""How long ``partage simulate --trace`` takes: 10,000 pods on 1,000 GPUs, as a process of its own.

``python -m bench.what_if [PODS] [NODES]``. The trace is made with a seed: kinds of pods and fractions of a
GPU are as frequent as in Alibaba's published trace of 2023 (cluster-trace-gpu-v2023), the other figures are
drawn. Nodes have 8 GPUs; pods come so fast that about all GPUs are asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

NUMBERS = {0: 1088, 1: 6989, 2: 16, 4: 15, 8: 44}
"""How many pods ask for so many GPUs."""
WHOLE = 3911
"""How many of those with one GPU ask for all of it."""
FRACTIONS = {
    810: 1078, 470: 750, 320: 328, 650: 253, 230: 140, 460: 128, 590: 75, 160: 74, 550: 72, 220: 62, 370: 47,
    110: 24, 480: 19,
}  # fmt: skip
"""Thousandths of a GPU, and how many pods ask for that."""
LIFETIME_S = 6 * 3600.0
_REST = "  - {select: rest, exclusive: {}}\n"
_HALF_OF_THEM = "version: partage/v1\ngpus:\n  - {select: {index: [0, 1, 2, 3]}, "
POLICIES = {
    "exclusive.yaml": "version: partage/v1\n",
    "halves.yaml": _HALF_OF_THEM + "mps: {replicas: 2}}\n" + _REST,
    "units.yaml": _HALF_OF_THEM + "time-slicing: {unit: 1Gi}}\n" + _REST,
}


def trace(pods: int, gpus: int, seed: int = 0) -> str:
    """As CSV."""
    draw = Random(seed)
    each = sum(number * count for number, count in NUMBERS.items()) / sum(NUMBERS.values())
    gap_s = LIFETIME_S * each / gpus
    lines = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time"]
    now_s = 0.0
    for pod in range(pods):
        now_s += draw.expovariate(1 / gap_s)
        (number,) = draw.choices(list(NUMBERS), list(NUMBERS.values()))
        milli = 1000 if number else 0
        if number == 1 and draw.random() > WHOLE / NUMBERS[1]:
            (milli,) = draw.choices(list(FRACTIONS), list(FRACTIONS.values()))
        cpu = draw.randrange(1000, 12_000, 100) * max(1, number) // (1 if milli == 1000 else 2)
        end_s = now_s + draw.expovariate(1 / LIFETIME_S)
        lines.append(f"pod-{pod},{cpu},{cpu * 4},{number},{milli},{now_s:.0f},{end_s + 1:.0f}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the time of each policy, and of all in one run."""
    pods, nodes = (int(sys.argv[n]) if len(sys.argv) > n else usual for n, usual in ((1, 10_000), (2, 125)))
    print(f"{pods:,} pods, {nodes} nodes, {8 * nodes:,} GPUs, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "pods.csv").write_text(trace(pods, 8 * nodes))
        rows = [f"node-{number},128000,786432,8,a10" for number in range(nodes)]
        (here / "nodes.csv").write_text("\n".join(["name,cpu_milli,memory_mib,gpu,model", *rows]) + "\n")
        for name, text in POLICIES.items():
            (here / name).write_text(text)
        for names in (*([name] for name in POLICIES), list(POLICIES)):
            _run(here, names)


def _run(here: Path, names: list[str]) -> None:
    command = [
        str(Path(sys.executable).with_name("partage")),
        "simulate",
        "--trace",
        "pods.csv",
        "--fleet",
        "nodes.csv",
    ]
    options = [word for name in names for word in ("--policy", name)]
    begun = time.perf_counter()
    done = subprocess.run([*command, *options, "-o", "json"], cwd=here, check=True, capture_output=True)
    took_s = time.perf_counter() - begun
    print(f"{' '.join(names)}: {took_s:.1f} s")
    for one in json.loads(done.stdout)["policies"] if len(names) == 1 else ():
        keys = ("atOnce", "waited", "stillWaiting", "neverFit")
        counts = ", ".join(f"{key} {one[key]:,}" for key in keys)
        held, every = one["gpus"]["held"], one["gpus"]["all"]
        refused = one["refused"]["pods"] if one["refused"] else 0
        print(f"    {counts}, refused {refused:,}, held {held / every:.0%} of the GPUs on the average")


if __name__ == "__main__":
    main()
