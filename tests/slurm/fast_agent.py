"""``partage agent --slurm`` with short pauses, for tests: ``python -m tests.slurm.fast_agent SETTINGS``."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from partage.agent.log import configure
from partage.agent.options import AgentOptions, Intervals
from partage.edges.hardware.helper_client import RemoteHardware
from partage.slurm.agent import service
from partage.slurm.agent.options import Pace, SlurmOptions
from partage.slurm.decide.node_files import Writes
from partage.slurm.model import SlurmVersion

PACE = Pace(idle_s=1, busy_s=0.3, longest_s=1, retry_s=0.5, asked_s=5, answer_s=5, spread_s=0.3)


async def _run(given):
    d = Path(given["directory"])
    options = AgentOptions(
        state_dir=Path(given["state"]),
        run_dir=d / "agent",
        policy=d / "policy.yaml",
        environ={**os.environ, "SLURM_CONF": str(d / "slurm.conf")},
        intervals=Intervals(observe_s=0.5, policy_s=0.2, retry_s=0.3),
    )
    slurm = SlurmOptions(
        node="g1",
        version=SlurmVersion.parse(given["version"]),
        directory=d / "nodes",
        devices=d / "nodes" / "devices.json",
        writes=Writes.SHARED,
        settings=given["settings"],
        programs=d / "bin",
        restart=(str(d / "bin" / "restart-slurmd"),),
        pace=PACE,
    )
    hardware = RemoteHardware(d / "agent" / "hardware.sock", None)
    hardware.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        await service.run(options, slurm, hardware, stop=stop)
    finally:
        await hardware.close()


if __name__ == "__main__":
    configure()
    asyncio.run(_run(json.loads(sys.argv[1])))
