"""Starts the helper, watches it, ends it, and replaces it with growing pauses when it dies or hangs.

A process that hangs in the driver is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from partage.edges.hardware.helper_connection import HelperConnection
from partage.edges.hardware.spawn import spawn
from partage.errors import DriverUnavailable, HardwareError, HardwareTimeout, InputError
from partage.values import Frozen

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


GOOD_WHILE_S = 30.0
_START_S = 10.0
_CONNECT_EVERY_S = 0.01

log = logging.getLogger(__name__)


class HelperPauses(Frozen):
    """Between the end of a helper and the next start, in seconds: doubled each time, reset after GOOD_WHILE_S
    of service.

    after_service_s: the longest after a helper that has served and then ended by itself: claims and steps
    wait for the next one. elsewhere_s: the longest where it is started elsewhere: then a try is one call of
    connect.
    """

    first_s: float = 0.2
    longest_s: float = 30.0
    after_service_s: float = 2.0
    elsewhere_s: float = 1.0

    def next_s(self, in_a_row: int, *, ended_itself: bool, elsewhere: bool) -> float:
        """How long to wait before the next helper. in_a_row: how many ended early, one after the other.

        ended_itself: the last one had served, and was not replaced because it hung: of those that hang,
        processes may stay behind. elsewhere: somebody else starts them.
        """
        longest_s = self.after_service_s if ended_itself else self.longest_s
        if elsewhere:
            longest_s = self.elsewhere_s
        return float(min(self.first_s * 2 ** min(in_a_row - 1, 16), longest_s))


class HelperState(Frozen):
    """State of the helper for health and metrics. restarts: how often it was replaced or found again."""

    up: bool = False
    restarts: int = 0
    last_error: str = ""
    pid: int | None = None

    @property
    def trouble(self) -> str:
        """Why the helper does not answer now; empty if it answers or has not been started yet."""
        return "" if self.up else self.last_error


class HelperSupervisor:
    """Keeps a connection to a helper that serves, until it is closed."""

    def __init__(
        self,
        path: Path,
        command: Sequence[str] | None,
        on_return: Callable[[], None],
        first: subprocess.Popen[bytes] | None = None,
        pauses: HelperPauses | None = None,
    ) -> None:
        """command: command line of the helper; None: it is started elsewhere. first: one that was started
        already.

        on_return: called when a helper serves again; events may have been missed meanwhile.
        """
        self._path = path
        self._command = command
        self._first = first
        self._on_return = on_return
        self._pauses = pauses or HelperPauses()
        self.state = HelperState()
        self.current: HelperConnection | None = None
        self.up, self.down = asyncio.Event(), asyncio.Event()
        self._tried = asyncio.Event()
        self._replace_helper = asyncio.Event()
        self._serving_since = 0.0
        self._keeper: asyncio.Task[None] | None = None
        self._lingering: list[HelperProcess] = []
        self._has_served = False
        self._closed = False

    def start(self) -> None:
        """Start the helper if that was not done. Raises DriverUnavailable after ``close``."""
        if self._closed:
            raise DriverUnavailable("the connection to the helper is closed")
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="hardware-helper")
        elif self._keeper.done():
            self._keeper.result()  # raises InputError for wrong options, or a bug

    async def connection(self) -> HelperConnection:
        """The connection. Waits for the first helper only; raises DriverUnavailable while there is none.

        Raises InputError if the helper refuses its options: another one would too.
        """
        self.start()
        try:
            async with asyncio.timeout(_START_S):
                await self._tried.wait()
        except TimeoutError as error:
            raise HardwareTimeout(f"the helper did not start within {_START_S:g} s") from error
        self.start()
        if self.current is None:
            raise self.absence()
        return self.current

    def absence(self) -> DriverUnavailable:
        """The error that says why there is no helper now."""
        return DriverUnavailable(f"the helper is away: {self.state.last_error or 'it has not started yet'}")

    def give_up(self, connection: HelperConnection, error: HardwareError) -> None:
        """Replace the helper of this connection, unless that was done already."""
        if connection is self.current:
            self._away(error)
            self._replace_helper.set()

    @property
    def served_s(self) -> float:
        """Seconds since the current helper began to serve."""
        return asyncio.get_running_loop().time() - self._serving_since

    async def close(self) -> None:
        """End everything. Idempotent."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def _keep(self) -> None:
        """Run one helper after the other."""
        clock = asyncio.get_running_loop().time
        in_a_row = 0
        while True:
            began_s, served = clock(), False
            try:
                async with self._helper() as connection:
                    self._serving(connection)
                    served = True
                    await self._end_of(connection)
            except (HardwareError, OSError) as error:
                self._away(error)
            except InputError as error:
                if not self._has_served:
                    self._tried.set()  # callers that wait for the first helper get it from ``start``
                    raise
                # The options were valid before: a file or directory is missing and may come back.
                self._away(DriverUnavailable(error.problems[0].message, error.problems[0].hint))
            in_a_row = 1 if clock() - began_s > GOOD_WHILE_S else in_a_row + 1
            ended_itself = served and not self._replace_helper.is_set()
            elsewhere = self._command is None
            await asyncio.sleep(self._pauses.next_s(in_a_row, ended_itself=ended_itself, elsewhere=elsewhere))
            if served or self._command is not None:
                self._say(restarts=self.state.restarts + 1)

    @contextlib.asynccontextmanager
    async def _helper(self) -> AsyncIterator[HelperConnection]:
        """A helper that answers. It is ended after the context."""
        process = self._begin()
        try:
            connection = await self._connect(process)
            try:
                yield connection
            finally:
                await connection.close()
        finally:
            if process is not None and not await process.end(hangs=self._replace_helper.is_set()):
                log.warning("helper cannot be ended", extra={"pid": process.pid})
                self._lingering.append(process)

    def _begin(self) -> HelperProcess | None:
        self._lingering = [process for process in self._lingering if process.exit_code is None]
        if self._command is None:
            return None
        first, self._first = self._first, None
        return HelperProcess(first or spawn(self._command, self._path))

    async def _connect(self, process: HelperProcess | None) -> HelperConnection:
        try:
            async with asyncio.timeout(_START_S):
                while True:
                    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                        return await HelperConnection.open(self._path, _START_S)
                    _check_alive(process, self._path)
                    await asyncio.sleep(_CONNECT_EVERY_S)
        except TimeoutError as error:
            raise HardwareTimeout(f"the helper did not answer within {_START_S:g} s") from error

    async def _end_of(self, connection: HelperConnection) -> None:
        """Wait until the connection ends or the helper has to be replaced."""
        ended = asyncio.create_task(connection.ended(), name="hardware-end")
        replaced = asyncio.create_task(self._replace_helper.wait(), name="hardware-replace")
        try:
            await asyncio.wait((ended, replaced), return_when=asyncio.FIRST_COMPLETED)
            if not self._replace_helper.is_set():
                self._away(ended.result())
        finally:
            ended.cancel()
            replaced.cancel()

    def _serving(self, connection: HelperConnection) -> None:
        self.current = connection
        self._has_served = True
        self._serving_since = asyncio.get_running_loop().time()
        self._replace_helper.clear()
        self._say(up=True, pid=connection.helper_pid)
        log.info("helper serves", extra={"pid": connection.helper_pid})
        if self._tried.is_set():
            self._on_return()
        self._tried.set()
        self.down.clear()
        self.up.set()

    def _away(self, error: HardwareError | OSError) -> None:
        reason = error.problems[0].message if isinstance(error, HardwareError) else str(error)
        if self.current is not None or reason != self.state.last_error:
            log.warning("helper is away", extra={"reason": reason})
        self.current = None
        self.up.clear()
        self.down.set()
        self._tried.set()
        self._say(up=False, pid=None, last_error=reason)

    def _say(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)


def _check_alive(process: HelperProcess | None, path: Path) -> None:
    """Raise if no helper will listen: DriverUnavailable, or InputError if it refused its options."""
    if process is None:
        raise DriverUnavailable(f"no helper listens at {path}", "start it: partage hardware --socket PATH")
    if process.exit_code == InputError.exit_code:
        raise InputError("the helper refuses its options", "its own message says which")
    if process.exit_code is not None:
        raise DriverUnavailable(
            f"the helper ended with exit code {process.exit_code} before it answered", "its log says why"
        )
