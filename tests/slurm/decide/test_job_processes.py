"""Whose processes are on the GPUs of a Slurm node."""

from msgspec.structs import replace

from partage.model.gpu_use import GpuProcess, ProcessKind
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.sim.node.files.load import load_machine
from partage.slurm.decide.job_processes import job_processes, of_jobs, unrecorded
from partage.slurm.model import GresName, JobDevice, JobId, JobRecord, LiveJob

MACHINE = load_machine("2xh100-sxm5-80gb").inventory
FIRST, SECOND = (gpu.uuid for gpu in MACHINE)
V1 = ("4:memory:/slurm/uid_1000/job_{job}/step_0/task_0",)
V2 = ("0::/system.slice/slurmstepd.scope/job_{job}/step_batch/user/task_0",)


def _process(pid, gpu=FIRST, job=0, cgroup=V2, **more):
    lines = tuple(line.format(job=job) for line in cgroup) if job else ("0::/user.slice/session-1.scope",)
    row = GpuProcess(gpu, pid, 2**30, ProcessKind.COMPUTE, name="python", cgroups=lines, uid=1000)
    return replace(row, **more)


def _record(job, gpu=FIRST, **more):
    device = JobDevice(
        index=0, name="0", uuid=gpu, gpu=gpu, type="h100", strategy=Strategy.MPS, gres=GresName.MPS,
        memory_bytes=2**30, total_bytes=2**36, guarantee=Guarantee.HARD, units=25, units_of=100,
    )  # fmt: skip
    return JobRecord(JobId(job), 1000, (replace(device, **more),), "anna")


def test_job_user_and_share_of_each_process():
    rows = [_process(3, job=7), _process(2, SECOND, 8, V1), _process(1)]
    whole = _record(8, SECOND, gres=GresName.GPU, units=0, units_of=0)
    found = job_processes(rows, MACHINE, [_record(7), whole])
    assert [(one.pid, one.gpu, one.job, one.step, one.user, one.share) for one in found] == [
        (1, 0, "", "", "", ""),
        (3, 0, "7", "batch", "anna", "mps:25 of 100"),
        (2, 1, "8", "0", "anna", "gpu:h100"),
    ]


def test_a_job_on_a_gpu_that_it_was_not_given():
    (found,) = job_processes([_process(3, SECOND, 7)], MACHINE, [_record(7)])
    assert found.share == "not given to this job"


def test_without_a_record_slurmctld_says_what_a_job_holds():
    rows = [_process(3, job=7)]
    assert unrecorded(rows, []) == {"7"}
    assert unrecorded(rows, [_record(7)]) == frozenset()
    job = LiveJob(JobId(7), "RUNNING", 1000, "anna", (0,), "mps:25")
    (found,) = job_processes(rows, MACHINE, [], [job])
    assert (found.user, found.share) == ("anna", "mps:25")


def test_since_26_05_a_cgroup_is_called_by_the_sluid_and_a_job_still_by_its_number():
    sluid = "s5K1KKYAYG5D00"
    rows = [_process(3, job=7, cgroup=(f"0::/system.slice/slurmstepd.scope/{sluid}/step_0/user/task_0",))]
    record = replace(_record(7), sluid=sluid)
    assert unrecorded(rows, [record]) == frozenset()
    assert unrecorded(rows, [_record(7)]) == {sluid}
    for records, live in (([record], []), ([], [LiveJob(JobId(7), "RUNNING", 1000, "anna", sluid=sluid)])):
        (found,) = job_processes(rows, MACHINE, records, live)
        assert (found.job, found.step, found.user) == ("7", "0", "anna")


def test_a_process_of_another_user_in_the_job_is_not_called_the_owners():
    (found,) = job_processes([_process(3, job=7, uid=0)], MACHINE, [_record(7)])
    assert (found.uid, found.user) == (0, "")


def test_an_mps_server_is_called_one():
    (found,) = job_processes([_process(3, kind=ProcessKind.MPS_SERVER)], MACHINE, [])
    assert found.share == "MPS server"


def test_processes_of_jobs_as_a_sentence_names_them():
    rows = [
        _process(3, job=7),
        _process(3, SECOND, 7),
        _process(1),
        _process(4, job=7, kind=ProcessKind.MPS_SERVER),
    ]
    assert of_jobs(rows) == ("python (pid 3) of job 7",)
