"""The history of use of a real agent with short intervals: what it keeps, and what survives what."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from partage.agent.observers.usage import HistoryObserver
from partage.agent.options import Intervals
from partage.agent.status.status import UsageObservation
from partage.cli.main import run
from partage.edges.files.usage_days import UsageDays, date_of, read_usage_days
from partage.model.ids import GpuUuid
from partage.model.samples import Samples
from partage.model.usage_day import UsageDay
from partage.plan.serve.ledger_entry import Holder
from partage.plan.usage import ContainerUse, DeviceUse, NodeUse
from partage.rightsize.decide import gather_days
from partage.sim.node.faults import Vacate
from partage.units import GIB
from tests.agent.harness import (
    REPOSITORY,
    AgentProcess,
    Place,
    SimulatedHelper,
    registered,
    running,
    simulated_helper,
)
from tests.agent.tenants import HOLDERS, TRAIN, UIDS, write_logs
from tests.kubelet_script import ScriptedKubelet, held

RESOURCE = "nvidia.com/gpu"
SHORT = """
import sys
from functools import partial
from partage.agent.options import AgentOptions, Intervals
from partage.cli import agent
from partage.cli.main import run
short = Intervals(usage_s=0.05, history_s=0.1, history_write_s=0.2, holders_s=0.1, holders_first_s=0.05)
agent.AgentOptions = partial(AgentOptions, intervals=short)
sys.exit(run(sys.argv[1:]))
"""
"""The agent as it is, with other intervals, which have no option."""


@contextmanager
def agent_of(node: Place, *options: str) -> Iterator[AgentProcess]:
    command = [sys.executable, "-c", SHORT, "agent", *node.options(), *options]
    command += [f"--hardware-socket={node.hardware_socket}", "--http=127.0.0.1:0", "--node-name=node-a"]
    pipe = subprocess.PIPE
    agent = AgentProcess(
        process=subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=REPOSITORY)
    )
    agent.read()
    with running(agent):
        yield agent


@pytest.fixture
def helper(node: Place) -> Iterator[SimulatedHelper]:
    """One H100, and a container whose memory goes from 2 to 6 GiB and back."""
    load = {"shape": "wave", "to": "6Gi", "busy": "20%", "every-s": 2}
    process = {
        "gpu": 0, "used-by": "train", "pid": 4242, "memory": "2Gi", "container": str(TRAIN),
        "pod": str(UIDS[TRAIN]), "load": load, "after-calls": 0,
    }  # fmt: skip
    machine = node.root / "machine.json"
    machine.write_text(json.dumps({"gpus": [{"name": "NVIDIA H100 80GB HBM3"}], "faults": [process]}))
    write_logs(node.container_logs)
    with simulated_helper(node, str(machine)) as made:
        yield made


def hold(kubelet: ScriptedKubelet) -> None:
    """The container holds the GPU."""
    watch = registered(kubelet, RESOURCE).watch
    assert watch is not None
    (gpu,) = watch.health
    holder = HOLDERS[TRAIN]
    kubelet.pod_resources = held({f"{holder.namespace}/{holder.pod}": {holder.container: {RESOURCE: [gpu]}}})


def days(node: Place) -> tuple[UsageDay, ...]:
    path = node.state_dir / "history"
    return read_usage_days(path) if path.exists() and list(path.glob("*.json")) else ()


def samples(node: Place) -> int:
    return sum(row.samples for day in days(node) for row in day.workloads)


def rightsize(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["rightsize", *arguments, "-o", "json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_from_a_container_to_its_right_size_over_a_kill_and_a_restart(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper, capsys: pytest.CaptureFixture[str]
) -> None:
    with agent_of(node) as agent:
        hold(kubelet)
        agent.wait(lambda: samples(node) >= 20, "twenty samples on the disk")
        agent.kill()
    before = samples(node)
    assert before >= 20, "the last write stays"
    with agent_of(node) as agent:
        hold(kubelet)
        agent.wait(lambda: samples(node) > before + 5, "the next agent goes on")
        status, answer = agent.get("/history.json")
        assert status == 200
        helper.inject(Vacate(0, "train"))
        assert agent.stop() == 0
    (node.root / "fleet" / "node-a").mkdir(parents=True)
    copied = node.root / "fleet" / "node-a" / "history.json"
    copied.write_bytes(answer)
    for arguments in (
        ["--history", "--state-dir", str(node.state_dir)],
        ["--history", str(node.state_dir)],
        ["--history", str(copied.parent.parent)],
    ):
        found = rightsize(capsys, *arguments)
        (train,) = found["workloads"]
        assert found["gpu"] == "H100 80GB HBM3"
        assert "1 node" in found["source"]
        assert train["name"] == "team/train/main"
        assert train["runs"] == 1, "one container, two agents"
        assert 5.5 * GIB < train["peakBytes"] <= 6 * GIB
        assert train["confidence"] == "low", "some seconds are little"
        assert any("coarse" in risk for risk in train["risks"])
        assert train["smP95"] == 0.2


def test_a_damaged_file_is_set_aside_and_a_full_disk_does_not_stop_the_agent(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    directory = node.state_dir / "history"
    directory.mkdir(parents=True)
    today = directory / f"{date_of(time.time())}.json"
    today.write_text('{"date": "2026-')
    with agent_of(node) as agent:
        hold(kubelet)
        agent.wait(lambda: samples(node) >= 3, "a new file")
        assert today.with_suffix(".corrupt").read_text() == '{"date": "2026-'
        assert any("set aside as" in line for line in agent.log)
        # No file can be made where a directory is: as with a disk that is full, also for root.
        beside = directory / f"{today.name}.new"
        beside.mkdir()
        agent.wait(lambda: "history-not-saved" in agent.degraded(), "it is said")
        assert agent.health()[0] == 200
        assert agent.metric('partage_dependency_up{dependency="history"}') == 0
        beside.rmdir()
        agent.wait(lambda: "history-not-saved" not in agent.degraded(), "it is written again")
        assert agent.stop() == 0


def test_without_a_history_nothing_is_kept_and_nothing_is_asked(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    with agent_of(node, "--history=0") as agent:
        hold(kubelet)
        agent.wait(lambda: agent.metric(f'partage_shares_held{{certainty="observed",resource="{RESOURCE}"}}'))
        status, answer = agent.get("/history.json")
        assert (status, b"--history 0" in answer) == (404, True)
        assert agent.stop() == 0
    assert not (node.state_dir / "history").exists()


def names(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.iterdir())


def test_old_days_leave_and_days_to_come_are_bounded(tmp_path: Path) -> None:
    directory = tmp_path / "history"
    directory.mkdir()
    for date in ("2026-01-01", "2026-11-19", "2026-11-20", "2026-11-21", "2099-01-01", "2099-99-99"):
        (directory / f"{date}.json").write_text("{}")
    assert UsageDays(tmp_path, keep_days=3).write(UsageDay("2026-11-22", "node-a", 30.0)) == ""
    assert names(directory) == ["2026-11-21", "2026-11-22", "2099-01-01"]
    one = UsageDays(tmp_path, keep_days=1)
    assert one.write(UsageDay("2026-11-22", "node-a", 30.0)) == ""
    assert names(directory) == ["2026-11-22"]


async def test_a_day_ends_at_midnight_and_a_clock_that_is_set_back_continues_the_day_before(
    tmp_path: Path,
) -> None:
    holder = Holder("team", "train-0", "main")
    used = ContainerUse(GpuUuid("GPU-1"), GpuUuid("GPU-1"), holder, DeviceUse(GIB, 2 * GIB), shares=1)
    midnight = 20_000 * 86_400.0
    moments = iter((midnight - 30, midnight - 1, midnight + 29, midnight + 59, midnight - 10))
    now_s, asked, last = midnight - 60, 0.0, asyncio.Event()

    async def look() -> UsageObservation:
        nonlocal now_s, asked
        asked += 1.0
        now_s = next(moments, now_s)
        if asked > 6:
            last.set()
        return UsageObservation(min(asked, 5.0), Samples(), NodeUse((used,)))

    history = HistoryObserver(
        files=UsageDays(tmp_path, 14),
        node="node-a",
        look=look,
        wanted=lambda: True,
        gpus=lambda: (),
        intervals=Intervals(usage_s=0.01, history_s=0.01, history_write_s=60.0),
        wall=lambda: now_s,
    )
    task = asyncio.create_task(history.run())
    async with asyncio.timeout(20):
        await last.wait()
    task.cancel()
    history.save()
    days = {day.date: day for day in read_usage_days(tmp_path / "history")}
    before, after = date_of(midnight - 1), date_of(midnight)
    counted = {date: [(row.started, row.samples) for row in days[date].workloads] for date in days}
    assert counted == {before: [(1, 3)], after: [(0, 2)]}, "five samples; what is not new is not counted"
    assert not days[after].running
    (found,) = gather_days(days.values())
    assert found.peak_bytes == 2 * GIB
