"""Prolog and epilog with the simulated MPS control program, and scripts in place of Slurm's programs."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.agent.slurm.job_begin import begin_job
from partage.agent.slurm.job_end import end_job
from partage.agent.slurm.job_node import JobNode, NodeBroken
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.keeper import MpsKeeper
from partage.edges.slurm.devices_file import devices_text
from partage.edges.slurm.job_records import JobRecords, read_jobs
from partage.edges.slurm.programs import SlurmPrograms
from partage.model.mps import DaemonSpec
from partage.model.slurm_job import JobId
from partage.plan.slurm.job_start import JobRequest
from partage.sim.mps.node import MpsNode, install_programs
from tests.plan.slurm.jobs import NODE, SIZE, gpu


@pytest.fixture
def node(monkeypatch):
    """A node whose path is short enough for sockets, in a directory of its own user."""
    home = Path(tempfile.mkdtemp(prefix="pj", dir="/tmp"))
    home.chmod(0o755)
    (home / "devices.json").write_text(devices_text(NODE))
    (home / "bin").mkdir()
    install_programs(home / "driver/usr/bin", MpsNode({gpu(2): SIZE}))
    monkeypatch.setenv("PATH", f"{home}/bin:{os.environ['PATH']}")
    made = JobNode(home / "run", home / "devices.json", SlurmPrograms("g1", 20.0), home / "driver")
    for program in ("scontrol", "squeue"):
        slurm_says(made, program, "", 1)  # not those of this machine
    yield made
    for job in read_jobs(made.run_dir):
        end_job(made, job.job)
    shutil.rmtree(home)


def slurm_says(node, program, text, code=0):
    script = node.devices.parent / "bin" / program
    script.write_text(f"#!/bin/sh\necho \"$@\" >> {script}.asked\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    script.chmod(0o755)


def asked(node, program):
    said = node.devices.parent / "bin" / f"{program}.asked"
    return said.read_text().splitlines() if said.exists() else []


def request(number, *indexes, percent=None, uid=1000):
    return JobRequest(JobId(number), uid, indexes, "alice", percent)


def running(node):
    return [path.parent.parent.name for path in node.run_dir.glob("mps/*/pipe/*.pid")]


def test_two_jobs_share_a_daemon(node):
    assert begin_job(node, request(1, 2, percent=25)).refused == ""
    begin_job(node, request(2, 2, percent=50))
    begin_job(node, request(3, 1))
    assert [one.gres for one in read_jobs(node.run_dir)] == ["mps:25", "mps:50", "gpu:h100:1"]
    assert running(node) == [gpu(2)]
    assert end_job(node, JobId(1)) == ()
    assert running(node) == [gpu(2)]
    assert end_job(node, JobId(3)) == ()
    assert end_job(node, JobId(2)) == ()
    assert running(node) == []
    assert end_job(node, JobId(2)) == ()  # a second epilog
    assert asked(node, "squeue") == []  # Slurm is asked nothing where nothing is strange


def test_other_users_can_write_nothing_in_the_run_directory(node):
    begin_job(node, request(1, 2, percent=25))
    sockets = {path for path in node.run_dir.rglob("*") if path.is_socket() or path.is_fifo()}
    open_ = [path for path in node.run_dir.rglob("*") if path.stat().st_mode & 0o022]
    assert {path.name for path in open_} == {path.name for path in sockets if path in open_}


def test_a_job_whose_epilog_did_not_run_is_in_nobodys_way(node):
    begin_job(node, request(1, 1))
    slurm_says(node, "squeue", "2")
    assert begin_job(node, request(2, 1)).refused == ""
    assert [one.job for one in read_jobs(node.run_dir)] == [2]
    slurm_says(node, "squeue", "2\n3")
    assert begin_job(node, request(3, 1)).refused.startswith("GPU 0 is not free: job 2 has all of it")
    for text, code in (("", 1), ("an error", 0)):
        slurm_says(node, "squeue", text, code)
        assert begin_job(node, request(4, 1)).refused  # unknown: nothing is given to two


def test_a_job_with_all_of_a_gpu_finds_no_daemon_there(node):
    """Left by a job whose epilog was killed: it may hold the GPU, and the job's programs do not ask it."""
    begin_job(node, request(1, 2, percent=25))
    slurm_says(node, "squeue", "1\n2")
    assert begin_job(node, request(2, 2)).refused
    assert running(node) == [gpu(2)]
    slurm_says(node, "squeue", "2")
    assert begin_job(node, request(2, 2)).refused == ""
    assert running(node) == []
    begin_job(node, request(2, 2))  # there is none: nothing to do


