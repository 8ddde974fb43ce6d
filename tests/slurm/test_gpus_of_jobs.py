"""What slurmd does not tell a prolog, or tells it wrongly, on a real Slurm: no job is beside Partage."""

import pytest

from tests.slurm.decide import configs
from tests.slurm.job_lab import JobLab
from tests.slurm.lab import NEW, NEWER, OLD, on

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("slurm")]

SPREAD = "CR_Core,MULTIPLE_SHARING_GRES_PJ"
TOLD = "env | grep -E '^(CUDA|PARTAGE)' | sort; echo END"
HET = """\
#!/bin/sh
#SBATCH -o {out} -w g1 --gres=gpu:h100:1
#SBATCH hetjob
#SBATCH -w g2 {gres}
srun --het-group=0,1 sh -c 'env | grep -E "^(CUDA_V|CUDA_MPS_PIPE|PARTAGE_S)" | sed "s/^/$SLURMD_NODENAME /"'
echo END $?
"""


def said(lab, name):
    """The output of a job that has ended."""
    out = lab.d / "log" / name
    lab.wait_for(lambda: out.exists() and "END" in out.read_text())
    return out.read_text()


def told(lab, *words, name="told", wrap=TOLD):
    """What the variables of a batch script are, and its job; it ends by itself."""
    lab.batch(*words, wrap=wrap, out=str(lab.d / "log" / name))
    return dict(line.split("=", 1) for line in said(lab, name).splitlines() if "=" in line)


@pytest.mark.parametrize("build", on(OLD))
def test_every_component_of_a_heterogeneous_job(build):
    """The prolog of a component has its own number, its tasks have that of the first component."""
    with JobLab(build, configs.MPS, "4xh100-sxm5-80gb", nodes=2) as lab:
        for number, gres in enumerate(("--gres=mps:25", "--gres=gpu:h100:2", "")):
            script = lab.d / f"{number}.sh"
            script.write_text(HET.format(out=lab.d / "log" / f"het{number}", gres=gres))
            assert lab.run("sbatch", str(script)).returncode == 0
            lines = said(lab, f"het{number}").splitlines()
            assert "END 0" in lines, lines
            first, second = ({line for line in lines if line.startswith(node)} for node in ("g1", "g2"))
            assert {f"g1 CUDA_VISIBLE_DEVICES={lab.devices[0].uuid}", "g1 PARTAGE_SHARES=gpu:h100:1"} <= first
            whole, shared = lab.devices[:2], lab.devices[2]
            pipe = f"{lab.d}/p-g2/mps/{shared.uuid}/pipe"
            both = ",".join(one.uuid for one in whole)
            expected = [
                {
                    "PARTAGE_SHARES=mps:25",
                    f"CUDA_VISIBLE_DEVICES={shared.uuid}",
                    f"CUDA_MPS_PIPE_DIRECTORY={pipe}",
                },
                {"PARTAGE_SHARES=gpu:h100:2", f"CUDA_VISIBLE_DEVICES={both}"},
                set(),
            ][number]
            names = ("PARTAGE_SHARES", "CUDA_")
            told_ = {line.removeprefix("g2 ") for line in second}
            assert {line for line in told_ if line.startswith(names)} == expected
            lab.wait_for(lambda: not [*lab.d.glob("p-g*/jobs/*.json")])
        assert set(lab.states().values()) <= {"idle", "comp", "plnd"}  # in service


