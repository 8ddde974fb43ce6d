"""The end of a program that was started here and is no longer waited for."""

from __future__ import annotations

import contextlib
import os
import signal
from asyncio.subprocess import Process


async def end_group(process: Process) -> None:
    """Kill it and all processes that it started, if it still runs. It has a session of its own
    (``start_new_session``).
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
