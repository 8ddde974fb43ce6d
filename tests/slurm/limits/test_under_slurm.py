"""Memory limits of jobs under a real slurmd with cgroups of version 2: there before a task, gone with it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from partage.model.driver_limit import NO_LIMIT_BYTES
from partage.plan.serve.ledger_entry import HeldLimit
from tests.edges.cdi.limit_hook.node import Kept
from tests.edges.hardware.stub import StubNode
from tests.slurm.lab import BUILDS, Build
from tests.slurm.limits.lab import LimitLab, built_plugin

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.getuid() != 0, reason="cgroups take root"),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare"),
]
LEAF = "user/task_0"


@pytest.fixture(params=BUILDS, scope="module")
def build(request: pytest.FixtureRequest) -> Build:
    """Each Slurm that is here."""
    found: Build = request.param
    return found


@pytest.fixture(scope="module")
def plugin(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plugin for it, and the hook."""
    return built_plugin(tmp_path_factory.mktemp("plugin"), build)


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTAGE_TEST_LIMITS", str(tmp_path))


def test_two_jobs_on_one_gpu_have_their_limits_before_they_begin(
    build: Build, plugin: Path, driver: StubNode, tmp_path: Path
) -> None:
    """That of the whole job, so that many steps have no more; that of the leaf, which programs are shown."""
    told = driver.library.with_name("limits.txt")
    with LimitLab(build, plugin, driver, tmp_path, backend="dmem") as lab:
        outs = [lab.d / f"out-{number}" for number in range(2)]
        look = f"cat {told} /proc/self/cgroup; env | grep PARTAGE_; srun true; sleep 2"
        jobs = [
            lab.batch(f"--gres=shard:{shards}", wrap=look, out=str(out))
            for shards, out in zip((1, 3), outs, strict=True)
        ]
        lab.wait_for(lambda: all(out.exists() and "GUARANTEE" in out.read_text() for out in outs))
        assert len(lab.cgroups()) == len(jobs)
        lab.wait_for(lambda: not lab.job_states() and not lab.records())
        lab.wait_for(lambda: not lab.cgroups())
        left = [path.name for path in (lab.run_dir / "jobs").iterdir() if path.name != ".lock"]
        kept, seen = lab.kept(), [out.read_text() for out in outs]
        size = lab.devices[0].memory_bytes // 2**20 * 2**20
        gpu = lab.devices[0].gpu
    quarter = size // 4 // 2**20 * 2**20

    for bytes_, text in zip(
        (quarter, lab.devices[0].memory_bytes * 3 // 4 // 2**20 * 2**20), seen, strict=True
    ):
        told_before, _, own = text.partition("0::")
        job = own.partition("_slurmstepd.scope/")[2].partition("/")[0]
        of_job = [row for row in kept if row.directory.partition("/")[0] == job]
        assert {row.gpu for row in of_job} == {gpu}
        assert [(row.soft, row.hard) for row in of_job] == [(0, bytes_)] * 4
        assert [row.directory for row in of_job] == [
            job, f"{job}/step_batch/{LEAF}", job, f"{job}/step_0/{LEAF}",
        ]  # fmt: skip
        assert f"{job}/step_batch/{LEAF} 0 {bytes_}" in told_before
        assert "PARTAGE_GUARANTEE=hard" in own
        assert f"PARTAGE_MEMORY_BYTES={bytes_}" in own
    assert left == []


def test_where_limits_do_not_nest_only_the_job_has_one(
    build: Build, plugin: Path, driver: StubNode, tmp_path: Path
) -> None:
    with LimitLab(build, plugin, driver, tmp_path, backend="misc", conf="PrologFlags=Contain") as lab:
        assert lab.environment("--gres=shard:1", "-n2")["PARTAGE_GUARANTEE"] == "hard"
        gpu = lab.devices[0].gpu
        quarter = lab.devices[0].memory_bytes // 4 // 2**20 * 2**20
        (kept,) = set(lab.kept())
        assert kept == Kept(gpu, 0, quarter, kept.directory)
        assert "/" not in kept.directory, "that of the job"
        whole = lab.environment("--gres=gpu:h100_shared:1")
        assert len({row.directory for row in lab.kept()}) == 1
        assert whole["PARTAGE_SHARES"] == "gpu:h100_shared:1"


def test_a_task_without_its_limit_does_not_begin(
    build: Build, plugin: Path, driver: StubNode, tmp_path: Path
) -> None:
    """Its owner reads why, and the node stays in service."""
    driver.write(**{"fail.nvmlDeviceSetMemoryLimits_v1": 4})
    with LimitLab(build, plugin, driver, tmp_path, backend="misc") as lab:
        mark = tmp_path / "began"
        own = tmp_path / "own-task-prolog"
        own.write_text(f"#!/bin/sh\ntouch {mark}\n")
        own.chmod(0o755)
        done = lab.srun("--gres=shard:1", "-n2", f"--task-prolog={own}", "touch", str(mark))
        assert done.returncode == 1
        assert "partage: this job's memory limit cannot be set, so its task does not begin: s" in done.stderr
        assert "the hook has to run as root" in done.stderr
        out = lab.d / "out"
        lab.batch("--gres=shard:1", wrap=f"touch {mark}", out=str(out))
        lab.wait_for(lambda: out.exists() and "not begin" in out.read_text() and not lab.job_states())
        assert not mark.exists()
        assert set(lab.states().values()) <= {"idle", "comp", "plnd"}, "in service"
        driver.write(**{"fail.nvmlDeviceSetMemoryLimits_v1": None})
        assert lab.environment("--gres=shard:1")["PARTAGE_GUARANTEE"] == "hard"


def test_the_agent_reads_the_limit_of_a_job_and_sets_it_again_where_it_was_lost(
    build: Build, plugin: Path, driver: StubNode, tmp_path: Path
) -> None:
    told = driver.library.with_name("limits.txt")
    with LimitLab(build, plugin, driver, tmp_path, backend="misc") as lab, lab.agent() as look:
        assert look() == ((), ())
        job = lab.batch("--gres=shard:1", wrap="sleep 60")
        lab.wait_for((lab.run_dir / f"jobs/{job}.held").exists)
        quarter = lab.devices[0].memory_bytes // 4 // 2**20 * 2**20
        ((row,), (directory,)) = look()
        assert (row.job, row.gpu, row.guarantee) == (job, lab.devices[0].gpu, "hard"), row
        assert row.limit == HeldLimit(quarter, quarter)
        assert [directory.rpartition("/")[2]] == lab.cgroups()
        with told.open("a") as file:
            file.write(f"0 {directory} 0 {NO_LIMIT_BYTES}\n")
        ((row,), _) = look()
        assert row.limit == HeldLimit(quarter, quarter, late=True)
        assert told.read_text().splitlines()[-1] == f"0 {directory} 0 {quarter}"
        lab.run("scancel", str(job))
        lab.wait_for(lambda: not lab.records())
        assert look() == ((), ())
