"""The helper as a child process: ended, and never waited for where it cannot end."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess

_PATIENCE_S, _LITTLE_PATIENCE_S = 2.0, 0.2
_PROMPT_S = 1.0
_POLL_S = 0.01


class HelperProcess:
    """One helper, begun by ``edges.hardware.spawn``."""

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
        """Ask it to end, then make it. False where even that does not help: it sleeps in the kernel.

        Such a process is gone as soon as the driver lets go of it; nobody waits for that. hangs: there is
        little hope that it hears us.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.terminate()
        if not await self._ended(_LITTLE_PATIENCE_S if hangs else _PATIENCE_S):
            self._process.kill()
            return await self._ended(_PROMPT_S)
        return True

    async def _ended(self, timeout_s: float) -> bool:
        # Polled: a pidfd needs Linux 5.3, a child watcher a thread for a process that seldom ends.
        for _ in range(int(timeout_s / _POLL_S)):
            if self.exit_code is not None:
                return True
            await asyncio.sleep(_POLL_S)
        return self.exit_code is not None
