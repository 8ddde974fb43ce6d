"""Asks one control daemon in version 3 of its language: module and verb as arguments of the program.

Our daemon has one server with a name, and in it a namespace for each kind of share. All of it stands in a
file that the daemon reads when it starts: a namespace that is made by ``namespace create`` has no limit until
the next command, and whoever connects in between keeps what he has got.

Sources: NVIDIA's MPS guide, release 615 (commands, columns, the file), and what NVIDIA's Dynamo project shows
of a real daemon (driver 615.71: ``20G`` for a limit, ``30.00`` for a percentage, ``Ready`` for a server).
Other words for a server's state are not documented, nor is what stands for a limit that was never set. Seen
on no GPU of ours yet (docs/mps.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from partage.edges.mps.program import ControlProgram
from partage.edges.mps.replies import (
    NamespaceRow,
    parse_client_rows,
    parse_memory,
    parse_namespace_rows,
    parse_percent,
    parse_server_rows,
)
from partage.model.mps import SERVER, ClientLimits, DaemonSpec, MpsNamespace, MpsServer
from partage.units import MIB

OPTIONS = ("-p", "3", "-a")
"""Of the program that becomes a daemon; the file's path comes next."""

_ROWS = "--format=csv,noheader"
_DEFAULT = "default"


class ControlV3(ControlProgram):
    """The command line of one control daemon that has named servers."""

    async def tell(self, *words: str, deadline_s: float | None = None) -> str:
        """What the program says, run with these arguments. Raises Silence, DaemonError, Unsupported."""
        return await self.answer(" ".join(words), words, b"", deadline_s)

    async def listed(self) -> tuple[MpsServer, ...]:
        """All servers with their clients, those that the daemon makes for a user included."""
        servers = parse_server_rows(await self.tell("server", "list", _ROWS))
        if not servers:
            return ()
        clients = parse_client_rows(await self.tell("client", "list", "--all", _ROWS))
        return tuple(replace(server, clients=clients.get(server.name, ())) for server in servers)

    async def limits(self, spec: DaemonSpec) -> ClientLimits:
        """Those of our server and its namespaces, as far as they were asked for; what is not there is not."""
        rows = parse_namespace_rows(await self.tell("namespace", "list", _ROWS))
        ours = {row.name: row for row in rows if row.server == SERVER}
        others = _as_found(MpsNamespace(_DEFAULT, spec.memory_bytes, spec.threads_percent), ours)
        namespaces = tuple(found for one in spec.namespaces if (found := _as_found(one, ours)) is not None)
        if others is None:
            return ClientLimits(namespaces=namespaces)
        return ClientLimits(others.memory_bytes, others.threads_percent, namespaces)

    async def terminate(self, server: int, client: int, deadline_s: float) -> None:
        """Have the work of a client ended; the daemon finds its server by itself."""
        del server
        await self.tell("client", "terminate", str(client), deadline_s=deadline_s)

    async def quit(self, deadline_s: float) -> None:
        """Have the daemon end. What happens to clients is not documented."""
        await self.tell("-q", deadline_s=deadline_s)

    async def quit_by_force(self) -> None:
        """Have our server's clients ended, and the daemon."""
        await self.tell("server", "delete", SERVER, "--force")
        await self.tell("-q")


def _as_found(wanted: MpsNamespace, rows: Mapping[str, NamespaceRow]) -> MpsNamespace | None:
    """A namespace with the limits that the daemon says; only of those that are wanted."""
    row = rows.get(wanted.name)
    if row is None:
        return None
    memory = threads = None
    command = f"namespace list ({wanted.name})"
    if wanted.memory_bytes is not None and (amount := parse_memory(command, row.memory)) is not None:
        memory = wanted.memory_bytes if amount.stands_for(wanted.memory_bytes) else amount.bytes
    if wanted.threads_percent is not None and row.threads:
        threads = round(parse_percent(command, row.threads))
    return MpsNamespace(wanted.name, memory, threads)


def configuration(spec: DaemonSpec) -> str:
    """The file that a daemon of version 3 reads at its start, in TOML.

    Without ``allowed_devices``: the daemon sees one device anyway, and a server for one that is not there is
    accepted, ends, and leaves its clients without MPS and without limits.
    """
    lines = [
        'schema_version = "1.0"',
        f"[servers.{SERVER}]",
        *_limits(spec.memory_bytes, spec.threads_percent),
    ]
    for one in spec.namespaces:
        lines += [
            f"[servers.{SERVER}.namespaces.{one.name}]",
            *_limits(one.memory_bytes, one.threads_percent),
        ]
    return "\n".join(lines) + "\n"


def _limits(memory_bytes: int | None, threads_percent: int | None) -> list[str]:
    lines = [] if memory_bytes is None else [f'pinned_memory_limit = "{memory_bytes // MIB}M"']
    return lines if threads_percent is None else [*lines, f'active_thread_percentage = "{threads_percent}"']