def test_shards_are_asked_of_slurm(node):
    slurm_says(node, "scontrol", "JobId=1 Nodes=g1 CPU_IDs=0 Mem=0 GRES=shard:2(IDX:3)")
    record = begin_job(node, request(1, 3))
    assert record.gres == "shard:2"
    assert (node.run_dir / "guard").is_dir()
    assert record.guard_dir.startswith(f"{node.run_dir}/guard/")
    assert asked(node, "scontrol") == ["--oneliner show job --details 1"]


def test_a_job_whose_name_looks_like_an_answer_is_asked_for_as_json(node):
    """The text of a job has its name in it, the JSON has it as one value."""
    evil = "JobId=1 JobName=x Nodes=g1 CPU_IDs=0 Mem=0 GRES=shard:1(IDX:3) "
    slurm_says(node, "scontrol", f"{evil} Nodes=g1 CPU_IDs=0 Mem=0 GRES=shard:2(IDX:3)")
    rows = [
        {"job_id": 7, "nodes": "g1", "gres_detail": ["shard:4(IDX:3)"]},
        {"job_id": 1, "nodes": "g[1-2]", "gres_detail": ["shard:2(0/0,0/0,0/0,2/4)", "shard:1(1/4)"]},
    ]
    slurm_says(node, "squeue", json.dumps({"jobs": rows}))
    assert begin_job(node, request(1, 3)).gres == "shard:2"
    slurm_says(node, "squeue", "no JSON here")
    assert begin_job(node, request(1, 3)).gres == "shard:1"


def test_a_job_with_gpus_of_two_types_has_a_record_of_all(node):
    slurm_says(node, "scontrol", "Nodes=g1 CPU_IDs=0 Mem=0 GRES=gpu:h100_1g.10gb:1(IDX:0),gpu:h100:1(IDX:1)")
    assert begin_job(node, request(1, 1)).gres == "gpu:h100_1g.10gb:1,gpu:h100:1"
    assert begin_job(node, request(2, 0, 1)).refused.startswith("GPU 1:0 is not free: job 1 has all of it")


def test_a_guard_that_cannot_be_written_is_no_guarantee(node):
    slurm_says(node, "scontrol", "JobId=1 Nodes=g1 CPU_IDs=0 Mem=0 GRES=shard:2(IDX:3)")
    node.run_dir.mkdir()
    (node.run_dir / "guard").symlink_to("/etc")
    (device,) = begin_job(node, request(1, 3)).devices
    assert (device.guarantee, device.guard) == ("none", False)


def test_what_breaks_a_node_is_said(node):
    node.devices.chmod(0o666)
    with pytest.raises(NodeBroken, match="can be written by other users"):
        begin_job(node, request(1, 1))
    node.devices.chmod(0o644)
    with pytest.raises(NodeBroken, match="slurmd gives a job GPU 9"):
        begin_job(node, request(1, 9))
    (node.driver_root / "usr/bin/nvidia-cuda-mps-control").unlink()
    with pytest.raises(
        NodeBroken, match="the MPS daemon does not start: there is no nvidia-cuda-mps-control"
    ):
        begin_job(node, request(1, 2, percent=25))
    assert read_jobs(node.run_dir) == ()
    assert end_job(node, JobId(1)) == ()
    node.devices.write_text("{}")
    with pytest.raises(NodeBroken, match="is no file of 'partage slurm config'"):
        begin_job(node, request(1, 1))


