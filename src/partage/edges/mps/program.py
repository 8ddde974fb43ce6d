"""Runs the control program for one command to one daemon, and parses its output. Unknown output is an error,
never a guess. The commands are in ``control_v2`` and ``control_v3``.

It has no state and no connection. A daemon that hangs blocks only the one command, until its deadline.

Sources of the output: NVIDIA's MPS guide (``ps``, names of the states), and output that users have published:
``25.0`` for a percentage, ``3G`` for a memory limit. Not yet tested on a real GPU (docs/explanation/mps.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from partage.edges.host.own_task import end_group
from partage.errors import DaemonError, Unsupported
from partage.model.mps import ConnectedClient, MpsServer, ServerStatus
from partage.units import GIB, KIB, MIB
from partage.values import Frozen

_MEMORY = re.compile(r"(0x[0-9a-f]+|\d+)\s*(?:([KMG])(?:i?B)?|B|bytes)?", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB}
_PERCENT = re.compile(r"\d{1,3}(?:\.\d+)?", re.ASCII)
_COLUMNS = 6
_SERVER_COLUMNS, _CLIENT_COLUMNS, _NAMESPACE_COLUMNS = 4, 5, 5
_ABSENT = "-"
_QUOTED = 120


def unreadable_reply(command: str, reply: str) -> DaemonError:
    """The error for a reply that cannot be parsed."""
    text = " ".join(reply.split())[:_QUOTED] or "nothing"
    return DaemonError(f"the MPS control daemon answered {command!r} with {text!r}")


def parse_pids(command: str, reply: str) -> tuple[int, ...]:
    """One pid in each line, as printed by ``get_server_list`` and ``get_client_list``. Raises DaemonError."""
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    if not all(line.isascii() and line.isdecimal() for line in lines):
        raise unreadable_reply(command, reply)
    return tuple(dict.fromkeys(int(line) for line in lines))


def parse_status(reply: str) -> ServerStatus:
    """The status in the reply of ``get_server_status``."""
    words = set(re.findall(r"[A-Z]+", reply.upper()))
    known = (ServerStatus.FAULT, ServerStatus.INITIALIZING, ServerStatus.ACTIVE)
    return next((status for status in known if status.name in words), ServerStatus.UNKNOWN)


def is_unknown(command: str, reply: str) -> bool:
    """Whether the daemon has no such command (seen with 535, 550 and 555; the program returns 0)."""
    return reply.strip() == f'Unknown command "{command.split(maxsplit=1)[0]}"'


def is_not_found(server: int, reply: str) -> bool:
    """Whether the daemon has no such server (any more)."""
    return reply.strip() == f"Server {server} not found"


def parse_percent(command: str, reply: str) -> float:
    """``25.0``. Raises DaemonError."""
    if not is_percent(reply):
        raise unreadable_reply(command, reply)
    return float(_number(reply))


def is_percent(reply: str) -> bool:
    """Whether a reply is a percentage."""
    return _PERCENT.fullmatch(_number(reply)) is not None


def _number(reply: str) -> str:
    return reply.strip().removesuffix("%").strip()


class PrintedMemory(Frozen):
    """An amount of memory as the daemon prints it: whole units, rounded down.

    A daemon printed ``3G`` for a limit that was set in M, on a GPU where a quarter is 3.7 GiB.
    """

    units: int
    unit_bytes: int

    def stands_for(self, wanted_bytes: int) -> bool:
        """Whether a limit of wanted_bytes would be printed like this."""
        return wanted_bytes // self.unit_bytes == self.units

    @property
    def bytes(self) -> int:
        return self.units * self.unit_bytes


def parse_memory(command: str, reply: str) -> PrintedMemory | None:
    """``3G``, ``815M``, ``0x140000000 bytes``; None if no limit is set. Raises DaemonError."""
    text = reply.strip()
    match = _MEMORY.fullmatch(text)
    if match is None and text:
        raise unreadable_reply(command, reply)
    if match is None:
        return None
    units = int(match[1], 16 if match[1].lower().startswith("0x") else 10)
    return PrintedMemory(units, _UNITS[(match[2] or "").upper()]) if units else None


def parse_ps(reply: str) -> dict[int, tuple[ConnectedClient, ...]] | None:
    """Server pid to its clients; None if the daemon has no ``ps`` (old drivers).

    A process is listed once for each of its contexts. Columns: PID ID SERVER DEVICE NAMESPACE COMMAND.
    """
    lines = [line.split(maxsplit=_COLUMNS - 1) for line in reply.splitlines() if line.strip()]
    if not lines:
        return {}
    if [word.upper() for word in lines[0][:3]] != ["PID", "ID", "SERVER"]:
        return None
    found: dict[int, dict[int, ConnectedClient]] = {}
    for line in lines[1:]:
        if len(line) < _COLUMNS - 1 or not (line[0].isdecimal() and line[2].isdecimal()):
            raise unreadable_reply("ps", reply)
        namespace = int(line[4]) if line[4].isdecimal() else None
        command = line[5].strip() if len(line) == _COLUMNS else ""
        client = ConnectedClient(int(line[0]), namespace, command=command)
        found.setdefault(int(line[2]), {}).setdefault(client.pid, client)
    return {server: tuple(clients.values()) for server, clients in found.items()}


# --- version 3: rows of ``--format=csv,noheader`` ------------------------------------------------------


class NamespaceRow(Frozen):
    """A row of ``namespace list``. memory, threads: as printed; empty for none."""

    name: str
    server: str
    memory: str
    threads: str


def parse_server_rows(reply: str) -> tuple[MpsServer, ...]:
    """``training,1000,48201,Ready,...``: name, user, pid, status, further columns. Raises DaemonError."""
    servers = []
    for row in _rows(reply):
        if len(row) < _SERVER_COLUMNS or not (row[1].isdecimal() and row[2].isdecimal()):
            raise unreadable_reply("server list", reply)
        servers.append(MpsServer(int(row[2]), int(row[1]), _named_status(row[3]), name=row[0]))
    return tuple(servers)


def _named_status(word: str) -> ServerStatus:
    """Only ``Ready`` is documented; for other texts the words of version 2 are tried."""
    text = word.lower()
    if text in ("ready", "active"):
        return ServerStatus.ACTIVE
    known = (ServerStatus.FAULT, ServerStatus.INITIALIZING)
    return next((status for status in known if status.value in text), ServerStatus.UNKNOWN)


def parse_namespace_rows(reply: str) -> tuple[NamespaceRow, ...]:
    """Name, server, its status, memory, threads, further columns. Raises DaemonError.

    The text for a limit that is not set is not documented: ``-``, as for other missing values, or empty.
    """
    rows = _rows(reply)
    if any(len(row) < _NAMESPACE_COLUMNS for row in rows):
        raise unreadable_reply("namespace list", reply)
    return tuple(
        NamespaceRow(row[0], row[1], *("" if it == _ABSENT else it for it in row[3:5])) for row in rows
    )


def parse_client_rows(reply: str) -> dict[str, tuple[ConnectedClient, ...]]:
    """``51023,training,0,default,python train.py`` by server: pid, server, device, namespace, command.

    A process may be listed more than once. Raises DaemonError.
    """
    found: dict[str, dict[int, ConnectedClient]] = {}
    for row in _rows(reply, _CLIENT_COLUMNS - 1):
        if len(row) < _CLIENT_COLUMNS - 1 or not row[0].isdecimal():
            raise unreadable_reply("client list", reply)
        command = row[4] if len(row) == _CLIENT_COLUMNS else ""
        found.setdefault(row[1], {}).setdefault(int(row[0]), ConnectedClient(int(row[0]), command=command))
    return {server: tuple(clients.values()) for server, clients in found.items()}


def _rows(reply: str, at_most: int = -1) -> list[list[str]]:
    """The cells of each line, without blanks around them. at_most: number of separating commas; the rest is
    the last cell.
    """
    lines = (line for line in reply.splitlines() if line.strip())
    return [[cell.strip() for cell in line.split(",", at_most)] for line in lines]


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
