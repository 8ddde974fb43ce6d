"""Many jobs in random order, whole GPUs and shares: no GPU is used by two that exclude each other."""

import os
import random
from itertools import combinations

import pytest

from tests.slurm.job_lab import JobLab
from tests.slurm.lab import BUILDS, only_in_make_slurm

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("slurm")]

JOBS = int(os.environ.get("PARTAGE_SLURM_JOBS", "30"))
"""200 in make slurm-many."""

POLICY = """\
version: partage/v1
gpus:
  - {{select: {{index: [4, 5, 6, 7]}}, {shares}: {{replicas: 4}}}}
"""
_WHOLE = ["gpu:h100_shared:1", "gpu:1"]
_REQUESTS = {
    "mps": ["mps:25", "mps:50", "mps:75", *_WHOLE],
    "shard": ["shard:1", "shard:2", "shard:3", *_WHOLE],
}
_WRAP = """
echo begin $(date +%s%N) $PARTAGE_SHARES $CUDA_VISIBLE_DEVICES
sleep {pause}
echo end $(date +%s%N)
"""


class _Run:
    """What one job had, and when: what its output says. None of it if it was refused."""

    def __init__(self, text: str) -> None:
        lines = [line.split() for line in text.splitlines()]
        begin = next((line for line in lines if line[:1] == ["begin"]), None)
        end = next((line for line in lines if line[:1] == ["end"]), None)
        self.refused = "partage: this job does not run here" in text
        self.ran = begin is not None
        if begin is None:
            return
        assert len(begin) == 4, text
        assert end is not None, text
        self.begin, self.end = int(begin[1]), int(end[1])
        name, _, amount = begin[2].rpartition(":")
        self.devices = begin[3].split(",")
        self.whole = name not in ("mps", "shard")
        self.units = int(amount)

    def together(self, other: "_Run") -> bool:
        return self.begin < other.end and other.begin < self.end and bool({*self.devices} & {*other.devices})


@only_in_make_slurm
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("shares", ["mps", "shard"])
def test_no_gpu_is_given_away_twice(build, shares):
    rng = random.Random(5)
    with JobLab(
        build, POLICY.format(shares={"shard": "time-slicing"}.get(shares, shares)), "8xh100-sxm5-80gb"
    ) as lab:
        outs = []
        for number in range(JOBS):
            outs.append(lab.d / "log" / f"many{number}.txt")
            request = rng.choice(_REQUESTS[shares])
            # Shares that end at different times are what 22.05 loses count of.
            pause = 0.2 if request.startswith("gpu") else rng.uniform(0.2, 4)
            wrap = _WRAP.format(pause=f"{pause:.1f}")
            lab.batch(f"--gres={request}", "--no-requeue", wrap=wrap, out=str(outs[-1]))
        lab.wait_for(lambda: lab.job_states() == {}, 30 + 4 * JOBS)
        lab.wait_for(lambda: lab.records() == {} and lab.daemons() == [])
        assert lab.states() == {"g1": "idle"}, lab.reason()
        runs = [_Run(out.read_text()) for out in outs]
    assert all(run.ran != run.refused for run in runs)
    ran = [run for run in runs if run.ran]
    full = 100 if shares == "mps" else 4
    for one, other in combinations(ran, 2):
        assert not one.together(other) or not (one.whole or other.whole)
    for one in ran:
        if not one.whole:
            beside = [
                run for run in ran if run is one or (run.together(one) and run.begin <= one.begin <= run.end)
            ]
            assert sum(run.units for run in beside) <= full
    if build.version.startswith("24"):
        assert len(ran) == JOBS  # this release gives nothing away twice: nothing is refused
    print(f"Slurm {build.version}: {JOBS} jobs with {shares} or whole GPUs, {JOBS - len(ran)} refused")
