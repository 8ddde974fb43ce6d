"""What becomes of a job that must not run where Slurm has put it: it waits, and is not lost."""

import os
import time

import pytest

from tests.slurm.job_lab import JobLab, everyone_can_run
from tests.slurm.lab import NEW, OLD, on, only_in_make_slurm

pytestmark = [
    pytest.mark.real,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(
        os.getuid() != 0 or not everyone_can_run(), reason="takes root, and a Python that every user can run"
    ),
]
ANNA, BEN = 65534, 64030
ONE = "version: partage/v1\ngpus: [{select: {index: [0]}, mps: {replicas: 4}}]\n"
TWO = "version: partage/v1\ngpus: [{select: all, mps: {replicas: 4}}]\n"
JOBS = int(os.environ.get("PARTAGE_SLURM_JOBS", "24"))
"""200 in make slurm-many."""
PAUSE = "sleep $((SLURM_ARRAY_TASK_ID % 4)); "
RAN = "echo it ran $PARTAGE_SHARES"


def shown(lab, job):
    """What scontrol says of a job, by field."""
    text = lab.run("scontrol", "show", "job", str(job)).stdout
    return dict(line.strip().split("=", 1) for line in text.splitlines() if "=" in line)


def waits(lab, job):
    """Until a job is back in the queue, for later."""
    lab.wait_for(lambda: f"{job}|PENDING|BeginTime" in lab.run("squeue", "-h", "-o", "%A|%T|%r").stdout)


@pytest.mark.parametrize("build", on(NEW))
def test_a_refused_job_goes_back_into_the_queue(build):
    """The driver serves one user at a time. What may not be put back ends, with the reason."""
    with JobLab(build, ONE, multi_user=False, everyone=True) as lab:
        (lab.d / "log").chmod(0o777)
        first = lab.batch("--gres=mps:25", user=ANNA)
        lab.wait_for(lambda: lab.daemons() != [])
        out, never = lab.d / "log" / "second", lab.d / "log" / "never"
        second = lab.batch("--gres=mps:25", wrap=RAN, out=str(out), user=BEN)
        waits(lab, second)
        why = f"its driver serves one user at a time, and job {first} is another user's"
        comment = shown(lab, second)["AdminComment"]
        assert comment.startswith("partage: job does not run yet: GPU 0 is shared by MPS")
        assert comment.endswith(why)
        array = lab.batch("--gres=mps:25", "--array=0-1", wrap=RAN, out=f"{out}-%a", user=BEN)
        waits(lab, array)  # the task that has the number of the whole array
        lab.batch("--gres=mps:25", "--no-requeue", wrap=RAN, out=str(never), user=BEN)
        lab.wait_for(lambda: never.exists() and why in never.read_text())
        lab.wait_for(lambda: set(lab.records()) == {first})
        assert not out.exists()
        done = lab.srun("--gres=mps:25", "echo", "it ran", user=BEN)
        assert f"{why}; submit it again" in done.stdout
        assert "it ran" not in never.read_text() + done.stdout
        lab.wait_for(lambda: lab.states() == {"g1": "mix"})
        lab.run("scancel", str(first))
        lab.wait_for(lambda: lab.daemons() == [])
        outs = [out, *(lab.d / "log" / f"second-{task}" for task in (0, 1))]
        lab.wait_for(lambda: all(one.exists() and one.read_text() == "it ran mps:25\n" for one in outs))
        lab.wait_for(lambda: lab.job_states() == {} and lab.records() == {} and lab.daemons() == [])


@pytest.mark.parametrize("build", on(OLD))
def test_a_record_that_no_epilog_removed_locks_nobody_out(build):
    with JobLab(build, ONE, multi_user=False, everyone=True) as lab:
        first = lab.batch("--gres=mps:25", wrap="sleep 1", user=ANNA)
        lab.wait_for(lambda: set(lab.records()) == {first})
        epilog = lab.d / "epilog"
        script = epilog.read_text()
        epilog.write_text("#!/bin/sh\nexit 0\n")
        lab.wait_for(lambda: lab.states() == {"g1": "idle"})
        assert set(lab.records()) == {first}
        epilog.write_text(script)
        done = lab.srun("--gres=mps:25", "echo", "it ran", user=BEN)
        assert done.stdout == "it ran\n", done.stderr
        lab.wait_for(lambda: lab.records() == {} and lab.daemons() == [])


@only_in_make_slurm
@pytest.mark.parametrize("build", on(NEW))
def test_arrays_of_two_users_on_two_gpus_lose_no_job(build):
    """The driver serves one user at a time, and a job of the one is there before the other's array."""
    with JobLab(build, TWO, multi_user=False, everyone=True) as lab:
        (lab.d / "log").chmod(0o777)
        half = JOBS // 2
        begun_s = time.monotonic()
        lab.batch("--gres=mps:25", wrap=f"sleep {JOBS // 4}", user=ANNA)
        lab.wait_for(lambda: lab.daemons() != [])
        for name, user in (("ben", BEN), ("anna", ANNA)):
            out = f"{lab.d}/log/{name}-%a.ran"
            lab.batch("--gres=mps:25", f"--array=1-{half}", wrap=PAUSE + RAN, out=out, user=user)
        lab.wait_for(lambda: lab.job_states() == {}, 240 + 2 * JOBS)
        lab.wait_for(lambda: lab.records() == {} and lab.daemons() == [])
        assert lab.states() == {"g1": "idle"}, lab.reason()
        outs = sorted((lab.d / "log").glob("*.ran"))
        assert [one.read_text() for one in outs] == ["it ran mps:25\n"] * (2 * half)
        back = sum(one.read_text().count("goes back") for one in (lab.d / "log").glob("prolog.said"))
        took_s = time.monotonic() - begun_s
    assert back > 0  # else nothing was tried
    print(f"Slurm {build.version}: {2 * half} jobs of two users in {took_s:.0f} s, put back {back} times")
