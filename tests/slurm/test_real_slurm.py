"""Every configuration that Partage writes, in a real Slurm: 22.05 of this machine, 24.11 in a chroot."""

import re
from collections import Counter
from contextlib import closing
from random import Random

import pytest

from partage.slurm.decide.releases import double_booking
from partage.slurm.model import SlurmVersion
from partage.slurm.text.hostlist import expand_hostlist
from tests.slurm.decide import configs
from tests.slurm.lab import BUILDS, NEWER, OLD, Lab, why_not

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("slurm")]

ENV = ("sh", "-c", "env | grep -E 'CUDA|SLURM_(STEP|JOB)_GPUS|SHARDS|ROCR' | sort")
_MPS_MACHINE = "2xh100-sxm5-80gb"


def _lab(build, policy, machine="4xh100-sxm5-80gb", types="short"):
    return Lab(build, configs.files(policy, build.version, machine, types), ["g1"])


def _environment(lab, request):
    done = lab.run("srun", "--immediate=60", f"--gres={request}", *ENV, timeout=90)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def _cases(build):
    everywhere = [configs.WHOLE, configs.MPS, configs.SHARDS, configs.MIG]
    newer = [configs.MIG_MPS, configs.MIG_SHARDS, configs.SHARED_MIG, configs.MPS_ON_MIG]
    return everywhere if build is OLD else everywhere + newer


@pytest.mark.parametrize("types", ["short", "profile"])
@pytest.mark.parametrize("build", BUILDS)
def test_slurmd_reads_every_configuration_without_a_complaint(build, types):
    for policy in _cases(build):
        with closing(_lab(build, policy, types=types)) as lab:
            assert lab.complaints() == [], policy


@pytest.mark.parametrize("build", BUILDS)
def test_a_whole_gpu_and_four_shares_of_mps(build):
    """Four jobs with mps:25 run on one GPU, the fifth waits and then starts."""
    one = "version: partage/v1\ngpus: [{select: {index: [0]}, mps: {replicas: 4}}]\n"
    with _lab(build, one, _MPS_MACHINE) as lab:
        assert lab.logged_complaints() == []
        assert _environment(lab, "gpu:h100:1")["CUDA_VISIBLE_DEVICES"] == "0"
        assert _environment(lab, "mps:25") == {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25", "CUDA_VISIBLE_DEVICES": "1", "SLURM_STEP_GPUS": "1",
        }  # fmt: skip
        for n in range(5):
            log = f"/tmp/{lab.d.name}/log/job{n}"
            done = lab.run("sbatch", "-o", log, "--gres=mps:25", f"--job-name=share{n}", "--wrap", "sleep 60")
            assert done.returncode == 0, done.stderr
        lab.wait_for(lambda: _states(lab).count("RUNNING") == 4)
        assert sorted(_states(lab)) == ["PENDING"] + ["RUNNING"] * 4
        first = lab.run("squeue", "-h", "-t", "R", "-o", "%i").stdout.split()[0]
        lab.run("scancel", first)
        lab.wait_for(lambda: _states(lab) == ["RUNNING"] * 4)


def _states(lab):
    return lab.run("squeue", "-h", "-o", "%T").stdout.split()


@pytest.mark.parametrize("build", BUILDS)
def test_shares_of_two_gpus_are_used_at_the_same_time(build):
    """Without all_sharing the second GPU would stay idle."""
    with _lab(build, configs.MPS, _MPS_MACHINE) as lab:
        for _ in range(2):
            lab.run("sbatch", "-o", "/dev/null", "--gres=mps:60", "--wrap", "sleep 60")
        lab.wait_for(lambda: _states(lab) == ["RUNNING"] * 2)


@pytest.mark.parametrize("build", BUILDS)
def test_shares_of_two_gpus_are_used_at_the_same_time_beside_a_whole_gpu(build):
    """Without a line of mps for the whole GPU 24.11 uses one of the two, and 22.05 does not mind the line."""
    with _lab(build, configs.MPS, "3xh100-sxm5-80gb") as lab:
        assert lab.logged_complaints() == []
        jobs = ["gpu:h100:1", "mps:60", "mps:60", "mps:40", "mps:40", "mps:10"]
        for request in jobs:
            lab.run("sbatch", "-o", "/dev/null", f"--gres={request}", "--wrap", "sleep 60")
        lab.wait_for(lambda: sorted(_states(lab)) == ["PENDING"] + ["RUNNING"] * 5)
        waits = lab.run("squeue", "-h", "-t", "PD", "-o", "%b").stdout.strip()
        assert waits.endswith("mps:10")  # each of the two is used to 100


@pytest.mark.parametrize("build", BUILDS)
def test_shards(build):
    with _lab(build, configs.SHARDS) as lab:
        assert lab.logged_complaints() == []
        assert _environment(lab, "shard:2") == {
            "CUDA_VISIBLE_DEVICES": "2", "SLURM_SHARDS_ON_NODE": "2", "SLURM_STEP_GPUS": "2",
        }  # fmt: skip
        assert _environment(lab, "gpu:h100:2")["CUDA_VISIBLE_DEVICES"] == "0,1"


