"""The options of ``partage agent --slurm``, what keeps it from starting, and when it counts as stopped."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from partage.agent.options import AgentOptions, Intervals
from partage.agent.status.status import AgentStatus
from partage.cli.main import run
from partage.model.health import HealthState
from partage.sim.node.faults import RaiseXid, ResetGpu
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.slurm.agent import service
from partage.slurm.agent.options import Pace, SlurmOptions
from partage.slurm.model import SlurmVersion
from tests.slurm.agent.test_metrics import Ask, served

MACHINE = "1xh100-sxm5-80gb"
SLURM = ["agent", "--slurm", "--machine", MACHINE, "--slurm-version", "24.11.5"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["agent", "--slurm-node", "g1"], "--slurm-node needs --slurm"),
        ([*SLURM, "--slurm-settings", "CPUs=4"], "needs --slurm-writes shared"),
        ([*SLURM, "--slurm-node", "../g1"], "is not the name of a node"),
        ([*SLURM, "--slurm-node", "g[1-2]"], "is not the name of a node"),
        ([*SLURM, "--slurm-version", "new"], "is not a version of Slurm"),
        ([*SLURM, "--slurm-writes", "shared", "--slurm-settings", "Gres=gpu:1"], "written by Partage"),
    ],
)
def test_options_that_do_not_go_together(words, said, capsys, tmp_path):
    assert run([*words, "--state-dir", str(tmp_path / "s"), "--run-dir", str(tmp_path / "r")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_gres_conf_of_somebody_else_stays(capsys, tmp_path):
    conf = tmp_path / "gres.conf"
    conf.write_text("Name=gpu File=/dev/nvidia0\n")
    where = [
        "--slurm-dir",
        str(tmp_path),
        "--state-dir",
        str(tmp_path / "s"),
        "--run-dir",
        str(tmp_path / "r"),
    ]
    assert run([*SLURM, *where]) == 2
    assert "Partage did not write it" in capsys.readouterr().err
    assert conf.read_text() == "Name=gpu File=/dev/nvidia0\n"


class ComputeNode(Struct):
    """A compute node with its agent. ask: its pages."""

    hardware: SimulatedHardware
    status: AgentStatus
    ask: Ask


def run_agent(
    home: Path, hardware: SimulatedHardware, stop: asyncio.Event, **given: Any
) -> Coroutine[None, None, None]:
    """The agent of a compute node. given: intervals, ``pace``, ``status`` and ``beside``."""
    pace, status, beside = (given.pop(key, None) for key in ("pace", "status", "beside"))
    options = AgentOptions(
        state_dir=home / "state",
        run_dir=home / "run",
        policy=home / "policy.yaml",
        intervals=Intervals(policy_s=0.05, **given),
    )
    slurm = SlurmOptions(
        "g1", SlurmVersion(24, 11, 5), home, home / "devices.json", programs=home, pace=pace or Pace()
    )
    return service.run(options, slurm, hardware, stop=stop, status=status, beside=beside)


@asynccontextmanager
async def compute_node(home: Path, **given: Any) -> AsyncIterator[ComputeNode]:
    """The agent of a compute node on simulated GPUs, with its pages. given: as in ``run_agent``. A scontrol
    that waits for the file ``answer``."""
    scontrol = home / "scontrol"
    scontrol.write_text(f"#!/bin/sh\nread line <{home}/answer\nexit 1\n")
    scontrol.chmod(0o755)
    os.mkfifo(home / "answer")
    (home / "policy.yaml").write_text("version: partage/v1\n")
    hardware, stop = SimulatedHardware(load_machine(MACHINE)), asyncio.Event()
    asked = asyncio.get_running_loop().create_future()
    intervals = Intervals(**{key: value for key, value in given.items() if key.endswith("_s")})

    async def beside(status: AgentStatus) -> None:
        with served(status, intervals) as ask:
            asked.set_result(ComputeNode(hardware, status, ask))
            await asyncio.Event().wait()

    agent = asyncio.create_task(run_agent(home, hardware, stop, beside=beside, **given))
    with (home / "answer").open("r+b", buffering=0) as answer:  # both ends: neither waits for the other
        try:
            async with asyncio.timeout(20):
                yield await asked
        finally:
            answer.write(b"\n" * 100)
            stop.set()
            await agent
            await hardware.close()


async def _until(code: int, ask: Ask, page: str = "/livez") -> str:
    while True:
        said, body = await asyncio.to_thread(ask, page)
        if said == code:
            return body
        await asyncio.sleep(0.02)


async def test_livez_is_503_when_the_event_loop_has_stopped(tmp_path: Path) -> None:
    """It is answered by a thread of its own, as Slurm's health check needs it."""
    async with compute_node(tmp_path, stalled_s=0.5) as node:
        ask = node.ask
        await _until(200, ask)
        found: list[str] = []

        def look() -> None:
            code = 200
            while code == 200:
                code, body = ask("/livez")
            found.append(body)

        asks = threading.Thread(target=look)
        asks.start()
        asks.join(10)  # nothing else happens in the loop meanwhile
        assert "the agent's loop has not moved for" in found[0]
        await _until(200, ask)


