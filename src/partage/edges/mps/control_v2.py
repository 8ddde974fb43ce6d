"""Commands of version 2 of the MPS control interface: one command on the standard input of the control
program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from partage.edges.mps.program import (
    ControlProgram,
    NoReply,
    is_not_found,
    is_percent,
    is_unknown,
    parse_memory,
    parse_percent,
    parse_pids,
    parse_ps,
    parse_status,
    unreadable_reply,
)
from partage.errors import DaemonError
from partage.model.mps import ClientLimits, ConnectedClient, DaemonSpec, MpsServer, ServerStatus
from partage.units import MIB

ORDINAL = "0"
"""A daemon sees one device, so its ordinal is 0, whatever its index on the node. A limit that was set by UUID
had no effect (seen with NVIDIA's device plugin, v0.15.0), so limits are set and read back by ordinal.
"""

_PROOF = "get_default_active_thread_percentage"
"""Goes before each command: its answer is never empty, so it shows that the daemon has taken the connection.

While somebody else has one, the program ends with 1 and a word, or with 0 and no word at all (seen with 535,
550 and 555): that would be a daemon without servers, clients and limits.
"""

_NO_DAEMON, _NOT_SENT = "Cannot find", "Cannot send command"
"""What the program says where there is no daemon, and where its connection was lost before the command."""

_AGAIN_S = 0.02


_BUSY_TRIES, _BUSY_WAIT_S = 5, 0.2
"""So often, and with this wait between, a busy server is asked for its limit."""


def limits_environment(spec: DaemonSpec) -> dict[str, str]:
    """Environment of a daemon that has these limits from its start (NVIDIA's MPS guide, environment variables
    "at the MPS control daemon level").

    They are set and read back all the same; but until then a tenant that tries again and again can be faster.
    """
    found = {}
    if spec.memory_bytes is not None:
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"{ORDINAL}={spec.memory_bytes // MIB}M"
    if spec.threads_percent is not None:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(spec.threads_percent)
    return found


class ControlV2(ControlProgram):
    """The command line of one control daemon."""

    async def ask(self, command: str, deadline_s: float | None = None) -> str:
        """The reply to one command, which may be nothing. Raises NoReply, DaemonError, Unsupported.

        The daemon takes one connection of this kind at a time, of whatever user, and the program does not
        always say that it was refused (see ``_PROOF``). So one that was refused is made again.
        """
        async with self.in_time(command, deadline_s):
            while True:
                code, text = await self.run((), f"{_PROOF}\n{command}\n".encode("ascii"))
                first, _, reply = text.partition("\n")
                if is_percent(first) and not code:
                    return reply
                if (is_percent(first) and _NOT_SENT not in reply) or _NO_DAEMON in text:
                    raise unreadable_reply(command, reply or text)
                await asyncio.sleep(_AGAIN_S)

    # --- also in version 3 ---------------------------------------------------------------

    async def listed(self) -> tuple[MpsServer, ...]:
        """The servers with their clients. A server that ends meanwhile is left out.

        One that is not ready has none, and is not asked: the answer may not come (seen with 550).
        """
        servers = []
        for pid in await self.servers():
            status = await self._status_if_there(pid)
            if status is not None:
                servers.append(MpsServer(pid, None, status))
        clients = await self.clients(tuple(server.pid for server in servers if server.is_ready))
        return tuple(replace(server, clients=clients.get(server.pid, ())) for server in servers)

    async def limits(self, spec: DaemonSpec, servers: Sequence[MpsServer] = ()) -> ClientLimits:
        """The limits of ``spec`` as the daemon reports them; limits that ``spec`` does not set are not
        read.

        The memory is the default's, or that of a server with another limit: one that started before the
        default was set.
        """
        memory = None if spec.memory_bytes is None else await self._memory(spec.memory_bytes, servers)
        threads = None if spec.threads_percent is None else await self.threads_limit()
        return ClientLimits(memory, threads)

    async def _memory(self, wanted_bytes: int, servers: Sequence[MpsServer]) -> int | None:
        limit_bytes = await self.memory_limit(wanted_bytes)
        for server in servers:
            if limit_bytes == wanted_bytes and server.is_ready:
                limit_bytes = await self._memory_of(server.pid, wanted_bytes)
        return limit_bytes

    async def _memory_of(self, server: int, wanted_bytes: int) -> int | None:
        """The limit of one server; ``wanted_bytes`` if it has ended meanwhile.

        A busy server answers nothing, as one without a limit does: that is no answer. Raises DaemonError.
        """
        try:
            for _ in range(_BUSY_TRIES):
                limit_bytes = await self.server_memory_limit(server, wanted_bytes)
                if limit_bytes is not None or not await self.is_busy(server):
                    return limit_bytes
                await asyncio.sleep(_BUSY_WAIT_S)
        except NoReply:
            raise
        except DaemonError:
            if server in await self.servers():
                raise
            return wanted_bytes
        raise DaemonError(f"MPS server {server} is busy, and does not say what it allows")

    async def terminate(self, server: int, client: int, deadline_s: float) -> None:
        """End the work of a client."""
        await self.ask(f"terminate_client {server} {client}", deadline_s)

    async def quit(self, deadline_s: float) -> None:
        """Stop the daemon. It takes no new clients and waits for those that it has."""
        await self.ask("quit", deadline_s)

    async def quit_by_force(self) -> None:
        """Stop the daemon without waiting for its clients."""
        await self.ask("quit -t 1")

    # --- queries ----------------------------------------------------------------------------

    async def servers(self) -> tuple[int, ...]:
        """Pids of the servers."""
        return parse_pids("get_server_list", await self.ask("get_server_list"))

    async def status(self, server: int) -> ServerStatus:
        """Status of one server.

        535 has no command for it: there a server is ready when it says its percentage, and whether a fault
        has hit it is not known.
        """
        command = f"get_server_status {server}"
        reply = await self.ask(command)
        if not is_unknown(command, reply):
            return parse_status(reply)
        return ServerStatus.INITIALIZING if await self.is_busy(server) else ServerStatus.ACTIVE

    async def is_busy(self, server: int) -> bool:
        """Whether a server answers nothing now, because it starts or is at work: then the daemon prints
        nothing for any of its settings (535, 550, 555); its percentage it always has.
        """
        command = f"get_active_thread_percentage {server}"
        reply = await self.ask(command)
        if reply.strip():
            parse_percent(command, reply)
        return not reply.strip()

    async def _status_if_there(self, server: int) -> ServerStatus | None:
        """None: it has ended since it was listed."""
        try:
            status = await self.status(server)
        except NoReply:
            raise
        except DaemonError:
            if server in await self.servers():
                raise
            return None
        if status is ServerStatus.UNKNOWN and server not in await self.servers():
            return None
        return status

    async def clients(self, servers: tuple[int, ...]) -> Mapping[int, tuple[ConnectedClient, ...]]:
        """The clients of each of these servers; an old daemon reports no namespace and no command."""
        if not servers:
            return {}
        try:
            listed = parse_ps(await self.ask("ps"))
        except NoReply:
            raise
        except DaemonError:
            listed = None  # the program fails for unknown commands
        if listed is not None:
            return listed
        found = {}
        for server in servers:
            command = f"get_client_list {server}"
            reply = await self.ask(command)
            if not is_not_found(server, reply):  # else it has ended since it was listed
                found[server] = tuple(ConnectedClient(pid) for pid in parse_pids(command, reply))
        return found

    async def memory_limit(self, wanted_bytes: int) -> int | None:
        """Bytes that each client of the next server may have; None: no limit.

        The daemon prints rounded numbers: if they agree with wanted_bytes, wanted_bytes is returned.
        """
        return await self._limit(f"get_default_device_pinned_mem_limit {ORDINAL}", wanted_bytes)

    async def server_memory_limit(self, server: int, wanted_bytes: int) -> int | None:
        """Bytes that each client of this server may have; see ``memory_limit``."""
        return await self._limit(f"get_device_pinned_mem_limit {server} {ORDINAL}", wanted_bytes)

    async def _limit(self, command: str, wanted_bytes: int) -> int | None:
        amount = parse_memory(command, await self.ask(command))
        if amount is None:
            return None
        return wanted_bytes if amount.stands_for(wanted_bytes) else amount.bytes

    async def threads_limit(self) -> int:
        """Percent of the multiprocessors that each client of the next server may use."""
        command = "get_default_active_thread_percentage"
        return round(parse_percent(command, await self.ask(command)))

    async def start_server(self, uid: int) -> None:
        """Start a server for a user now, before its first client comes."""
        await self.ask(f"start_server -uid {uid}")

    # --- changes: the daemon reports no errors for them --------------------------------

    async def set_limits(self, spec: DaemonSpec, *, again: bool = False) -> tuple[str, ...]:
        """Set the limits of ``spec``; the commands that were given, in their order.

        For servers that start later, and the percentage also for later clients of servers that run. again:
        the memory limit of these, too: it was theirs before, and somebody else may have changed it. Without,
        it stays what it is, so that it shows whether they ever took clients without a limit.
        """
        memory = threads = ""
        defaults = []
        if spec.memory_bytes is not None:
            memory = f"{ORDINAL} {spec.memory_bytes // MIB}M"
            defaults.append(f"set_default_device_pinned_mem_limit {memory}")
        if spec.threads_percent is not None:
            threads = str(spec.threads_percent)
            defaults.append(f"set_default_active_thread_percentage {threads}")
        for command in defaults:
            await self.ask(command)
        own = []
        for server in await self.servers():  # those that start from now on have the defaults
            own += [f"set_device_pinned_mem_limit {server} {memory}"] if memory and again else []
            own += [f"set_active_thread_percentage {server} {threads}"] if threads else []
        for command in own:
            await self.ask(command)
        return (*defaults, *own)
