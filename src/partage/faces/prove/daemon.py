"""The MPS control daemon of a share, as far as a proof asks it: whom it serves, in either language."""

from __future__ import annotations

import os
from pathlib import Path

from partage.edges.mps.control_v2 import ControlV2
from partage.edges.mps.control_v3 import ControlV3
from partage.edges.mps.paths import DriverFiles
from partage.errors import DaemonError, Unsupported

_DEADLINE_S = 5.0


class Daemon:
    """pipe: its CUDA_MPS_PIPE_DIRECTORY. named: it has named servers (version 3 of the control interface)."""

    def __init__(self, pipe: Path, driver_root: Path, *, named: bool = False) -> None:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
        language = ControlV3 if named else ControlV2
        self._control = language(DriverFiles(driver_root).program, environment, _DEADLINE_S)

    async def clients(self) -> int | None:
        """How many clients its servers have; None where that cannot be asked."""
        try:
            return sum(len(server.clients) for server in await self._control.listed())
        except (DaemonError, Unsupported):
            return None
