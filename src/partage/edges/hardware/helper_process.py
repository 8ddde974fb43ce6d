"""The helper as a child process, and how it is ended; a process that hangs in the driver is not waited
for.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess

_TERMINATE_S, _TERMINATE_HANGING_S = 2.0, 0.2
_KILL_S = 1.0
_FIRST_POLL_S, _LONGEST_POLL_S = 0.001, 0.02


class HelperProcess:
    """One helper, started by ``edges.hardware.spawn``."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    async def end(self, *, hangs: bool) -> bool:
        """End it with SIGTERM, then SIGKILL. False if it does not end because it hangs in the kernel.

        Such a process ends when the driver call returns; nothing waits for it. hangs: it is known to hang,
        so SIGKILL follows sooner.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.terminate()
        if not await self._ended(_TERMINATE_HANGING_S if hangs else _TERMINATE_S):
            self._process.kill()
            return await self._ended(_KILL_S)
        return True

    async def _ended(self, timeout_s: float) -> bool:
        # Polled: a pidfd needs Linux 5.3, and a child watcher a thread.
        pause_s, clock = _FIRST_POLL_S, asyncio.get_running_loop().time
        until_s = clock() + timeout_s
        while self.exit_code is None and clock() < until_s:
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_POLL_S)
        return self.exit_code is not None
