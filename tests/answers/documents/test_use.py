"""What the report says of the use of GPUs: from samples that were taken anyway, and never asked for."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.agent.observers.containers import NodeContainers
from partage.agent.observers.usage import UsageObserver
from partage.agent.options import Intervals
from partage.agent.status.readiness import Readiness
from partage.agent.status.status import AgentStatus, UseSeen
from partage.answers.documents.report import ReportDocument
from partage.answers.documents.use import FRESH_S
from partage.answers.report import ReportFile, report_document
from partage.cli.main import run
from partage.codec.values import encode_replacing
from partage.model.ids import GpuUuid, ResourceName
from partage.model.samples import GpuSample, Samples
from partage.plan.serve.ledger import Ledger
from partage.plan.usage import MINUTES, LastHour, with_samples
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.web.node_views import IdleGpus, idle_gpus
from tests.answers.reports import a_document, a_report
from tests.web.sample_nodes import mixed

SHARED = ResourceName("nvidia.com/gpu.shared")
POLICY = "version: partage/v1\ngpus: [{select: {index: [0, 1]}, time-slicing: {replicas: 4}}]\n"
NOW_S = 60_000.0


class CountedHardware(SimulatedHardware):
    """Counts how often it is asked to sample."""

    asked = 0

    async def samples(self) -> Samples:
        self.asked += 1
        return await super().samples()


class Agent:
    """What an agent has of use, on a simulated node."""

    def __init__(self, tmp_path: Path) -> None:
        self.now_s = NOW_S
        self.hardware = CountedHardware(load_machine("4xa100-sxm4-40gb"))
        containers = NodeContainers(
            self.hardware,
            Ledger(),
            tmp_path / "logs",
            lambda: self.now_s,
            lambda: None,
            Intervals(),
            lambda: True,
        )
        self.usage = UsageObserver(containers, offer=dict)
        report = a_report("4xa100-sxm4-40gb", POLICY, NOW_S)
        self.status = AgentStatus(lambda: self.now_s, report, pulse_s=NOW_S)
        self.status.use_seen = lambda: self.usage.seen
        self.file = tmp_path / "report.json"

    def document(self) -> ReportDocument:
        assert self.status.report is not None
        return report_document(self.status.report, self.status, Readiness((), ()))


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


async def test_whoever_reads_the_report_has_nothing_sampled(agent: Agent) -> None:
    file = ReportFile(agent.status, Intervals(), agent.file)
    for _ in range(100):
        agent.now_s += 60.0
        use = agent.document().use
        assert file.renew() == ""
    assert agent.hardware.asked == 0
    assert use is not None
    assert (use.sampled_at, use.gpus, use.hour) == (None, (), {})


async def test_what_was_sampled_for_somebody_else_is_told_with_its_hour(agent: Agent) -> None:
    for _ in range(3):
        await agent.usage.look()  # as the history of use does
        agent.now_s += 60.0
    agent.now_s -= 60.0
    use = agent.document().use
    assert agent.hardware.asked == 3
    assert use is not None
    assert use.sampled_at is not None
    assert [one.gpu for one in use.gpus] == [gpu.uuid for gpu in agent.document().gpus]
    assert use.gpus[0].memory_used_bytes == 0
    hour = use.hour[use.gpus[0].gpu]
    assert [one is not None for one in hour.utilisation] == [False] * (MINUTES - 3) + [True] * 3
    assert hour.memory_used_bytes[-3:] == (0, 0, 0)


async def test_figures_that_are_old_are_not_told_as_present_ones(agent: Agent) -> None:
    await agent.usage.look()
    agent.now_s += FRESH_S + 1
    use = agent.document().use
    assert use is not None
    assert use.gpus == ()
    assert use.sampled_at is not None, "since then it was not sampled"
    assert use.hour, "the hour is still known"


async def test_the_file_is_written_once_a_minute_while_somebody_samples(agent: Agent) -> None:
    file = ReportFile(agent.status, Intervals(), agent.file)
    written = []
    for _ in range(12):  # every 10 seconds, for two minutes
        await agent.usage.look()
        written.append(file.is_outdated())
        assert file.renew() == ""
        agent.now_s += 10.0
        agent.status.pulse_s = agent.now_s
    assert written == [True, *[False] * 5, True, *[False] * 5]
    agent.now_s += 3600.0
    agent.status.pulse_s = agent.now_s
    assert not file.is_outdated(), "nobody samples: nothing is written"


def test_the_hour_of_sixteen_gpus_is_small() -> None:
    gpus = [GpuUuid(f"GPU-{number}") for number in range(16)]
    tracemalloc.start()
    hour: LastHour = {}
    for minute in range(3 * MINUTES):
        samples = Samples(gpus=tuple(GpuSample(gpu=gpu, utilisation=minute / 1000) for gpu in gpus))
        hour = with_samples(hour, samples, 60.0 * minute)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(rows) for rows in hour.values()] == [MINUTES] * 16
    assert size < 16 * 16 * 1024


# --- held and idle -------------------------------------------------------------------------------


def idle_document(
    busy: dict[int, float | None], minutes: int = MINUTES, held_for_s: float = 9000.0
) -> ReportDocument:
    """A node with shares of GPUs 0 and 1 held. busy: GPU index to its utilisation in the last minutes."""
    held, pods = {SHARED: (0, 4)}, [("a", "b", "c")] * 2
    report = a_report("4xa100-sxm4-40gb", POLICY, NOW_S, held=held, pods=pods, held_for_s=held_for_s)
    uuids = [gpu.uuid for gpu in report.node.inventory.gpus]
    samples = Samples(gpus=tuple(GpuSample(uuids[gpu], utilisation=part) for gpu, part in busy.items()))
    hour: LastHour = {}
    for minute in range(minutes - 1, -1, -1):
        hour = with_samples(hour, samples, NOW_S - 60 * minute)
    return a_document(report, used=UseSeen(0.0, NOW_S if minutes else None, None, hour))


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (idle_document({0: 0.0, 1: 0.0, 2: 0.0}), IdleGpus((0, 1), ())),
        (idle_document({0: 0.0, 1: 0.3, 2: 0.0}), IdleGpus((0,), ())),
        (idle_document({0: 0.0, 1: None}), IdleGpus((0,), (1,))),
        (idle_document({0: 0.0, 1: 0.5}, minutes=20), IdleGpus((), (0,))),
        (idle_document({0: 0.0, 1: 0.0}, held_for_s=600.0), IdleGpus()),
        (idle_document({}, minutes=0), IdleGpus((), (0, 1))),
    ],
    ids=["both", "one works", "not measured", "sampled for 20 minutes", "held for 10 minutes", "not sampled"],
)
def test_a_gpu_is_idle_that_was_held_and_sampled_for_an_hour_and_never_worked(
    document: ReportDocument, expected: IdleGpus
) -> None:
    assert idle_gpus(document) == expected


def test_an_agent_that_tells_no_use_has_no_idle_gpus() -> None:
    assert idle_gpus(replace(idle_document({0: 0.0, 1: 0.0}), use=None)) == IdleGpus((), (0, 1))


def _told(capsys: pytest.CaptureFixture[str], run_dir: Path, document: ReportDocument) -> str:
    (run_dir / "report.json").write_bytes(encode_replacing(document))
    assert run(["show", "--run-dir", str(run_dir), "--machine", str(run_dir / "machine.yaml")]) == 0
    return capsys.readouterr().out


def test_show_has_a_row_for_each_gpu_and_container_that_was_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = mixed(tmp_path / "machine.yaml")
    assert status.report is not None
    document = report_document(status.report, status, Readiness((), ()))
    assert document.use is not None
    told = _told(capsys, tmp_path, document)
    gpus, containers = told.partition("Use of the GPUs, sampled ")[2].split("Use by containers")
    rows = [line.split() for line in gpus.splitlines()[1:] if line.strip()[:1].isdigit()]
    sampled = [str(gpu.index) for gpu in document.gpus if gpu.index != 7]  # 7 has fallen off the bus
    assert [row[0] for row in rows] == sampled
    assert "0 97 % 71 GiB 71 °C 654 W" in " ".join(rows[0])
    rows = [line.split() for line in containers.splitlines() if "team-a/" in line or "default/" in line]
    assert ["0", "team-a/pretraining-0/main", "71", "GiB", "74", "GiB", "97", "%"] in rows


def test_show_says_since_when_nobody_has_sampled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = mixed(tmp_path / "machine.yaml")
    assert status.report is not None
    document = report_document(status.report, status, Readiness((), ()))
    assert document.use is not None
    old = replace(document, use=replace(document.use, gpus=(), containers=(), hour={}))
    told = " ".join(_told(capsys, tmp_path, old).split())
    assert f"Use of the GPUs: not sampled since {document.use.sampled_at}. The agent samples while" in told
    assert "Use by containers" not in told
    assert "Use of the GPUs" not in _told(capsys, tmp_path, replace(document, use=None))