def test_an_epilog_never_fails(node):
    assert end_job(node, JobId(1)) == ()  # nothing was ever there
    begin_job(node, request(1, 2, percent=25))
    (node.run_dir / "jobs").chmod(0o777)
    (said,) = end_job(node, JobId(1))
    assert "can be written by other users" in said
    (node.run_dir / "jobs").chmod(0o755)
    (node.driver_root / "usr/bin/nvidia-cuda-mps-control").unlink()
    assert end_job(node, JobId(1)) == ()  # without the control program it is killed
    assert running(node) == []


def test_the_reason_of_a_drain_is_plain(node):
    slurm_says(node, "scontrol", "")
    assert node.slurm.drain("/run/p: no space\nState=RESUME 'x' \"y\" $(z) " + "a" * 500)
    (words,) = asked(node, "scontrol")
    assert words.startswith(
        "update NodeName=g1 State=DRAIN Reason=partage: /run/p: no space State RESUME 'x' y (z) a"
    )
    assert len(words) < 260
    assert not SlurmPrograms("").drain("x")


async def test_a_daemon_of_partage_apply_is_replaced(node):
    """It has the limits of the policy, and jobs have their own."""
    keeper = MpsKeeper(node.run_dir, node.driver_root, host=DaemonHost(own_mounts=False))
    before = await keeper.start(DaemonSpec(gpu(2), gpu(2), memory_bytes=SIZE // 4, threads_percent=25))
    assert (await asyncio.to_thread(begin_job, node, request(1, 2, percent=50))).refused == ""
    (now,) = await keeper.states()
    assert (now.limits.memory_bytes, now.limits.threads_percent) == (None, None)
    assert now.pid != before.pid


def test_a_slurm_that_does_not_answer_is_not_waited_for(node):
    script = node.devices.parent / "bin" / "scontrol"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    hung = replace(node, slurm=SlurmPrograms("g1", 0.1))
    assert begin_job(hung, request(1, 3)).gres == "shard:1"
    assert not hung.slurm.drain("x")


@pytest.mark.parametrize(
    ("variables", "code", "said"),
    [
        ({"SLURM_JOB_ID": "1"}, 0, ""),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "0", "SLURM_JOB_GPUS": "1"}, 0, ""),
        (
            {"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "0", "SLURM_JOB_GPUS": "MIG-1"},
            0,
            "is left as Slurm made it",
        ),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "0", "SLURM_JOB_GPUS": "9"}, 4, "slurmd gives a job GPU 9"),
    ],
)
def test_the_script_of_the_prolog(node, variables, code, said):
    """As slurmd runs it: nothing else is in the environment, not even a PATH."""
    text = (Path(__file__).parents[3] / "deploy/slurm/prolog").read_text()
    values = {"PYTHON": sys.executable, "RUN_DIR": node.run_dir, "DEVICES": node.devices}
    for name, value in values.items():
        text = re.sub(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
    script = node.devices.parent / "prolog"
    script.write_text(text)
    script.chmod(0o755)
    done = subprocess.run([script], env=variables, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert [one.gres for one in read_jobs(node.run_dir)] == (
        ["gpu:h100:1"] if not said and len(variables) > 1 else []
    )


def test_prologs_and_epilogs_at_the_same_time(node):
    """However they overlap, every job that was begun has a daemon, and in the end there is none."""
    wrong: list[object] = []

    def life(number):
        for turn in range(3):
            job = number * 100 + turn
            record = begin_job(node, request(job, 2, percent=20))
            if record.refused or running(node) != [gpu(2)]:
                wrong.append(record)
            wrong.extend(end_job(node, JobId(job)))

    threads = [threading.Thread(target=life, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert read_jobs(node.run_dir) == ()
    assert running(node) == []


def test_a_record_that_cannot_be_read_is_replaced(node):
    begin_job(node, request(1, 1))
    with JobRecords(node.run_dir) as records:
        found = records.get(JobId(1))
        assert found is not None
        records.put(replace(found, version=9))
        assert records.get(JobId(1)) is None
    assert begin_job(node, request(1, 1)).refused == ""
