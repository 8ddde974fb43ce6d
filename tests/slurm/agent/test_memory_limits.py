"""The limits of jobs under the agent of a simulated compute node: read, lost, set again, gone with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.agent.options import AgentOptions, Intervals
from partage.agent.state_writer import StateWriter
from partage.agent.status.readiness import readiness_of
from partage.agent.status.status import AgentStatus
from partage.answers.documents.report import ReportDocument
from partage.answers.render.rows import job_lines, limit_lines
from partage.answers.report import report_document
from partage.cli.main import run
from partage.codec.values import decode, encode
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.state import StateDir
from partage.errors import NotPermitted
from partage.model.dcgm_names import DcgmNames
from partage.model.ids import GpuUuid
from partage.model.share import Guarantee
from partage.plan.report import JobLimit
from partage.plan.serve.ledger_entry import HeldLimit
from partage.serve_http.pages.node_page import node_sections
from partage.sim.node.faults import FailCall, HideProcesses, LoseLimits, Occupy, Vacate
from partage.sim.node.files.machine_file import read_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.slurm.agent.metrics import slurm_metrics_writer
from partage.slurm.agent.options import SlurmOptions
from partage.slurm.agent.service import SlurmService
from partage.slurm.decide.job_limits import NOT_BEGUN
from partage.slurm.host.job_records import JobRecords
from partage.slurm.model import JobId, JobRecord, SlurmVersion
from partage.units import GIB
from tests.slurm.agent.test_history import squeue
from tests.slurm.decide.test_job_limits import job

TEXT = "driver: 615.71.09\nmemory-limits: {backend}\ngpus: [{{name: NVIDIA H100 80GB HBM3}}]"
QUARTER = 20 * GIB
SLUID = "s5K1KKYAYG5D00"


class Node:
    """A compute node with one GPU, and its agent, of which no task runs."""

    def __init__(self, home: Path, backend: str) -> None:
        squeue(home, "squeue: error", code=1)
        self.home, self.machine = home, home / "m.yaml"
        self.machine.write_text(TEXT.format(backend=backend))
        self.hardware = SimulatedHardware(read_machine(self.machine.read_bytes(), "m.yaml"))
        self.options = AgentOptions(state_dir=home / "state", run_dir=home / "run")
        slurm = SlurmOptions("g1", SlurmVersion(26, 5, 5), home, home / "devices.json", programs=home)
        self.status = AgentStatus(time.monotonic, pulse_s=time.monotonic())
        self.directory = StateDir(self.options.state_dir)
        writer = StateWriter(self.directory, self.options.report_file, self.status.clock)
        self.service = SlurmService(self.options, slurm, self.hardware, self.status, writer)
        self.gpu = GpuUuid("")

    async def begin(self) -> None:
        await self.service.hardware.observe()
        async with asyncio.TaskGroup() as group:
            await self.service.first_turn(group)
        self.gpu = self.service.hardware.node.inventory.gpus[0].uuid  # type: ignore[union-attr]

    def record(self, number: int, *, begun: bool = True, sluid: str = "") -> JobRecord:
        """What prolog and plugin have written of a job with one shard."""
        known = job(number, sluid=sluid)
        (device,) = known.devices
        record = replace(known, devices=(replace(device, uuid=self.gpu, gpu=self.gpu),))
        with JobRecords(self.options.run_dir, make=True) as records:
            records.put(record)
        if begun:
            self.set_by_plugin(number)
        return record

    def set_by_plugin(self, number: int) -> None:
        (self.options.run_dir / f"jobs/{number}.held").touch()

    async def works(self, name: str, *, limit_bytes: int | None = QUARTER, used: int = GIB) -> None:
        pid = 4000 + len(self.hardware.state.uses)
        await self.hardware.inject(
            Occupy(0, f"of-{name}", pid=pid, memory_bytes=used, job=name, limit_bytes=limit_bytes)
        )

    async def look(self) -> dict[int, JobLimit]:
        await self.service.memory_limits.look()
        return {row.job: row for row in self.report.jobs}

    @property
    def report(self) -> ReportDocument:
        assert self.status.report is not None
        readiness = readiness_of(self.status, Intervals())
        return decode(ReportDocument, encode(report_document(self.status.report, self.status, readiness)))

    @property
    def metrics(self) -> dict[str, float]:
        """Of memory limits."""
        writer = slurm_metrics_writer(self.status, Intervals(), None, DcgmNames.OFF, "g1")
        rows = [line.rpartition(" ") for line in writer("")[0].decode().splitlines()]
        return {key: float(value) for key, _, value in rows if "memory_limit" in key and key[0] != "#"}

    async def shown(self, capsys: pytest.CaptureFixture[str]) -> str:
        """What ``show`` and the page say."""
        path = self.options.report_file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(self.report))
        capsys.readouterr()
        words = ["show", f"--machine={self.machine}", f"--run-dir={self.options.run_dir}"]
        assert await asyncio.to_thread(run, words) == 0
        page = node_sections(self.report, self.service.hardware.node.inventory, geometry_of)  # type: ignore[union-attr]
        on_page = "".join(str(section) for section in page.values())
        said = " ".join(capsys.readouterr().out.split())
        for line in (*job_lines(self.report.jobs, self.gpu), *limit_lines((), self.report.jobs)):
            assert line in said
            assert line in on_page
        return said


@pytest.fixture(params=["misc", "dmem"])
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path, request.param)
    try:
        await made.begin()
        yield made
    finally:
        made.directory.close()
        await made.hardware.close()


def words(rows: dict[int, JobLimit]) -> dict[int, str]:
    return {number: str(row.guarantee) for number, row in rows.items()}


async def test_hard_is_said_once_the_limit_of_every_job_was_read(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await node.look() == {}, "no job has ever begun"
    node.record(1)
    await node.works("1")
    (row,) = (await node.look()).values()
    assert row.limit == HeldLimit(QUARTER, QUARTER)
    limit = f'partage_job_memory_limit_bytes{{device="{node.gpu}",gpu="{node.gpu}",job="%s"}}'
    assert node.metrics == {limit % 1: QUARTER}
    assert "job 1 of anna: memory limit 20 GiB, hard" in await node.shown(capsys)

    node.record(2, begun=False, sluid=SLUID)
    assert words(await node.look()) == {1: "hard", 2: "none"}, "it has no task"
    assert node.metrics == {limit % 1: QUARTER}
    assert f"the memory limit of job 2, 20 GiB, was not seen in force: {NOT_BEGUN}" in await node.shown(
        capsys
    )
    await node.works(SLUID)
    node.set_by_plugin(2)
    assert words(await node.look()) == {1: "hard", 2: "hard"}
    assert node.metrics == {limit % 1: QUARTER, limit % 2: QUARTER}


async def test_a_lost_limit_is_set_again_late_and_goes_with_the_job(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.record(1)
    await node.works("1")
    await node.look()
    await node.hardware.inject(LoseLimits(0))
    (row,) = (await node.look()).values()
    assert (row.limit, row.guarantee) == (HeldLimit(QUARTER, QUARTER, late=True), Guarantee.HARD)
    assert node.metrics[f'partage_memory_limits_repaired_total{{gpu="{node.gpu}",outcome="set"}}'] == 1
    assert "the memory limit of job 1, 20 GiB, was set late: until then it had none" in await node.shown(
        capsys
    )
    (again,) = (await node.look()).values()
    assert again.limit.late, "as long as the job runs"
    await node.hardware.inject(Vacate(0))
    with JobRecords(node.options.run_dir) as records:
        records.remove(JobId(1))
    assert await node.look() == {}
    assert node.service.memory_limits.late == frozenset()


async def test_what_cannot_be_set_or_read_is_said(node: Node) -> None:
    node.record(1)
    await node.works("1", limit_bytes=None)
    await node.look()
    await node.hardware.inject(FailCall("perform", NotPermitted("no permission")))
    (row,) = (await node.look()).values()
    assert (row.limit.reason, row.guarantee) == ("its cgroup has no limit", Guarantee.NONE)
    assert node.metrics == {f'partage_memory_limits_repaired_total{{gpu="{node.gpu}",outcome="failed"}}': 1}
    await node.hardware.inject(FailCall("limits", NotPermitted("not now")))
    (row,) = (await node.look()).values()
    assert (row.limit.reason, row.guarantee) == ("not now", Guarantee.NONE)
    await node.look()
    (row,) = (await node.look()).values()
    assert (row.limit.late, row.guarantee) == (True, Guarantee.HARD)


async def test_a_record_that_cannot_be_read_is_of_a_job_without_a_limit(node: Node) -> None:
    node.record(1)
    await node.works("1")
    (node.options.run_dir / "jobs/2.json").write_text("{")
    assert words(await node.look()) == {1: "none"}


async def test_before_the_plugin_has_set_it_nothing_is_set(node: Node) -> None:
    """A step has its cgroup a moment before it has its limit: that is not late."""
    node.record(1, begun=False)
    await node.works("1", limit_bytes=None)
    (row,) = (await node.look()).values()
    assert (row.limit.reason, node.metrics) == (NOT_BEGUN, {})


async def test_nor_is_a_later_step_late_whose_cgroup_is_new(node: Node) -> None:
    """The cgroup of a job goes with its last step, and the next one makes another."""
    node.record(1)
    await node.works("1")
    await node.look()
    await node.hardware.inject(Vacate(0))
    await node.look()
    await node.works("1", limit_bytes=None)
    (row,) = (await node.look()).values()
    assert (row.limit.reason, row.guarantee, node.metrics) == ("its cgroup has no limit", Guarantee.NONE, {})
    (row,) = (await node.look()).values()
    assert (row.limit.late, row.guarantee) == (True, Guarantee.HARD), "nobody has set it meanwhile"
    await node.hardware.inject(Vacate(0))
    await node.look()
    await node.works("1")
    (row,) = (await node.look()).values()
    assert row.limit == HeldLimit(QUARTER, QUARTER), "what was late has ended"


async def test_a_job_with_a_sluid_may_be_called_by_its_number(node: Node) -> None:
    """So it is on 25.11, and on 26.05 with CgroupJobIdPaths."""
    node.record(3, sluid=SLUID)
    await node.works("3")
    (row,) = (await node.look()).values()
    assert (row.cgroup, row.guarantee) == ("3", Guarantee.HARD)


async def test_where_records_cannot_be_read_nothing_is_hard_and_no_job_is_forgotten(node: Node) -> None:
    node.record(1)
    await node.works("1")
    await node.look()
    jobs = node.options.run_dir / "jobs"
    jobs.rename(node.options.run_dir / "away")
    jobs.write_text("in the way")
    assert words(await node.look()) == {1: "none"}
    jobs.unlink()
    assert words(await node.look()) == {}
    (node.options.run_dir / "away").rename(jobs)
    assert words(await node.look()) == {1: "hard"}


async def test_where_the_kernel_counts_no_process_is_needed(node: Node) -> None:
    node.record(1)
    await node.works("1", used=3 * GIB)
    await node.look()
    await node.hardware.inject(HideProcesses())
    found = await node.service.use.look()
    assert found is not None
    assert {use.job: use.amount.used_bytes for use in found.use.jobs} == {"1": 3 * GIB}


async def test_the_agent_looks_by_itself(tmp_path: Path) -> None:
    """Nobody tells it of a job."""
    node = Node(tmp_path, "misc")
    await node.begin()
    node.service.memory_limits.intervals = Intervals(watch_s=0.02, look_gap_s=0.01)
    task = asyncio.create_task(node.service.tasks()["memory limits"]())
    node.record(1)
    await node.works("1")
    async with asyncio.timeout(20):
        await node.status.until(lambda report: [row.guarantee for row in report.jobs] == [Guarantee.HARD])
    task.cancel()
    node.directory.close()
    await node.hardware.close()