async def test_livez_is_503_when_the_agent_no_longer_looks_at_slurm(tmp_path: Path) -> None:
    """The event loop moves, and one look never ends."""
    async with compute_node(tmp_path, pace=Pace(turn_s=0.5, answer_s=60.0)) as node:
        for page in ("/livez", "/healthz"):
            assert "the agent has not looked at Slurm" in await _until(503, node.ask, page)


async def test_it_serves_its_report_and_a_page(tmp_path: Path) -> None:
    async with compute_node(tmp_path) as node:
        code, text = await asyncio.to_thread(node.ask, "/report.json")
        report = json.loads(text)
        assert (code, report["kind"], report["policy"]["state"]) == (200, "Report", "file")
        (gpu,) = report["gpus"]
        assert (gpu["health"]["state"], gpu["phase"], gpu["strategy"]) == ("healthy", "settled", "exclusive")
        assert (report["resources"], report["plannedFrom"]) == ([], None), "no kubelet is offered anything"
        code, text = await asyncio.to_thread(node.ask, "/")
        assert (code, "g1" in text, gpu["uuid"] in text) == (200, True, True)

        await node.hardware.inject(RaiseXid(0, 109))
        await node.status.until(lambda said: not said.gpus[0].health.state.offered)
        body = await _until(200, node.ask, "/healthz")
        assert [one["code"] for one in json.loads(body)["degraded"]] == ["gpu-unhealthy"]


async def test_why_slurm_waits_is_in_the_report(tmp_path: Path) -> None:
    async with compute_node(tmp_path) as node:
        (tmp_path / "scontrol").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "answer").write_text("\n")  # for the look that waits
        await node.status.until(lambda said: bool(said.slurm_waits))
        degraded = json.loads((await asyncio.to_thread(node.ask, "/report.json"))[1])["degraded"]
        assert [one["code"] for one in degraded] == ["slurm-waits"]


SICK = """
import asyncio, sys, time
from pathlib import Path
from partage.agent.status.status import AgentStatus
from partage.sim.node.faults import RaiseXid
from partage.model.health import HealthState
from partage.sim.node.faults import RaiseXid, ResetGpu
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.slurm.test_slurm_agent import MACHINE, run_agent

async def main():
    hardware = SimulatedHardware(load_machine(MACHINE))
    status = AgentStatus(time.monotonic)
    agent = asyncio.create_task(run_agent(Path(sys.argv[1]), hardware, asyncio.Event(), status=status))
    await status.until(lambda report: True)
    await hardware.inject(RaiseXid(0, 109))
    await agent

asyncio.run(main())
"""


async def test_a_gpu_stays_unhealthy_although_the_agent_was_killed(tmp_path: Path) -> None:
    """The next agent knows it until there is proof: the GPU itself looks well."""
    (tmp_path / "policy.yaml").write_text("version: partage/v1\n")
    state = tmp_path / "state" / "state.json"
    killed = subprocess.Popen([sys.executable, "-c", SICK, str(tmp_path)])
    try:
        async with asyncio.timeout(20):
            while not (state.exists() and '"unhealthy"' in state.read_text()):
                assert killed.poll() is None
                await asyncio.sleep(0.02)
    finally:
        killed.kill()
        killed.wait()
    async with compute_node(tmp_path) as node:
        assert node.status.report is not None
        (gpu,) = node.status.report.gpus
        assert (gpu.health.state, gpu.health.reason) == (
            HealthState.UNHEALTHY,
            "XID 109 (context switch timeout)",
        )
        await node.hardware.inject(ResetGpu(0))
        await node.status.until(lambda report: report.gpus[0].health.state is HealthState.PROBATION)
