"""The MPS control daemon behind a pipe directory, as far as it is asked: what it limits, whom it serves.

Asking is all: the bench changes no setting. Where the control program is not at hand, nothing is known.
"""

from __future__ import annotations

import os
from pathlib import Path

from partage.edges.mps.control_v2 import ControlV2
from partage.edges.mps.paths import DriverFiles
from partage.errors import DaemonError, Unsupported

_DEADLINE_S = 5.0


class Daemon:
    """pipe: its CUDA_MPS_PIPE_DIRECTORY, None for none. driver_root: below which the driver is installed."""

    def __init__(self, pipe: Path | None, driver_root: Path = Path("/")) -> None:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
        self._control = ControlV2(DriverFiles(driver_root).program, environment, _DEADLINE_S)

    async def clients(self) -> int | None:
        """How many clients its servers have; None where that cannot be asked."""
        try:
            servers = await self._control.servers()
            return sum(len(own) for own in (await self._control.clients(servers)).values())
        except (DaemonError, Unsupported):
            return None

    async def memory_limit(self, likely_bytes: int) -> int | None:
        """Bytes that each client may have; None: no limit. Raises DaemonError, Unsupported.

        The daemon prints whole units: where ``likely_bytes`` fits what it prints, it is taken to be meant.
        """
        return await self._control.memory_limit(likely_bytes)

    async def threads_limit(self) -> int:
        """Percent of the multiprocessors that each client may fill. Raises DaemonError, Unsupported."""
        return await self._control.threads_limit()
