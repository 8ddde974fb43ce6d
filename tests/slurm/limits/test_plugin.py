"""The plugin's calls against real cgroups of version 2: which are limited, and what it does not believe."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.edges.cdi.limit_hook.node import CgroupNode, Kept, kept_limits
from tests.edges.hardware.stub import StubNode

pytestmark = pytest.mark.real  # it is compiled with Slurm's headers
TREE = f"/partage-test-spank-{os.getpid()}"
JOB, STEP, LEAF = f"{TREE}/job_71", f"{TREE}/job_71/step_0/slurm", f"{TREE}/job_71/step_0/user/task_0"
GPU, OTHER = StubNode.uuid(0), StubNode.uuid(1)
LIMIT = 8 << 30
ONE = f"1 job\n{GPU}={LIMIT}\n"


@pytest.fixture(scope="module")
def stepd(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for slurmstepd."""
    program = tmp_path_factory.mktemp("spank") / "spank"
    source = Path(__file__).with_name("spank.c")
    flags = ["-Wall", "-Wextra", "-Werror", "-rdynamic"]
    subprocess.run(["cc", *flags, "-o", program, source, "-ldl"], check=True)
    return program


@pytest.fixture(scope="module")
def cgroups() -> Iterator[CgroupNode]:
    """A node with cgroup v2."""
    node = CgroupNode()
    yield node
    node.close()


class Step:
    """A step of job 71, in which one task waits to begin."""

    def __init__(self, node: CgroupNode, stepd: Path, built: Path, driver: StubNode, run_dir: Path) -> None:
        self.node, self.stepd, self.built, self.driver, self.run_dir = node, stepd, built, driver, run_dir
        self.records = run_dir / "jobs"
        self.records.mkdir(parents=True)

    def begins(self, *, place: str = STEP, leaf: str = LEAF, task: bool = True, options: str = "") -> str:
        """What is said; empty: the task begins."""
        with self.node.process_in(leaf) as pid:
            words = (
                f"mkdir -p /sys/fs/cgroup{place} && echo $$ >/sys/fs/cgroup{place}/cgroup.procs && exec "
                f"{self.stepd} {self.built}/partage_limits.so 71 {pid if task else '-'} "
                f"run-dir={self.run_dir} hook={self.built}/partage-limit-hook "
                f"driver-root={self.driver.root} {options}"
            )
            ended = self.node.run("sh", "-c", words)
            self.node.remove_cgroup(place)
        assert ended.stderr == ""
        assert ended.returncode == (1 if ended.stdout else 0), ended.stdout
        return ended.stdout.strip().partition("does not begin: ")[2] or ended.stdout

    @property
    def held(self) -> bool:
        return (self.records / "71.held").exists()

    def kept(self) -> list[Kept]:
        return kept_limits(self.driver)


@pytest.fixture
def step(cgroups: CgroupNode, stepd: Path, built: Path, driver: StubNode, tmp_path: Path) -> Step:
    return Step(cgroups, stepd, built, driver, tmp_path / "run")


def test_the_jobs_cgroup_has_the_limit_of_each_gpu(step: Step) -> None:
    (step.records / "71.limits").write_text(f"{ONE}{OTHER}={LIMIT * 2}\n")
    assert step.begins() == ""
    place = f"/sys/fs/cgroup{JOB}"
    assert step.kept() == [Kept(GPU, 0, LIMIT, place), Kept(OTHER, 0, LIMIT * 2, place)]
    assert step.held


def test_a_job_whose_cgroup_is_called_by_its_sluid_has_it(step: Step) -> None:
    """As since Slurm 26.05; its number is what Slurm says."""
    (step.records / "71.limits").write_text(ONE)
    place = f"{TREE}/s5K1KKYAYG5D00"
    assert step.begins(place=f"{place}/step_0/slurm") == ""
    assert step.kept() == [Kept(GPU, 0, LIMIT, f"/sys/fs/cgroup{place}")]


def test_where_limits_nest_the_tasks_leaf_has_it_too(step: Step) -> None:
    (step.records / "71.limits").write_text(f"1 job task\n{GPU}={LIMIT}\n")
    assert step.begins() == ""
    assert [row.directory for row in step.kept()] == [f"/sys/fs/cgroup{JOB}", f"/sys/fs/cgroup{LEAF}"]


