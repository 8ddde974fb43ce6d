"""Asks one control daemon: the control program is run, with one command on its standard input.

It holds no state and no connection. A daemon that hangs costs its question, never the one who asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from partage.edges.mps.replies import (
    misunderstood,
    parse_memory,
    parse_percent,
    parse_pids,
    parse_ps,
    parse_status,
)
from partage.errors import DaemonError, Unsupported
from partage.model.mps import Client, ServerStatus

DEADLINE_S = 5.0
"""For one command. They answer within milliseconds; a daemon with a server that hangs may never."""

ORDINAL = "0"
"""The daemon sees one device, so this is its ordinal whatever its index on the node. A limit that was set by
UUID has been seen without effect (NVIDIA's device plugin, v0.15.0), so limits are set by ordinal, and read
back by ordinal: the daemon does not translate one into the other."""

_MOST_BYTES = 256 * 2**10


class Silence(DaemonError):
    """The control daemon did not answer in time."""


class Control:
    """One control daemon's command line.

    program: where it is, or Unsupported; asked each time, since drivers come and go.
    environment: what tells the program which daemon is meant.
    """

    def __init__(
        self, program: Callable[[], Path], environment: Mapping[str, str], deadline_s: float = DEADLINE_S
    ) -> None:
        self._program = program
        self._environment = dict(environment)
        self._deadline_s = deadline_s

    async def ask(self, command: str, deadline_s: float | None = None) -> str:
        """What the daemon says to one command. Raises Silence, DaemonError, Unsupported."""
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        try:
            async with asyncio.timeout(limit_s):
                code, reply = await self._run(f"{command}\n".encode("ascii"))
        except TimeoutError as error:
            raise Silence(
                f"the MPS control daemon did not answer {command!r} within {limit_s:g} s",
                "its control.log may say why; its clients may still work",
            ) from error
        text = reply.decode(errors="replace")
        if code:
            raise misunderstood(command, text)
        return text

    async def _run(self, command: bytes) -> tuple[int, bytes]:
        """Exit code and output of the program. Raises Unsupported, DaemonError (too much of it)."""
        program = self._program()
        async with _pipe() as (reader, writing):
            try:
                process = await asyncio.create_subprocess_exec(
                    program,
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
                reply = await _converse(process, command, reader)
                return await process.wait(), reply
            finally:
                await _end(process)

    # --- questions ----------------------------------------------------------------------------

    async def servers(self) -> tuple[int, ...]:
        """Pids of the servers."""
        return parse_pids("get_server_list", await self.ask("get_server_list"))

    async def status(self, server: int) -> ServerStatus:
        """How one server is."""
        return parse_status(await self.ask(f"get_server_status {server}"))

    async def clients(self, servers: tuple[int, ...]) -> Mapping[int, tuple[Client, ...]]:
        """The clients of each of these servers; without namespace and command where the daemon is old."""
        if not servers:
            return {}
        try:
            listed = parse_ps(await self.ask("ps"))
        except Silence:
            raise
        except DaemonError:
            listed = None  # a program that fails over a command it does not know
        if listed is not None:
            return listed
        found = {}
        for server in servers:
            command = f"get_client_list {server}"
            found[server] = tuple(Client(pid) for pid in parse_pids(command, await self.ask(command)))
        return found

    async def memory_limit(self, wanted_bytes: int) -> int | None:
        """Bytes that each client of the next server may have: what is wanted, as far as the reply can tell.

        None: no limit.
        """
        command = f"get_default_device_pinned_mem_limit {ORDINAL}"
        amount = parse_memory(command, await self.ask(command))
        if amount is None:
            return None
        return wanted_bytes if amount.stands_for(wanted_bytes) else amount.bytes

    async def threads_limit(self) -> int:
        """Percent of the multiprocessors that each client of the next server may fill."""
        command = "get_default_active_thread_percentage"
        return round(parse_percent(command, await self.ask(command)))

    async def start_server(self, uid: int) -> None:
        """Have a server started for a user, now and not when the first client comes."""
        await self.ask(f"start_server -uid {uid}")

    # --- orders: what is wrong with them the daemon does not say --------------------------------

    async def set_memory_limit(self, limit_mib: int) -> None:
        """For the clients of servers that start later."""
        await self.ask(f"set_default_device_pinned_mem_limit {ORDINAL} {limit_mib}M")

    async def set_threads_limit(self, percent: int) -> None:
        """For the clients of servers that start later."""
        await self.ask(f"set_default_active_thread_percentage {percent}")


@contextlib.asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """A pipe for a program's output: ours, to be closed although somebody still holds the other end."""
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
    """Say it, and read all that is answered, as far as anybody would."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it ended without reading: what it printed says why
        process.stdin.write(command)
        await process.stdin.drain()
    process.stdin.close()
    reply = b""
    while chunk := await reader.read(_MOST_BYTES + 1 - len(reply)):
        reply += chunk
        if len(reply) > _MOST_BYTES:
            raise DaemonError(f"the MPS control program printed more than {_MOST_BYTES // 1024} KiB")
    return reply


async def _end(process: Process) -> None:
    """Nothing of it stays behind."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