@pytest.mark.parametrize("build", on(OLD))
def test_a_task_without_a_record_runs_only_without_gpus(build):
    """What a user has exported says nothing; what Slurm says counts."""
    with JobLab(build, configs.MPS, "4xh100-sxm5-80gb") as lab:
        lab.env |= {"CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "1", "SLURM_STEP_GPUS": "1"}
        done = lab.srun("sh", "-c", "echo it ran")
        assert (done.returncode, done.stdout) == (0, "it ran\n"), done.stderr
        told(lab, name="cpu")
        for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"):
            del lab.env[name]
        record = f"{lab.run_dir}/jobs/$SLURM_JOB_ID.json"
        for spoil, why in ((f"rm {record}", "has left no record"), (f"echo x > {record}", "cannot be read")):
            wrap = f"{spoil}; srun sh -c 'echo it ran'; echo END"
            lab.batch("--gres=gpu:h100:1", wrap=wrap, out=str(lab.d / "log" / why))
            text = said(lab, why)
            assert why in text
            assert "it ran" not in text
        lab.wait_for(lambda: lab.job_states() == {} and lab.records() == {})


@pytest.mark.parametrize("build", NEWER)
def test_mps_of_several_gpus(build):
    """Of MULTIPLE_SHARING_GRES_PJ, and of --exclusive; 22.05 has not the one, and never starts the other."""
    with JobLab(build, configs.MPS, "4xh100-sxm5-80gb", select=SPREAD) as lab:
        first, second = lab.devices[2:]
        each = """srun -n2 sh -c 'echo "$SLURM_LOCALID" $PARTAGE_SHARES $CUDA_MPS_PIPE_DIRECTORY'"""
        env = told(
            lab,
            "-n2",
            "--gres=mps:150",
            name="150",
            wrap=f"env | grep -E '^(CUDA|PARTAGE)'; {each}; echo END",
        )
        assert (env["CUDA_VISIBLE_DEVICES"], env["PARTAGE_SHARES"]) == (first.uuid, "mps:100")
        assert env["PARTAGE_MEMORY_BYTES"] == str(first.memory_bytes)
        assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
        pipes = [f"{lab.run_dir}/mps/{one.uuid}/pipe" for one in (first, second)]
        assert env["CUDA_MPS_PIPE_DIRECTORY"] == pipes[0]
        lines = said(lab, "150").splitlines()
        assert {f"0 mps:100 {pipes[0]}", f"1 mps:50 {pipes[1]}"} <= set(lines), lines
        assert [line for line in lines if "this task has mps:50 of GPU 1, and not mps:100 of GPU 0" in line]
        lab.wait_for(lambda: lab.records() == {})
        wrap = f'{TOLD}; srun sh -c "env | sed s/^/step_/"; echo END'
        env = told(lab, "--exclusive", "--gres=mps:25", name="alone", wrap=wrap.replace("echo END; ", "", 1))
        assert (env["CUDA_VISIBLE_DEVICES"], env["PARTAGE_SHARES"]) == (first.uuid, "mps:100")
        assert (env["step_CUDA_VISIBLE_DEVICES"], env["step_PARTAGE_SHARES"]) == (first.uuid, "mps:25")
        assert env["step_CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        lab.wait_for(lambda: lab.records() == {})
        beside = [lab.batch("--gres=mps:50"), lab.batch("--gres=mps:75")]
        lab.wait_for(lambda: len(lab.records()) == 2)
        job = lab.batch("--gres=mps:75", wrap=TOLD + "; sleep 60", out=str(lab.d / "log" / "halves"))
        assert "mps:50 of GPU 0, and not mps:25 of GPU 1" in said(lab, "halves")
        assert lab.records()[job] == "mps:75"
        beside.append(job)
        lab.run("scancel", *map(str, beside))
        lab.wait_for(lambda: lab.records() == {} and lab.daemons() == [])
        assert lab.states()["g1"] in {"idle", "comp"}


@pytest.mark.parametrize("build", NEWER)
@pytest.mark.parametrize(
    ("policy", "gres", "amount"), [(configs.MPS, "mps", 25), (configs.SHARDS, "shard", 1)]
)
def test_with_tres_per_task_every_task_is_told_its_own_share(build, policy, gres, amount):
    """22.05 has no --tres-per-task."""
    with JobLab(build, policy) as lab:
        tasks = ["-n2", f"--tres-per-task=gres/{gres}:{amount}"]
        done = lab.srun(*tasks, "sh", "-c", "echo $PARTAGE_SHARES $PARTAGE_MEMORY_BYTES")
        memory = lab.devices[0].memory_bytes // 4 // 2**20 * 2**20
        assert done.stdout.splitlines() == [f"{gres}:{amount} {memory}"] * 2, done.stderr
        lab.wait_for(lambda: lab.records() == {})
        assert told(lab, *tasks)["PARTAGE_SHARES"] == f"{gres}:{2 * amount}"


@pytest.mark.parametrize("build", on(NEW))
def test_a_slurmctld_that_is_silent_in_a_prolog_is_asked_again(build):
    """It was a job of one shard then, without a word."""
    with JobLab(build, configs.SHARDS) as lab:
        lab.silence_slurmctld(7)
        assert told(lab, "--gres=shard:3")["PARTAGE_SHARES"] == "shard:3"
        assert (lab.d / "stopped").exists()
