"""Asks one control daemon in version 2 of its language: one command on the program's standard input."""

from __future__ import annotations

from collections.abc import Mapping

from partage.edges.mps.program import ControlProgram, NoReply
from partage.edges.mps.replies import (
    parse_memory,
    parse_percent,
    parse_pids,
    parse_ps,
    parse_status,
)
from partage.errors import DaemonError
from partage.model.mps import ClientLimits, ConnectedClient, DaemonSpec, MpsServer, ServerStatus
from partage.units import MIB

ORDINAL = "0"
"""The daemon sees one device, so this is its ordinal whatever its index on the node. A limit that was set by
UUID has been seen without effect (NVIDIA's device plugin, v0.15.0), so limits are set by ordinal, and read
back by ordinal: the daemon does not translate one into the other."""


class ControlV2(ControlProgram):
    """One control daemon's command line."""

    async def ask(self, command: str, deadline_s: float | None = None) -> str:
        """What the daemon says to one command. Raises Silence, DaemonError, Unsupported."""
        return await self.answer(command, (), f"{command}\n".encode("ascii"), deadline_s)

    # --- what every version can do ---------------------------------------------------------------

    async def listed(self) -> tuple[MpsServer, ...]:
        """The servers with their clients. One that ends between two questions is left out."""
        pids = await self.servers()
        clients = await self.clients(pids)
        found = []
        for pid in pids:
            status = await self._status_if_there(pid)
            if status is not None:
                found.append(MpsServer(pid, None, status, clients.get(pid, ())))
        return tuple(found)

    async def limits(self, spec: DaemonSpec) -> ClientLimits:
        """The limits that were asked for, as the daemon has them; the others are not asked after."""
        wanted_bytes = spec.memory_bytes
        memory = None if wanted_bytes is None else await self.memory_limit(wanted_bytes)
        threads = None if spec.threads_percent is None else await self.threads_limit()
        return ClientLimits(memory, threads)

    async def terminate(self, server: int, client: int, deadline_s: float) -> None:
        """Have the work of a client ended."""
        await self.ask(f"terminate_client {server} {client}", deadline_s)

    async def quit(self, deadline_s: float) -> None:
        """Have the daemon end. It takes no further clients, and waits for those that are there."""
        await self.ask("quit", deadline_s)

    async def quit_by_force(self) -> None:
        """Have the daemon end, and not wait for its clients."""
        await self.ask("quit -t 1")

    # --- questions ----------------------------------------------------------------------------

    async def servers(self) -> tuple[int, ...]:
        """Pids of the servers."""
        return parse_pids("get_server_list", await self.ask("get_server_list"))

    async def status(self, server: int) -> ServerStatus:
        """How one server is."""
        return parse_status(await self.ask(f"get_server_status {server}"))

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
        """The clients of each of these servers; without namespace and command where the daemon is old."""
        if not servers:
            return {}
        try:
            listed = parse_ps(await self.ask("ps"))
        except NoReply:
            raise
        except DaemonError:
            listed = None  # a program that fails over a command it does not know
        if listed is not None:
            return listed
        found = {}
        for server in servers:
            command = f"get_client_list {server}"
            found[server] = tuple(
                ConnectedClient(pid) for pid in parse_pids(command, await self.ask(command))
            )
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

    async def set_limits(self, spec: DaemonSpec) -> None:
        """Those that are asked for, for the clients of servers that start later."""
        if spec.memory_bytes is not None:
            await self.set_memory_limit(spec.memory_bytes // MIB)
        if spec.threads_percent is not None:
            await self.set_threads_limit(spec.threads_percent)

    async def set_memory_limit(self, limit_mib: int) -> None:
        """For the clients of servers that start later."""
        await self.ask(f"set_default_device_pinned_mem_limit {ORDINAL} {limit_mib}M")

    async def set_threads_limit(self, percent: int) -> None:
        """For the clients of servers that start later."""
        await self.ask(f"set_default_active_thread_percentage {percent}")
