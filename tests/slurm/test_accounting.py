"""A process of a real job is found by its cgroup, and is named with job, user and share."""

import os
from pathlib import Path

import pytest

from partage.edges.host.procfs import read_process
from partage.model.gpu_use import GpuProcess, ProcessKind
from partage.sim.node.files.load import load_machine
from partage.slurm.decide.job_processes import job_processes, unrecorded
from tests.slurm.agent_lab import AgentLab
from tests.slurm.lab import NEW, on

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("slurm")]
_V1 = Path("/sys/fs/cgroup/freezer")


@pytest.mark.skipif(not os.access(_V1, os.W_OK) or not _V1.exists(), reason="no cgroup v1")
@pytest.mark.parametrize("build", on(NEW))
def test_a_process_of_a_job_has_its_user_and_share(build):
    inventory = load_machine("2xh100-sxm5-80gb").inventory
    with AgentLab(build, tracked=True) as lab:
        pids = lab.d / "log" / "pid"
        words = ("--parsable", "-o", "/dev/null", "--gres=gpu:h100:1")
        done = lab.run("sbatch", *words, "--wrap", f"echo $$ > {pids}; sleep 60")
        job = done.stdout.strip()
        lab.wait_for(lambda: pids.exists() and pids.read_text().strip())
        seen = read_process(Path("/proc"), int(pids.read_text()))
        assert seen is not None
        row = GpuProcess(
            inventory.gpus[0].uuid, int(pids.read_text()), 2**20, ProcessKind.COMPUTE,
            name=seen.name, cgroups=seen.cgroups, start=seen.start, uid=seen.uid,
        )  # fmt: skip
        assert unrecorded([row], []) == {job}
        (found,) = job_processes([row], inventory, [], lab.control.jobs("g1"))
        assert (found.job, found.step, found.user, found.share) == (job, "batch", "root", "gpu:h100:1")
