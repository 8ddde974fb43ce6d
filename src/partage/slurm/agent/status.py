"""What the agent of a compute node knows, for what it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from msgspec import Raw, Struct

from partage.agent.observers.hardware import HardwareObserver
from partage.model.dcgm_names import DcgmNames
from partage.slurm.agent.history import JobUsageObserver


class SlurmStatus(Struct):
    """node: its name. loop: in which the agent runs.

    history, ended_tasks: as in ``AgentStatus``. stopped: why the loop counts as stopped, empty if it moves;
    may be called from another thread. dcgm: whether use is told under dcgm-exporter's names, too.
    """

    node: str
    hardware: HardwareObserver
    use: JobUsageObserver
    loop: asyncio.AbstractEventLoop
    dcgm: DcgmNames = DcgmNames.OFF
    history: Callable[[], Iterable[Raw]] | None = None
    ended_tasks: Callable[[], str] = str
    stopped: Callable[[], str] = str

    @property
    def trouble(self) -> str:
        """Why the GPUs are not known; empty if they are."""
        if self.hardware.node is None and not self.hardware.trouble:
            return "the GPUs are not observed yet"
        return self.hardware.trouble
