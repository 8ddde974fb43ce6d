"""Prolog and epilog with the simulated MPS control program, and scripts in place of Slurm's programs."""

import asyncio
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.edges.mps.home import DaemonHost
from partage.edges.mps.keeper import MpsKeeper
from partage.edges.mps.paths import DaemonPaths
from partage.model.mps import DaemonSpec
from partage.sim.mps.node import MpsNode
from partage.slurm.agent.job_begin import begin_job, requeue_job
from partage.slurm.agent.job_end import end_job, end_lost_jobs
from partage.slurm.agent.job_node import JobNode, NodeBroken
from partage.slurm.decide.job_start import JobRequest
from partage.slurm.host.devices_file import devices_text
from partage.slurm.host.job_records import JobRecords, Records, read_records
from partage.slurm.host.programs import SlurmPrograms
from partage.slurm.model import JobId
from tests.sim.mps.programs import install_programs
from tests.slurm.decide.jobs import NODE, SIZE, gpu


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
    holds(made, "gpu:h100:1(IDX:1)")
    yield made
    for job in read_records(made.run_dir).jobs:
        end_job(made, job.job)
    shutil.rmtree(home)


def slurm_says(node, program, text, code=0):
    script = node.devices.parent / "bin" / program
    script.write_text(f"#!/bin/sh\necho \"$@\" >> {script}.asked\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    script.chmod(0o755)


def holds(node, gres):
    """What scontrol says that every job has."""
    slurm_says(node, "scontrol", f"JobId=1 Nodes=g1 CPU_IDs=0 Mem=0 GRES={gres}")


def lives(node, *jobs):
    """What squeue says."""
    slurm_says(node, "squeue", "\n".join(f"{job}|{job}" for job in jobs))


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
    assert [one.gres for one in read_records(node.run_dir).jobs] == ["mps:25", "mps:50", "gpu:h100:1"]
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
    lives(node, 2)
    assert begin_job(node, request(2, 1)).refused == ""
    assert [one.job for one in read_records(node.run_dir).jobs] == [2]
    lives(node, 2, 3)
    assert begin_job(node, request(3, 1)).refused.startswith("GPU 0 is not free: job 2 has all of it")
    for text, code in (("", 1), ("an error", 0)):
        slurm_says(node, "squeue", text, code)
        assert begin_job(node, request(4, 1)).refused  # unknown: nothing is given to two


def test_a_job_with_all_of_a_gpu_finds_no_daemon_there(node):
    """Left by a job whose epilog was killed: it may hold the GPU, and the job's programs do not ask it."""
    begin_job(node, request(1, 2, percent=25))
    holds(node, "gpu:h100_shared:1(IDX:2)")
    lives(node, 1, 2)
    assert begin_job(node, request(2, 2)).refused
    assert running(node) == [gpu(2)]
    lives(node, 2)
    assert begin_job(node, request(2, 2)).refused == ""
    assert running(node) == []
    begin_job(node, request(2, 2))  # there is none: nothing to do


def test_a_refused_job_keeps_no_daemon(node):
    """It has nothing of the GPU, and may end after the job with a share: then no epilog looks again."""
    begin_job(node, request(1, 2, percent=25))
    holds(node, "gpu:h100_shared:1(IDX:2)")
    lives(node, 1, 2)
    assert begin_job(node, request(2, 2)).refused
    assert end_job(node, JobId(1)) == ()
    assert running(node) == []
    assert end_job(node, JobId(2)) == ()


def test_an_epilog_in_the_middle_of_its_prolog_leaves_nothing(node):
    """Of a slurmd that was started again, which does not know that a prolog still runs."""
    busy = DaemonPaths.of(node.run_dir, gpu(2)).lock
    busy.parent.mkdir(parents=True)
    with ThreadPoolExecutor() as pool, busy.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        begun = pool.submit(begin_job, node, request(1, 2, percent=25))
        while not read_records(node.run_dir).jobs and not begun.done():
            time.sleep(0.01)
        assert end_job(node, JobId(1)) == ()
        fcntl.flock(lock, fcntl.LOCK_UN)
        begun.result()
    assert read_records(node.run_dir) == Records()
    assert running(node) == []


def test_a_prolog_that_has_waited_asks_whether_its_job_lives(node):
    """Its epilog may have run already, where slurmd was started again."""
    for long_s, jobs, left in ((60.0, (9,), [1]), (0.0, (1,), [1]), (0.0, (9,), [])):
        lives(node, *jobs)
        begin_job(replace(node, long_s=long_s), request(1, 2, percent=25))
        assert [one.job for one in read_records(node.run_dir).jobs] == left
        assert len(running(node)) == len(left)
    assert len(asked(node, "squeue")) == 2


def test_two_users_who_begin_at_once_do_not_refuse_each_other(node):
    """A job that is about to be refused, since another user was first, is no reason to refuse that user's."""
    install_programs(node.driver_root / "usr/bin", MpsNode({gpu(2): SIZE}, multi_user=False))
    first = begin_job(node, request(1, 2, percent=25, uid=1001))
    with JobRecords(node.run_dir) as records:
        records.put(replace(first, job=JobId(2), uid=1002, decided=False))
    lives(node, 1, 2, 3)
    assert begin_job(node, request(3, 2, percent=25, uid=1001)).refused == ""
    assert "job 1 is another user's" in begin_job(node, request(2, 2, percent=25, uid=1002)).refused


def test_shards_are_asked_of_slurm(node):
    (node.devices.parent / "bin" / "scontrol.asked").unlink(missing_ok=True)
    holds(node, "shard:2(IDX:3)")
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
    assert begin_job(node, request(1, 3)).refused == "Slurm does not say clearly which GPUs it has"


def test_a_job_with_gpus_of_two_types_has_a_record_of_all(node):
    slurm_says(node, "scontrol", "Nodes=g1 CPU_IDs=0 Mem=0 GRES=gpu:h100_1g.10gb:1(IDX:0),gpu:h100:1(IDX:1)")
    assert begin_job(node, request(1, 1)).gres == "gpu:h100_1g.10gb:1,gpu:h100:1"
    assert begin_job(node, request(2, 0, 1)).refused.startswith("GPU 1:0 is not free: job 1 has all of it")


def test_mps_of_two_gpus(node):
    """With MULTIPLE_SHARING_GRES_PJ; nothing is started for what is not known."""
    holds(node, "mps:150(0/0,0/0,100/100,50/100)")
    with pytest.raises(NodeBroken, match=r"mps of GPU 3, which devices\.json does not share so"):
        begin_job(node, request(1, 2, 3, percent=150))
    assert read_records(node.run_dir).jobs == ()
    holds(node, "mps:100(0/0,0/0,100/100)")
    assert begin_job(node, request(1, 0, 1, 2, percent=0)).gres == "mps:100"
    assert running(node) == [gpu(2)]


def test_a_guard_that_cannot_be_written_is_no_guarantee(node):
    holds(node, "shard:2(IDX:3)")
    node.run_dir.mkdir()
    (node.run_dir / "guard").symlink_to("/etc")
    (device,) = begin_job(node, request(1, 3)).devices
    assert (device.guarantee, device.guard) == ("none", False)


def test_what_breaks_a_node_is_said(node):
    node.devices.chmod(0o666)
    with pytest.raises(NodeBroken, match="can be written by other users"):
        begin_job(node, request(1, 1))
    node.devices.chmod(0o644)
    holds(node, "gpu:9(IDX:9)")
    with pytest.raises(NodeBroken, match="slurmd gives a job GPU 9"):
        begin_job(node, request(1, 9))
    holds(node, "gpu:h100:1(IDX:1)")
    shutil.rmtree(node.driver_root / "usr/bin")
    with pytest.raises(
        NodeBroken, match="the MPS daemon does not start: there is no nvidia-cuda-mps-control"
    ):
        begin_job(node, request(1, 2, percent=25))
    assert read_records(node.run_dir).jobs == ()
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
    shutil.rmtree(node.driver_root / "usr/bin")
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


def silent_first(node, program, times, text):
    """A program that does not reach slurmctld so many times, and then prints the text."""
    slurm_says(node, program, text)
    script = node.devices.parent / "bin" / program
    count = f"{script}.silent"
    body = script.read_text().removeprefix("#!/bin/sh\n")
    script.write_text(
        f"#!/bin/sh\necho >> {count}\n[ $(wc -l < {count}) -gt {times} ] || "
        f"{{ echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1; }}\n{body}"
    )


def test_a_silent_slurm_is_asked_again(node):
    silent_first(node, "scontrol", 2, "JobId=1 Nodes=g1 CPU_IDs=0 Mem=0 GRES=shard:3(IDX:3)")
    assert begin_job(node, request(1, 3)).gres == "shard:3"


def test_what_a_silent_slurm_does_not_say_is_not_guessed(node, monkeypatch):
    script = node.devices.parent / "bin" / "scontrol"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    hung = replace(node, slurm=SlurmPrograms("g1", 0.1, 0.3))
    record = begin_job(hung, request(1, 3))
    assert (record.devices, record.gres) == ((), "")
    assert record.refused == (
        "Slurm did not say which GPUs it has: scontrol --oneliner show: no answer within 0.1 s"
    )
    assert not hung.slurm.drain("x")
    monkeypatch.setenv("PATH", "/nothing")
    with pytest.raises(NodeBroken, match="scontrol is not installed here"):
        begin_job(replace(node, slurm=SlurmPrograms("g1")), request(2, 3))


def refused(node, number=2):
    begin_job(node, request(1, 1))
    lives(node, 1, number)
    record = begin_job(node, request(number, 1))
    assert record.refused
    (node.devices.parent / "bin" / "scontrol.asked").unlink()
    return record


def test_a_refused_job_is_put_back_into_the_queue(node):
    record = refused(node)
    slurm_says(node, "squeue", "1|1\n2|2_7")
    assert requeue_job(node, record)
    config, requeue, update = asked(node, "scontrol")
    assert config == "show config"
    assert requeue == "requeue 2_7"  # as 2 it would be the whole array
    assert update == (
        "update JobId=2_7 StartTime=now+130 AdminComment=partage: job does not run yet: GPU 0 is not free: "
        "job 1 has all of it. Slurm 22.05.8 gave it away twice"
    )
    slurm_says(node, "scontrol", "AuthType = auth/munge\nAuthInfo = socket=/m,cred_expire=300\nX = 1")
    assert requeue_job(node, record)
    assert " StartTime=now+310 " in asked(node, "scontrol")[-1]


@pytest.mark.parametrize(
    ("said", "done"),
    [
        ("Only batch jobs are accepted or processed for job 2", False),
        ("Requested operation is presently disabled for job 2", False),
        ("Job is pending execution for job 2", True),  # another of its nodes was first
    ],
)
def test_a_job_that_may_not_be_put_back_is_told_why(node, said, done):
    record = refused(node)
    script = node.devices.parent / "bin" / "scontrol"
    script.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    assert requeue_job(node, record) is done
    assert [one.job for one in read_records(node.run_dir).jobs] == [1, 2]  # for its tasks
    lives(node, 1)
    assert not requeue_job(node, record)  # cancelled meanwhile


@pytest.mark.parametrize("silent", ["show", "update"])
def test_when_a_job_begins_again_is_told_to_a_slurmctld_that_was_silent(node, silent):
    """Else it waits 130 s where 20 are enough, or begins when Slurm wants: 22.05 may run no prolog then."""
    record = refused(node)
    slurm_says(node, "squeue", "1|1\n2|2")
    script = node.devices.parent / "bin" / "scontrol"
    once = f'[ "$1" != {silent} ] || [ -e {script}.once ] || {{ touch {script}.once; exec sleep 60; }}'
    script.write_text(f'#!/bin/sh\n{once}\necho "$@" >> {script}.asked\necho "AuthInfo = cred_expire=10"\n')
    assert requeue_job(replace(node, slurm=SlurmPrograms("g1", 2.0, 0.0, 30.0)), record)
    assert asked(node, "scontrol")[-1].startswith("update JobId=2 StartTime=now+20 AdminComment=partage: ")


def test_a_job_that_nobody_can_put_back_breaks_the_node(node):
    """Slurm puts it back when the prolog fails."""
    record = refused(node)
    silent_first(node, "squeue", 1000, "")
    with pytest.raises(NodeBroken, match="a job cannot be put back into the queue: squeue"):
        requeue_job(replace(node, slurm=SlurmPrograms("g1", 5.0, 0.0, 0.5)), record)
    assert [one.job for one in read_records(node.run_dir).jobs] == [1]
    silent_first(node, "squeue", 2, "1|1\n2|2")
    (node.devices.parent / "bin" / "squeue.silent").unlink()
    slurm_says(node, "scontrol", "")
    assert requeue_job(node, record)


@pytest.mark.parametrize(
    ("variables", "code", "said"),
    [
        ({"SLURM_JOB_ID": "1"}, 0, ""),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "0", "SLURM_JOB_GPUS": "1"}, 0, ""),
        (
            {"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "0", "SLURM_JOB_GPUS": "MIG-1"},
            0,
            "gets no record, so its tasks end",
        ),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "0", "SLURM_JOB_GPUS": "9"}, 4, "slurmd gives a job GPU 9"),
    ],
)
def test_the_script_of_the_prolog(node, variables, code, said):
    """As slurmd runs it: nothing else is in the environment, not even a PATH."""
    text = (Path(__file__).parents[3] / "deploy/slurm/prolog").read_text()
    home = node.devices.parent
    values = {"PYTHON": sys.executable, "RUN_DIR": node.run_dir, "DEVICES": node.devices}
    values["PATH"] = f"{home}/bin:/usr/bin:/bin"
    holds(node, f"gpu:h100:1(IDX:{variables.get('SLURM_JOB_GPUS')})")
    for name, value in values.items():
        text = re.sub(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
    script = home / "prolog"
    script.write_text(text)
    script.chmod(0o755)
    done = subprocess.run(
        [script],
        env={**variables, "SLURMD_NODENAME": "g1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert [one.gres for one in read_records(node.run_dir).jobs] == (
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
    assert read_records(node.run_dir).jobs == ()
    assert running(node) == []


def spoil(node, job):
    """A record that another version of Partage has written, perhaps."""
    (node.run_dir / f"jobs/{job}.json").write_text("{}")


def test_a_job_beside_one_whose_record_cannot_be_read_waits(node):
    """Nobody knows which GPUs that one has."""
    begin_job(node, request(1, 2, percent=25))
    spoil(node, 1)
    lives(node, 1, 2)
    record = begin_job(node, request(2, 2, percent=25))
    assert record.refused.startswith(f"{node.run_dir}/jobs/1.json cannot be read: ")
    assert end_job(node, JobId(2)) == ()
    assert running(node) == [gpu(2)]  # its daemon stays
    assert begin_job(node, request(3, 1)).refused
    lives(node, 3)  # it has ended, and its epilog did not run
    assert begin_job(node, request(3, 1)).refused == ""
    assert [one.job for one in read_records(node.run_dir).jobs] == [3]
    spoil(node, 3)
    assert begin_job(node, request(3, 1)).refused == ""  # its own is written anew
    spoil(node, 3)
    assert end_job(node, JobId(3)) == ()
    assert read_records(node.run_dir) == Records()
    begin_job(node, request(4, 2, percent=25))
    begin_job(node, request(5, 2, percent=25))
    spoil(node, 4)
    assert end_job(node, JobId(4)) == ()
    assert running(node) == [gpu(2)]  # job 5 has it
    spoil(node, 5)
    assert end_job(node, JobId(5)) == ()
    assert running(node) == []


def test_a_record_that_no_epilog_removed_locks_no_other_user_out(node):
    install_programs(node.driver_root / "usr/bin", MpsNode({gpu(2): SIZE}, multi_user=False))
    begin_job(node, request(1, 2, percent=25, uid=1001))
    lives(node, 1, 2)
    assert "another user's" in begin_job(node, request(2, 2, percent=25)).refused
    lives(node, 2)
    assert begin_job(node, request(2, 2, percent=25)).refused == ""


def test_an_epilog_removes_records_of_jobs_that_are_gone_once_in_a_while(node):
    for job in (1, 2, 3, 4):
        begin_job(node, request(job, 2, percent=10))
    lives(node, 4)
    assert end_job(node, JobId(1)) == ()
    assert asked(node, "squeue") == []  # not each of them asks
    os.utime(node.run_dir / "jobs/.lock", (1, 1))
    assert end_job(node, JobId(2)) == ()
    assert [one.job for one in read_records(node.run_dir).jobs] == [4]
    assert running(node) == [gpu(2)]
    lives(node, 5)
    os.utime(node.run_dir / "jobs/.lock", (1, 1))
    assert end_job(node, JobId(9)) == ()
    assert running(node) == []
    assert len(asked(node, "squeue")) == 2


def test_a_record_that_was_written_since_slurm_was_asked_stays(node):
    """Its job has begun here again meanwhile."""
    before = begin_job(node, request(1, 2, percent=10))
    lives(node, 2)
    with JobRecords(node.run_dir) as records:
        seen = records.read()
        records.put(replace(before, uid=7))
        assert end_lost_jobs(node, records, seen)
    assert [one.uid for one in read_records(node.run_dir).jobs] == [7]