def test_an_extern_step_has_the_jobs_limit(step: Step) -> None:
    """Whoever comes to the job by ssh is in it."""
    (step.records / "71.limits").write_text(f"1 job task\n{GPU}={LIMIT}\n")
    assert step.begins(place=f"{JOB}/step_extern/slurm", task=False) == ""
    assert [row.directory for row in step.kept()] == [f"/sys/fs/cgroup{JOB}"]


def test_a_job_without_limits_is_left_alone(step: Step) -> None:
    (step.records / "7.limits").write_text(ONE)
    (step.records / "711.limits").write_text("garbage")
    assert (step.begins(), step.kept(), step.held) == ("", [], False)
    step.records.rename(step.run_dir / "elsewhere")
    assert (step.begins(place=f"{TREE}/elsewhere"), step.kept()) == ("", [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "71.limits is damaged"),
        ("1 job\n", "71.limits is damaged"),
        ("2 job\n" + ONE, "71.limits is damaged"),
        (ONE + "\0", "71.limits is damaged"),
        ("1 job\n" + "x\n" * 100, "71.limits is damaged"),
        ("1 job\n" + "x" * 20000, "71.limits is damaged"),
        (f"1 job\n{GPU}=0\n", "is not UUID=BYTES"),
        ("1 job\n--driver-root=/tmp\n", "is not UUID=BYTES"),
        (f"1 job\n../{GPU}=1\n", "is not UUID=BYTES"),
        (f"1 job\n{GPU}={LIMIT}\n{GPU}={LIMIT}\n", "is named twice"),
        (f"1 job\nGPU-{'0' * 30}={LIMIT}\n", "looking for the GPU"),
        (f"1 job\n{GPU}={1 << 50}\n", "more than the GPU has?"),
    ],
)
def test_what_is_damaged_lets_nothing_begin(step: Step, text: str, said: str) -> None:
    (step.records / "71.limits").write_text(text)
    assert said in step.begins()
    assert not step.held


def test_what_somebody_else_could_write_is_not_believed(step: Step) -> None:
    file = step.records / "71.limits"
    file.write_text(ONE)
    file.chmod(0o664)
    assert "is not a file that root alone can write to" in step.begins()
    file.chmod(0o644)
    os.chown(file, 65534, 65534)
    assert "is not a file that root alone can write to" in step.begins()
    file.rename(step.run_dir / "real")
    file.symlink_to(step.run_dir / "real")
    assert "71.limits cannot be read" in step.begins()
    file.unlink()
    os.mkfifo(file, 0o644)
    assert "is not a file that root alone can write to" in step.begins()
    step.records.chmod(0o777)
    assert "is not a directory that root alone can write to" in step.begins()
    assert step.kept() == []


def test_a_task_outside_of_its_job_does_not_begin(step: Step) -> None:
    (step.records / "71.limits").write_text(f"1 job task\n{GPU}={LIMIT}\n")
    assert "the task is not in the cgroup of its job" in step.begins(leaf=f"{TREE}/job_711/step_0/user")
    assert not step.held


@pytest.mark.parametrize(
    "place", ["other", "job_x/step_0", "job_71/other", "s5K1KKYAYG5D0i/step_0", "job_71x/step_0"]
)
def test_a_step_that_has_no_cgroup_of_a_job_does_not_begin(step: Step, place: str) -> None:
    """As with cgroups of version 1, or processes that Slurm tracks in another way."""
    (step.records / "71.limits").write_text(ONE)
    assert "the step is in no cgroup of version 2: write CgroupPlugin=cgroup/v2" in step.begins(
        place=f"{TREE}/{place}"
    )
    assert step.kept() == []


def test_what_the_driver_refuses_is_said(step: Step) -> None:
    (step.records / "71.limits").write_text(ONE)
    step.driver.write(**{"fail.nvmlDeviceSetMemoryLimits_v1": 3})
    assert "needs driver branch 615" in step.begins()
    step.driver.write(**{"fail.nvmlDeviceSetMemoryLimits_v1": None})
    assert step.begins() == ""


def test_options_are_checked(step: Step) -> None:
    (step.records / "71.limits").write_text(ONE)
    assert "'rundir=/x', which partage_limits.so does not know" in step.begins(options="rundir=/x")
    assert "/nowhere cannot be started" in step.begins(options="hook=/nowhere")
    assert "is no directory" in step.begins(options="run-dir=relative")
    assert "libnvidia-ml.so.1 is not below /nowhere" in step.begins(options="driver-root=/nowhere")