_HALF_SHARDS = "version: partage/v1\ngpus: [{select: {index: [0, 1, 2, 3]}, time-slicing: {replicas: 4}}]\n"
_KEPT_APART = ["gpu:h100:1", "gpu:h100:2", "shard:1", "shard:2", "shard:4"]
_MAY_MEET = ["gpu:1", "gpu:h100_shared:1"]
"""22.05 may start these on a GPU whose shards are in use; Partage warns of it and says what to ask for."""


@pytest.mark.parametrize("build", BUILDS)
def test_scenario_20_no_gpu_is_given_whole_and_in_shards_at_the_same_time(build):
    """Eight GPUs, four of them shared, and thirty jobs in any order."""
    random = Random(20)
    warned = double_booking(SlurmVersion.parse(build.version)) is not None
    assert warned == (build is OLD)
    requests = _KEPT_APART if warned else _KEPT_APART + _MAY_MEET
    with _lab(build, _HALF_SHARDS, "8xh100-sxm5-80gb") as lab:
        for _ in range(30):
            job = ["sbatch", "-o", "/dev/null", f"--gres={random.choice(requests)}"]
            done = lab.run(*job, "--wrap", f"sleep {random.choice((0.5, 1, 2))}")
            assert done.returncode == 0, done.stderr

        def ended():
            jobs = lab.run("scontrol", "show", "job", "--details", "--oneliner").stdout.splitlines()
            whole, shards = _given(jobs)
            assert max(whole.values(), default=0) <= 1, whole
            assert max(shards.values(), default=0) <= 4, shards
            assert not whole.keys() & shards.keys(), (whole, shards)
            return sum("JobState=COMPLETED" in job for job in jobs) == 30

        lab.wait_for(ended, 60)


def _given(jobs):
    """How often each GPU, by its place in gres.conf, is given whole, and how many of its shards are."""
    whole: Counter[str] = Counter()
    shards: Counter[str] = Counter()
    for job in jobs:
        if "JobState=RUNNING" not in job:
            continue
        for kind, count, places in re.findall(r"(gpu:\w+|shard):(\d+)\(IDX:([\d,-]+)\)", job):
            gpus = expand_hostlist(f"[{places}]")
            if kind == "shard":
                assert len(gpus) == 1, job
                shards[gpus[0]] += int(count)
            else:
                whole.update(gpus)
    return whole, shards


@pytest.mark.parametrize("build", BUILDS)
def test_mig_devices_by_their_type(build):
    with _lab(build, configs.MIG) as lab:
        assert lab.logged_complaints() == []
        assert _environment(lab, "gpu:h100_1g.10gb:2")["SLURM_STEP_GPUS"] == "0,1"
        assert _environment(lab, "gpu:h100_1g.10gb")["SLURM_STEP_GPUS"] == "0"
        assert _environment(lab, "gpu:h100_3g.40gb:1")["SLURM_STEP_GPUS"] == "2"
        assert _environment(lab, "gpu:h100:1")["SLURM_STEP_GPUS"] == "3"
        too_many = lab.run("srun", "--immediate=60", "--gres=gpu:h100_1g.10gb:3", "true")
        assert "Requested node configuration is not available" in too_many.stderr


@pytest.mark.parametrize("build", NEWER)
@pytest.mark.parametrize(("policy", "share"), [(configs.MIG_MPS, "mps:25"), (configs.MIG_SHARDS, "shard:2")])
def test_mig_beside_shares(build, policy, share):
    with _lab(build, policy) as lab:
        assert lab.logged_complaints() == []
        assert _environment(lab, share)["SLURM_STEP_GPUS"] == "4"
        assert _environment(lab, "gpu:h100_1g.10gb:2")["SLURM_STEP_GPUS"] == "0,1"


@pytest.mark.parametrize("build", BUILDS)
def test_the_order_of_the_devices_is_slurms(build):
    """SLURM_JOB_GPUS is a place in this list: whoever gives a job its UUID relies on it."""
    node = configs.config(configs.MIG, build.version).nodes[0]
    with closing(_lab(build, configs.MIG)) as lab:
        said = lab.run("slurmd", "-G", "-N", "g1", "-f", str(lab.d / "slurm.conf"))
        types = re.findall(r"Name=gpu Type=(\S+) Count=(\d+)", said.stdout + said.stderr)
    listed = [kind for kind, count in types for _ in range(int(count))]
    assert listed == [device.type for device in node.gres.devices]


@pytest.mark.skipif(why_not(OLD) != "", reason=why_not(OLD) or "-")
def test_the_refusal_of_mig_beside_shares_is_right_about_22_05():
    """What Partage refuses to write for 22.05, 22.05 reads wrongly: each file is a GPU."""
    with closing(Lab(OLD, configs.files(configs.MIG_MPS, "24.11"), ["g1"])) as lab:
        said = lab.run("slurmd", "-G", "-N", "g1", "-f", str(lab.d / "slurm.conf"))
        found = re.findall(r"Name=gpu Type=h100_3g\S* Count=(\d+)", said.stdout + said.stderr)
        assert found.count("1") == 3 or lab.complaints()
