"""What tasks are told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.slurm.decide.job_start import JobRequest, NodeFacts, start_job
from partage.slurm.decide.task_answer import (
    FACTS,
    UNTOLD,
    TaskAnswer,
    task_answer,
    unreadable_answer,
    without_record,
)
from partage.slurm.model import HeldDevices, JobId
from partage.units import MIB
from tests.slurm.decide.jobs import LIMITED, MIG, NODE, SIZE, gpu

VARIABLES = [
    "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_SHARDS_ON_NODE", "PYTHONPATH",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
]  # fmt: skip
GUARD = "/run/partage/guard/abc"


def record(*indexes, percent=None, shards=None):
    held = None if percent else HeldDevices(indexes, {3: shards} if shards else {})
    facts = NodeFacts(True, GUARD, held)
    return start_job(JobRequest(JobId(1), 1000, indexes, "", percent), NODE, facts, ())


def answer(found, **variables):
    """As slurmstepd asks: as many CUDA_VISIBLE_DEVICES as it has given."""
    said = variables.get("SLURM_STEP_GPUS") or variables.get("SLURM_JOB_GPUS") or "0"
    given_ = {"CUDA_VISIBLE_DEVICES": said, **variables}
    return task_answer(found, given_, "/run/partage")


def test_uuids_in_the_order_of_slurm():
    found = answer(record(0, 1), SLURM_STEP_GPUS="1,0")
    assert found.exports["CUDA_VISIBLE_DEVICES"] == f"{gpu(0)},{MIG}"
    assert found.exports["PARTAGE_GPUS"] == f"{gpu(0)},{gpu(1)}"
    assert found.exports["PARTAGE_STRATEGY"] == "mixed"
    assert found.exports["PARTAGE_MEMORY_BYTES"] == f"{SIZE},{SIZE // 8}"
    assert found.exports["PARTAGE_GUARANTEE"] == "hard"
    assert found.unset == ("PARTAGE_TOTAL_BYTES",)


def test_a_batch_script_has_all_a_task_its_own():
    assert (
        answer(record(0, 1), SLURM_JOB_GPUS="0,1").exports["PARTAGE_SHARES"]
        == "gpu:h100_1g.10gb:1,gpu:h100:1"
    )
    assert (
        answer(record(0, 1), SLURM_JOB_GPUS="0,1", SLURM_STEP_GPUS="1", CUDA_VISIBLE_DEVICES="1").exports[
            "PARTAGE_SHARES"
        ]
        == "gpu:h100:1"
    )


@pytest.mark.parametrize(
    ("task", "index", "units", "other"),
    [("0", 2, 100, "mps:50 of GPU 4"), ("1", 4, 50, "mps:100 of GPU 2"), ("2", 2, 100, ""), ("", 2, 100, "")],
)
def test_a_task_with_mps_of_several_gpus_has_one_of_them(task, index, units, other):
    """A process has one MPS daemon, and each GPU has its own: pipe, limits and GPU are of the same one."""
    second = replace(NODE.devices[2], index=4, name="4", uuid=gpu(4), gpu=gpu(4))
    node = replace(NODE, devices=(*NODE.devices, second))
    facts = NodeFacts(True, "", HeldDevices((2, 4), {2: 100, 4: 50}))
    found = start_job(JobRequest(JobId(1), 1000, (2, 4), "", 150), node, facts, ())
    said = answer(found, SLURM_STEP_GPUS="2,4", SLURM_LOCALID=task, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="150")
    exports = said.exports
    assert exports["CUDA_VISIBLE_DEVICES"] == exports["PARTAGE_GPUS"] == gpu(index)
    assert exports["CUDA_MPS_PIPE_DIRECTORY"] == f"/run/partage/mps/{gpu(index)}/pipe"
    assert exports["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(units)
    assert exports["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={SIZE * units // 100 // MIB}M"
    assert exports["PARTAGE_SHARES"] == f"mps:{units}"
    assert exports["PARTAGE_MEMORY_BYTES"] == str(SIZE * units // 100 // MIB * MIB)
    assert said.code == 0
    (print_,) = said.prints
    assert print_.startswith(f"partage: this task has mps:{units} of GPU {index}, and not {other}")
    bound = answer(found, SLURM_STEP_GPUS="4", SLURM_LOCALID=task)
    assert bound.exports["CUDA_VISIBLE_DEVICES"] == gpu(4)
    assert bound.prints == ()


@pytest.mark.parametrize("indexes", ["2", "7", "2,3"])
def test_what_is_not_the_jobs_is_not_given(indexes):
    """A task that Slurm gives other GPUs than its prolog was told of ends: it would run on wrong ones."""
    found = answer(record(0, 1), SLURM_STEP_GPUS=indexes)
    assert (found.exports, found.code) == ({}, 1)
    assert "prolog was not told of" in found.text()


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("outer", ["0", "1", "2", "0,1,2", "7"])
def test_a_job_that_was_submitted_in_a_step_of_another(outer, constrained):
    """Its batch script has the SLURM_STEP_GPUS of that step; with cgroups Slurm counts its GPUs from 0."""
    visible = "0,1" if constrained else "0,2"
    variables = {"SLURM_STEP_GPUS": outer, "SLURM_JOB_GPUS": "0,2", "CUDA_VISIBLE_DEVICES": visible}
    assert answer(record(0, 2), **variables).exports["CUDA_VISIBLE_DEVICES"] == f"{MIG},{gpu(2)}"
    variables = {"SLURM_STEP_GPUS": "2", "SLURM_JOB_GPUS": outer, "CUDA_VISIBLE_DEVICES": "0"}
    assert answer(record(0, 2), **variables).exports["CUDA_VISIBLE_DEVICES"] == gpu(2)


def test_a_daemon_of_another_job_is_forgotten_and_one_of_its_own_stays():
    """A job with a whole GPU may run an MPS daemon of its own on it."""
    mps = {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}
    other = f"/run/partage/mps/{gpu(2)}/pipe"
    assert mps < set(answer(record(1), SLURM_STEP_GPUS="1", CUDA_MPS_PIPE_DIRECTORY=other).unset)
    own = answer(record(1), SLURM_STEP_GPUS="1", CUDA_MPS_PIPE_DIRECTORY="/tmp/mine")
    assert not mps & {*own.unset, *own.exports}


def test_a_step_without_gpus_is_told_nothing():
    found = task_answer(record(0), {"CUDA_VISIBLE_DEVICES": "", "SLURM_JOB_GPUS": "0"}, "/run/partage")
    assert found.exports == {}
    assert set(FACTS) == set(found.unset)


def test_mps():
    found = answer(record(2, percent=50), SLURM_STEP_GPUS="2").exports
    assert found["CUDA_MPS_PIPE_DIRECTORY"] == f"/run/partage/mps/{gpu(2)}/pipe"
    assert found["CUDA_MPS_LOG_DIRECTORY"] == f"/run/partage/mps/{gpu(2)}/log"
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={SIZE // 2 // MIB}M"
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert (found["PARTAGE_REPLICAS"], found["PARTAGE_SHARES"]) == ("2", "mps:50")


@pytest.mark.parametrize(
    ("said", "units"), [("20", 20), ("60", 50), ("0", 50), ("x", 50), ("9" * 5000, 50), ("", 50)]
)
def test_a_step_may_have_less_and_never_more(said, units):
    found = answer(record(2, percent=50), SLURM_STEP_GPUS="2", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=said).exports
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(units)
    assert found["PARTAGE_MEMORY_BYTES"] == str(SIZE * units // 100 // MIB * MIB)


@pytest.mark.parametrize(
    ("per_task", "step", "units"),
    [
        ("gres/mps:20", "0", 20), ("cpu:1,gres/mps=20", "0", 20), ("gres:mps:60", "0", 50),
        ("gres/shard:2", "0", 50), ("gres/mps:20x", "0", 50), ("gres/mps:20", "", 50), ("", "0", 50),
    ],
)  # fmt: skip
def test_with_tres_per_task_each_task_is_told_its_own(per_task, step, units):
    """Slurm tells every task the percentage of the step (24.11.5). The batch script has all of the job."""
    said = {"SLURM_TRES_PER_TASK": per_task, "SLURM_STEP_ID": step, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    found = answer(record(2, percent=50), SLURM_STEP_GPUS="2", **said).exports
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(units)
    assert found["PARTAGE_SHARES"] == f"mps:{units}"
    shards = {"SLURM_TRES_PER_TASK": "gres/shard:1", "SLURM_STEP_ID": "0", "SLURM_SHARDS_ON_NODE": "3"}
    assert answer(record(3, shards=3), SLURM_STEP_GPUS="3", **shards).exports["PARTAGE_SHARES"] == "shard:1"


def test_a_batch_script_with_exclusive_has_the_shares_that_slurm_gave():
    """Slurm tells it all GPUs of the node, and a percentage of 0 (24.11.5)."""
    said = {"SLURM_JOB_GPUS": "0,1,2,3", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "0"}
    found = answer(record(2, percent=100), **said).exports
    assert (found["CUDA_VISIBLE_DEVICES"], found["PARTAGE_SHARES"]) == (gpu(2), "mps:100")
    assert answer(record(1), SLURM_JOB_GPUS="0,1").code == 1  # of whole GPUs it was not told


@pytest.mark.parametrize("gpus", [True, False, None])
def test_a_task_without_a_record(gpus):
    variables = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_MPS_PIPE_DIRECTORY": "/run/partage/mps/x/pipe"}
    found = without_record(gpus, variables, "/run/partage")
    assert found.code == (1 if gpus else 0)
    assert bool(found.prints) == (gpus is not False)
    assert found.exports == ({"CUDA_VISIBLE_DEVICES": ""} if gpus is None else {})
    assert {*FACTS, "CUDA_MPS_PIPE_DIRECTORY"} <= set(found.unset)


def test_a_record_that_cannot_be_read_is_not_none():
    found = unreadable_answer("/run/partage/jobs/1.json cannot be read: x", {}, "/run/partage")
    assert found.code == 1
    assert "does not run here: /run/partage/jobs/1.json cannot be read" in found.text()


def test_the_guard_is_before_the_jobs_own_path():
    found = answer(record(3, shards=2), SLURM_STEP_GPUS="3").exports
    assert (found["PYTHONPATH"], found["PARTAGE_GUARANTEE"]) == (GUARD, "advisory")
    assert found["PARTAGE_TOTAL_BYTES"] == str(SIZE)
    again = answer(record(3, shards=2), SLURM_STEP_GPUS="3", PYTHONPATH=f"{GUARD}:/a:/b").exports
    assert again["PYTHONPATH"] == f"{GUARD}:/a:/b"
    without = answer(record(3, shards=2), SLURM_STEP_GPUS="3", PYTHONPATH="/a\nexport X=1").exports
    assert "PYTHONPATH" not in without
    assert without["PARTAGE_GUARANTEE"] == "none"


def test_a_refused_job_ends_with_the_reason():
    other = start_job(JobRequest(JobId(2), 0, (1,)), NODE, NodeFacts(held=HeldDevices((1,))), [record(1)])
    found = answer(other)
    assert (found.code, found.exports) == (1, {})
    assert found.text().startswith(
        "print partage: this job does not run here: GPU 0 is not free: job 1 has all"
    )


@given(st.dictionaries(st.sampled_from(["A", "B"]), st.text(max_size=20)), st.lists(st.text(max_size=20)))
def test_every_line_is_ours(exports, prints):
    lines = TaskAnswer(exports, ("C",), tuple(prints)).text().split("\n")
    assert lines.pop() == ""
    assert len(lines) <= len(exports) + len(prints) + 1
    assert all(line.startswith(("export A=", "export B=", "print ", "unset C")) for line in lines)
    assert "\r" not in "".join(lines)


@given(
    st.dictionaries(
        st.sampled_from(VARIABLES),
        st.text(max_size=30) | st.sampled_from(["0", "3", "0-3", "2,3", "1\nexport LD_PRELOAD=/x"]),
    )
)  # fmt: skip
def test_no_variable_of_a_job_adds_a_line(variables):
    """Whatever its owner puts into the environment, as far as slurmstepd lets them."""
    found = answer(record(0, 3, shards=2), **variables)
    lines = found.text().removeprefix(f"print {UNTOLD}\n").splitlines()
    names = [line.split(" ", 1)[1].partition("=")[0] for line in lines]
    known = {
        "CUDA_VISIBLE_DEVICES",
        "PYTHONPATH",
        *FACTS,
    }
    assert set(names) <= known
    assert len(names) == len(set(names))
    devices = found.exports.get("CUDA_VISIBLE_DEVICES", "")
    assert set(filter(None, devices.split(","))) <= {MIG, gpu(3)}


@pytest.mark.parametrize(
    ("held", "shards", "guarantee"),
    [
        (True, "2", "hard"),
        (False, "2", "none"),  # nobody has read it back
        (True, "1", "none"),  # a step with less than its job: the limit is the job's
    ],
)
def test_hard_is_said_where_the_limit_was_read(held, shards, guarantee):
    facts = NodeFacts(True, limits=True, held=HeldDevices((3,), {3: 2}))
    found = start_job(JobRequest(JobId(1), 1000, (3,)), LIMITED, facts, ())
    variables = {"SLURM_STEP_GPUS": "3", "CUDA_VISIBLE_DEVICES": "3", "SLURM_SHARDS_ON_NODE": shards}
    told = task_answer(found, variables, "/run/partage", limits_held=held).exports
    assert told["PARTAGE_GUARANTEE"] == guarantee
    assert told["PARTAGE_MEMORY_BYTES"] == str(SIZE * int(shards) // 4)
