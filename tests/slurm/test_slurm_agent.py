"""The options of ``partage agent --slurm``, what keeps it from starting, and when it counts as stopped."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from partage.agent.options import AgentOptions, Intervals
from partage.cli.main import run
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.slurm.agent import service
from partage.slurm.agent.options import Pace, SlurmOptions
from partage.slurm.agent.status import SlurmStatus
from partage.slurm.model.version import SlurmVersion
from tests.slurm.agent.test_metrics import Ask, served

SLURM = ["agent", "--slurm", "--machine", "1xh100-sxm5-80gb", "--slurm-version", "24.11.5"]


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


@asynccontextmanager
async def compute_node(home: Path, **given: Any) -> AsyncIterator[Ask]:
    """The agent of a compute node on simulated GPUs, with its pages. given: options, and ``pace``. A scontrol
    that waits for the file ``answer``."""
    scontrol = home / "scontrol"
    scontrol.write_text(f"#!/bin/sh\nread line <{home}/answer\nexit 1\n")
    scontrol.chmod(0o755)
    os.mkfifo(home / "answer")
    (home / "policy.yaml").write_text("version: partage/v1\n")
    pace = given.pop("pace", Pace())
    options = AgentOptions(
        state_dir=home / "state",
        run_dir=home / "run",
        policy=home / "policy.yaml",
        intervals=Intervals(policy_s=0.05, **given),
    )
    slurm = SlurmOptions("g1", SlurmVersion(24, 11, 5), home, home / "devices.json", programs=home, pace=pace)
    hardware, stop = SimulatedHardware(load_machine("1xh100-sxm5-80gb")), asyncio.Event()
    asked = asyncio.get_running_loop().create_future()

    async def beside(status: SlurmStatus) -> None:
        with served(status) as ask:
            asked.set_result(ask)
            await asyncio.Event().wait()

    agent = asyncio.create_task(service.run(options, slurm, hardware, stop=stop, beside=beside))
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
    async with compute_node(tmp_path, stalled_s=0.5) as ask:
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
    async with compute_node(tmp_path, pace=Pace(turn_s=0.5, answer_s=60.0)) as ask:
        for page in ("/livez", "/healthz"):
            assert "the agent has not looked at Slurm" in await _until(503, ask, page)
