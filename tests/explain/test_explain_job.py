"""``partage explain job`` with what real Slurms have answered."""

import json
from pathlib import Path

import pytest

from partage.cli.main import run
from partage.model.ids import GpuUuid
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.slurm.host.job_records import JobRecords
from partage.slurm.model import GresName, JobDevice, JobId, JobRecord


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Cells of a table that are folded cannot be found in its text."""
    monkeypatch.setenv("COLUMNS", "220")


RECORDED = Path(__file__).parent / "decide" / "recorded"
GIB = 2**30


@pytest.fixture(params=["22.05.8", "24.11.5"])
def slurm(request, tmp_path):
    """Options that make the verb ask programs which say what that release said."""
    answers = {name: RECORDED / f"{name}-{request.param}" for name in ("squeue", "nodes", "config")}
    (tmp_path / "squeue").write_text(f"#!/bin/sh\ncat {answers['squeue']}.json\n")
    shows = f"case $2 in config) cat {answers['config']}.txt;; *) cat {answers['nodes']}.txt;; esac\n"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{shows}")
    for name in ("squeue", "scontrol"):
        (tmp_path / name).chmod(0o755)
    first = json.loads(answers["squeue"].with_suffix(answers["squeue"].suffix + ".json").read_text())["jobs"][
        0
    ]
    return first["job_id"], ["--slurm-bin", str(tmp_path), "--run-dir", str(tmp_path / "run")]


def test_a_job_that_runs_and_what_the_prolog_has_noted(slurm, tmp_path, capsys):
    number, options = slurm
    assert run(["explain", "job", str(number), *options, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (held,) = document["holds"]
    assert (document["standing"], held["gres"], held["index"], held["guarantee"]) == (
        "runs",
        "mps:60",
        1,
        None,
    )
    assert "is noted on the node of the job" in held["why"]
    gpu = GpuUuid("GPU-00000000-0000-0000-0000-000000000000")
    device = JobDevice(
        index=1, name="0", uuid=gpu, gpu=gpu, type="h100", strategy=Strategy.MPS, gres=GresName.MPS,
        memory_bytes=48 * GIB, total_bytes=80 * GIB, guarantee=Guarantee.ADVISORY, units=60, units_of=100,
    )  # fmt: skip
    with JobRecords(tmp_path / "run", make=True) as records:
        records.put(JobRecord(JobId(number), 0, (device,)))
    assert run(["explain", "job", str(number), *options]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "It runs on g1, since 2026-11-22T23:1" in out
    assert "g1 1 (0) mps:60 of 100 48 GiB advisory a tenant can lift the limit" in out
    with JobRecords(tmp_path / "run", make=True) as records:
        records.put(JobRecord(JobId(number), 0, (device,), refused="another user has the GPU"))
    assert run(["explain", "job", str(number), *options]) == 1
    assert "It was started, and does not run: another user has the GPU." in capsys.readouterr().out


def test_a_job_whose_record_cannot_be_read(slurm, tmp_path, capsys):
    """It was noted here, so nobody is sent to another node for it."""
    number, options = slurm
    with JobRecords(tmp_path / "run", make=True):
        (tmp_path / "run" / "jobs" / f"{number}.json").write_text("{")
    assert run(["explain", "job", str(number), *options, "-o", "json"]) == 0
    (held,) = json.loads(capsys.readouterr().out)["holds"]
    assert held["why"].startswith(f"{tmp_path}/run/jobs/{number}.json cannot be read: ")
    assert (held["gres"], held["guarantee"]) == ("mps:60", None)


def test_a_job_that_waits(slurm, capsys):
    number, options = slurm
    assert run(["explain", "job", str(number + 4), *options]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"Job {number + 4} of root in partition all asks for gpu:h100:1. It waits:" in out
    assert f"held by job {number + 1} (root, gpu:h100:1)" in out
    assert "Slurm says: Priority." in out
    assert "What to do: wait; sprio" in out


def test_jobs_that_are_not_there(slurm, capsys, tmp_path):
    _, options = slurm
    assert run(["explain", "job", "7", *options]) == 3
    assert "sacct -j 7" in capsys.readouterr().err
    assert run(["explain", "job", "7_1", *options]) == 2
    assert "is not the number of a job" in capsys.readouterr().err
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    assert run(["explain", "job", "7", *options]) == 5
