"""The agent's look at the limits of jobs, once for each line of standard input; each time one line of JSON.

``python -m tests.slurm.limits.look RUN_DIR DRIVER_ROOT``, where cgroup v2 is at /sys/fs/cgroup.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from msgspec import json

from partage.agent.observers.memory_limits import MemoryLimitsObserver
from partage.agent.options import Intervals
from partage.agent.status.status import AgentCounts
from partage.edges.hardware.host import Host
from partage.edges.hardware.nvml import NvmlHardware
from partage.slurm.agent.job_limits import JobHolders


async def _look(run_dir: Path, root: Path) -> None:
    hardware = NvmlHardware(root, host=Host(driver=root))
    holders = JobHolders(run_dir, frozenset, lambda: None)
    observer = MemoryLimitsObserver(hardware, Intervals(), AgentCounts(), holders)
    while await asyncio.to_thread(sys.stdin.readline):
        await observer.look()
        # A job with a SLUID is looked for under two names, and one of them is there.
        cgroups = [row.cgroup for row in observer.seen.values() if row.cgroup]
        sys.stdout.write(json.encode((holders.rows, cgroups)).decode() + "\n")
        sys.stdout.flush()
    await hardware.close()


if __name__ == "__main__":
    asyncio.run(_look(Path(sys.argv[1]), Path(sys.argv[2])))
