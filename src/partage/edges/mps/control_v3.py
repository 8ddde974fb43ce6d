"""Commands of version 3 of the MPS control interface: module and verb as arguments of the control program.

The daemon has one named server, and in it a namespace for each kind of share. All are made by a file that the
daemon reads when it starts: a namespace made by ``namespace create`` has no limit until the next command, and
a client that connects in between keeps running without one. Slots are closed in that file; the limits of one
are set by one command when a claim gets it.

Sources: NVIDIA's MPS guide, release 615 (commands, columns, the file); NVIDIA's Dynamo project, which shows
output of a real daemon (driver 615.71: ``20G`` for a limit, ``30.00`` for a percentage, ``Ready`` for a
server). Other texts for a server's status, and for a limit that was never set, are not documented. Not yet
tested on a real GPU (docs/explanation/mps.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from partage.edges.mps.program import (
    ControlProgram,
    NamespaceRow,
    parse_client_rows,
    parse_memory,
    parse_namespace_rows,
    parse_percent,
    parse_server_rows,
)
from partage.model.mps import (
    DEFAULT_NAMESPACE,
    SERVER,
    ClientLimits,
    DaemonSpec,
    MpsNamespace,
    MpsServer,
    closed_slot,
)
from partage.units import MIB

OPTIONS = ("-p", "3", "-a")
"""Options of the program that becomes a daemon; the path of the file follows."""

_ROWS = "--format=csv,noheader"


class ControlV3(ControlProgram):
    """The command line of one control daemon with named servers."""

    async def tell(self, *words: str, deadline_s: float | None = None) -> str:
        """The output of the program with these arguments. Raises NoReply, DaemonError, Unsupported."""
        return await self.answer(" ".join(words), words, b"", deadline_s)

    async def listed(self) -> tuple[MpsServer, ...]:
        """All servers with their clients, including those that the daemon starts for a user."""
        servers = parse_server_rows(await self.tell("server", "list", _ROWS))
        if not servers:
            return ()
        clients = parse_client_rows(await self.tell("client", "list", "--all", _ROWS))
        return tuple(replace(server, clients=clients.get(server.name, ())) for server in servers)

    async def limits(self, spec: DaemonSpec, servers: Sequence[MpsServer] = ()) -> ClientLimits:
        """The limits of our server and its namespaces as the daemon reports them; missing namespaces are left
        out. They are the server's from its start.
        """
        del servers
        ours = await self._namespaces()
        others = _as_found(MpsNamespace(DEFAULT_NAMESPACE, spec.memory_bytes, spec.threads_percent), ours)
        namespaces = tuple(
            namespace
            for mps_namespace in spec.namespaces
            if (namespace := _as_found(mps_namespace, ours)) is not None
        )
        slots = sum(name in ours for name in spec.slot_names)
        if others is None:
            return ClientLimits(namespaces=namespaces, slots=slots)
        return ClientLimits(others.memory_bytes, others.threads_percent, namespaces, slots)

    async def open_slots(self, spec: DaemonSpec) -> tuple[str, ...]:
        """The slots that are not closed now."""
        if not spec.slots:
            return ()
        ours = await self._namespaces()
        closed = {name: closed_slot(name) for name in spec.slot_names if name in ours}
        return tuple(name for name, wanted in closed.items() if _as_found(wanted, ours) != wanted)

    async def namespace(self, wanted: MpsNamespace) -> MpsNamespace | None:
        """A namespace of our server as the daemon reports it; None: there is none of this name."""
        return _as_found(wanted, await self._namespaces())

    async def set_namespace(self, wanted: MpsNamespace) -> None:
        """Set its limits, both in one command, for clients that connect from now on."""
        memory, threads = wanted.memory_bytes, wanted.threads_percent
        assert memory is not None
        assert threads is not None
        amounts = f"--pinned-memory-limit={memory // MIB}M", f"--active-thread-percentage={threads}"
        await self.tell("namespace", "set", wanted.name, f"--server={SERVER}", *amounts)

    async def _namespaces(self) -> Mapping[str, NamespaceRow]:
        rows = parse_namespace_rows(await self.tell("namespace", "list", _ROWS))
        return {row.name: row for row in rows if row.server == SERVER}

    async def terminate(self, server: int, client: int, deadline_s: float) -> None:
        """End the work of a client; the daemon finds its server."""
        del server
        await self.tell("client", "terminate", str(client), deadline_s=deadline_s)

    async def quit(self, deadline_s: float) -> None:
        """Stop the daemon. What happens to its clients is not documented."""
        await self.tell("-q", deadline_s=deadline_s)

    async def quit_by_force(self) -> None:
        """End the clients of our server, and the daemon."""
        await self.tell("server", "delete", SERVER, "--force")
        await self.tell("-q")


def _as_found(wanted: MpsNamespace, rows: Mapping[str, NamespaceRow]) -> MpsNamespace | None:
    """A namespace with the limits that the daemon reports; only those that ``wanted`` sets."""
    row = rows.get(wanted.name)
    if row is None:
        return None
    memory = threads = None
    command = f"namespace list ({wanted.name})"
    if wanted.memory_bytes is not None and (amount := parse_memory(command, row.memory)) is not None:
        memory = wanted.memory_bytes if amount.stands_for(wanted.memory_bytes) else amount.bytes
    if wanted.threads_percent is not None:  # without a percentage it may use all of them
        threads = round(parse_percent(command, row.threads)) if row.threads else 100
    return MpsNamespace(wanted.name, memory, threads)


def configuration_file(spec: DaemonSpec) -> str:
    """The file that a daemon of version 3 reads when it starts, in TOML.

    Without ``allowed_devices``: the daemon sees only one device, and with a device that does not exist a
    server would be accepted, end, and leave its clients without MPS and without limits.
    """
    lines = [
        'schema_version = "1.0"',
        f"[servers.{SERVER}]",
        *_limits(spec.memory_bytes, spec.threads_percent),
    ]
    for namespace in (*spec.namespaces, *map(closed_slot, spec.slot_names)):
        lines += [
            f"[servers.{SERVER}.namespaces.{namespace.name}]",
            *_limits(namespace.memory_bytes, namespace.threads_percent),
        ]
    return "\n".join(lines) + "\n"


def _limits(memory_bytes: int | None, threads_percent: int | None) -> list[str]:
    lines = [] if memory_bytes is None else [f'pinned_memory_limit = "{memory_bytes // MIB}M"']
    return lines if threads_percent is None else [*lines, f'active_thread_percentage = "{threads_percent}"']
