"""Runs the control program for one command to one daemon. The commands are in ``control_v2`` and
``control_v3``.

It has no state and no connection. A daemon that hangs blocks only the one command, until its deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from partage.edges.host.own_task import end_group
from partage.edges.mps.replies import unreadable_reply
from partage.errors import DaemonError, Unsupported

DEADLINE_S = 5.0
"""Seconds for one command. Daemons answer in milliseconds; one with a server that hangs may never answer."""

_MOST_BYTES = 256 * 2**10


class NoReply(DaemonError):
    """The control daemon did not answer in time."""


class ControlProgram:
    """The control program for one daemon.

    program: returns its path, or raises Unsupported; called each time, because drivers come and go.
    environment: tells the program which daemon is meant.
    """

    def __init__(
        self, program: Callable[[], Path], environment: Mapping[str, str], deadline_s: float = DEADLINE_S
    ) -> None:
        self._program = program
        self._environment = dict(environment)
        self._deadline_s = deadline_s

    async def answer(
        self, command: str, arguments: Sequence[str], stdin: bytes, deadline_s: float | None = None
    ) -> str:
        """The output of the program with these arguments and this standard input. command: its name in
        errors.

        Raises NoReply, DaemonError, Unsupported.
        """
        async with self.in_time(command, deadline_s):
            code, text = await self.run(arguments, stdin)
        if code:
            raise unreadable_reply(command, text)
        return text

    @contextlib.asynccontextmanager
    async def in_time(self, command: str, deadline_s: float | None = None) -> AsyncIterator[None]:
        """Raises NoReply where what is done takes too long."""
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError as error:
            raise NoReply(
                f"the MPS control daemon did not answer {command!r} within {limit_s:g} s",
                "its control.log may say why; its clients may still work",
            ) from error

    async def run(self, arguments: Sequence[str], stdin: bytes) -> tuple[int, str]:
        """Exit code and output of the program. Raises Unsupported; DaemonError for too much output."""
        code, reply = await self._run(arguments, stdin)
        return code, reply.decode(errors="replace")

    async def _run(self, arguments: Sequence[str], stdin: bytes) -> tuple[int, bytes]:
        program = self._program()
        async with _pipe() as (reader, writing):
            try:
                process = await asyncio.create_subprocess_exec(
                    program,
                    *arguments,
                    stdin=PIPE,
                    stdout=writing,
                    stderr=STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise Unsupported(f"{program} cannot be run: {error}") from error
            finally:
                os.close(writing)
            try:
                reply = await _converse(process, stdin, reader)
                return await process.wait(), reply
            finally:
                await end_group(process)


@contextlib.asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """A pipe for the program's output; this side can be closed although another process still has the other
    end.
    """
    reading, writing = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", buffering=0)
    )
    try:
        yield reader, writing
    finally:
        transport.close()


async def _converse(process: Process, command: bytes, reader: asyncio.StreamReader) -> bytes:
    """Write the command, and read the output up to a limit."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it ended without reading: its output says why
        process.stdin.write(command)
        await process.stdin.drain()
    process.stdin.close()
    reply = b""
    while chunk := await reader.read(_MOST_BYTES + 1 - len(reply)):
        reply += chunk
        if len(reply) > _MOST_BYTES:
            raise DaemonError(f"the MPS control program printed more than {_MOST_BYTES // 1024} KiB")
    return reply
