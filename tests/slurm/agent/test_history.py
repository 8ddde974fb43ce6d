"""The history of use of a compute node: jobs of a simulated node, and a script in place of squeue."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.agent.observers.usage import HistoryObserver
from partage.agent.options import Intervals
from partage.cli.main import run
from partage.edges.files.usage_days import UsageDays, read_usage_days
from partage.model.usage_day import GpuSeen
from partage.plan.history.evidence import JobName
from partage.rightsize.decide import gather_days
from partage.sim.node.faults import Occupy
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.slurm.agent.history import JobUsageObserver
from partage.slurm.host.control import SlurmControl
from partage.slurm.host.job_records import JobRecords
from partage.slurm.model import JobId, JobRecord
from partage.units import GIB

SHORT = Intervals(usage_s=0.02, history_s=0.02, history_write_s=0.1)
NAMED = [
    {
        "job_id": 7,
        "job_state": "RUNNING",
        "user_id": 1000,
        "user_name": "anna",
        "nodes": "g1",
        "name": "train",
    }
]


def squeue(directory: Path, text: str, code: int = 0) -> None:
    """A squeue that says that, and writes down each question."""
    script = directory / "squeue"
    script.write_text(f"#!/bin/sh\necho \"$@\" >> {script}.asked\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    script.chmod(0o755)


async def hardware_with_a_job(cgroup: str) -> SimulatedHardware:
    hardware = SimulatedHardware(load_machine("1xh100-sxm5-80gb"))
    await hardware.inject(Occupy(0, "train", pid=4242, memory_bytes=3 * GIB))
    path = f"/system.slice/slurmstepd.scope/{cgroup}/step_0/user/task_0"
    rows = {key: replace(process, cgroup=path) for key, process in hardware.state.processes.items()}
    hardware._set_state(replace(hardware.state, processes=rows))
    return hardware


def history_of(use: JobUsageObserver, home: Path) -> HistoryObserver:
    return HistoryObserver(
        files=UsageDays(home / "state", 14),
        node="g1",
        look=use.look,
        wanted=use.wanted,
        gpus=lambda: [GpuSeen("NVIDIA H100 80GB HBM3", 80 * GIB)],
        intervals=SHORT,
        jobs=use.names_now,
    )


@pytest.mark.parametrize(
    ("said", "workload"),
    [(json.dumps({"jobs": NAMED}), "slurm:anna/train"), ("squeue: error", "slurm:anna/*")],
    ids=["named", "squeue does not answer"],
)
async def test_a_job_is_known_by_its_user_and_name(
    tmp_path: Path, said: str, workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    squeue(tmp_path, said, code=0 if said.startswith("{") else 1)
    hardware = await hardware_with_a_job("job_7")
    use = JobUsageObserver(hardware, SlurmControl(tmp_path, {}), "g1", tmp_path / "run")
    assert not use.wanted(), "no job has a GPU"
    (tmp_path / "run").mkdir(mode=0o755)
    with JobRecords(tmp_path / "run", make=True) as records:
        records.put(JobRecord(JobId(7), 1000, (), "anna"))
    assert use.wanted()
    history, directory = history_of(use, tmp_path), tmp_path / "state" / "history"
    task = asyncio.create_task(history.run())
    async with asyncio.timeout(20):
        while _samples(directory) < 12:
            await asyncio.sleep(0.02)
    task.cancel()
    history.save()
    (found,) = gather_days(read_usage_days(directory))
    assert (found.workload, found.runs, found.peak_bytes) == (workload, 1, 3 * GIB)
    questions = (tmp_path / "squeue.asked").read_text().splitlines()
    assert len(questions) <= 2, "Slurm is asked once, and once more where it speaks no JSON"
    assert run(["rightsize", "--history", str(directory), "-o", "patch"]) in (0, 3)
    capsys.readouterr()
    await hardware.close()


async def test_a_job_is_told_by_its_number_where_its_cgroup_has_its_sluid(tmp_path: Path) -> None:
    squeue(tmp_path, "squeue: error", code=1)
    hardware = await hardware_with_a_job("s5K1KKYAYG5D00")
    use = JobUsageObserver(hardware, SlurmControl(tmp_path, {}), "g1", tmp_path)
    with JobRecords(tmp_path, make=True) as records:
        records.put(JobRecord(JobId(7), 1000, (), "anna", sluid="s5K1KKYAYG5D00"))
    found = await use.look()
    assert found is not None
    assert [job.job for job in found.use.jobs] == ["7"]
    assert use.names_now() == {"7": JobName("anna", "")}
    await hardware.close()


async def test_a_job_whose_record_cannot_be_read_is_one(tmp_path: Path) -> None:
    """It has GPUs, and nobody knows which: its use is kept all the same."""
    hardware = await hardware_with_a_job("job_7")
    use = JobUsageObserver(hardware, SlurmControl(tmp_path, {}), "g1", tmp_path)
    with JobRecords(tmp_path, make=True):
        assert not use.wanted()
        (tmp_path / "jobs" / "7.json").write_text("{")
    assert use.wanted()
    await hardware.close()


def _samples(directory: Path) -> int:
    days = read_usage_days(directory) if list(directory.glob("*.json")) else ()
    return sum(row.samples for day in days for row in day.workloads)
