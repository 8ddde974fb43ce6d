"""The commands of version 3 of the control interface: module, verb, arguments. Only those that Partage uses.

Columns and the words ``Ready`` and ``20G`` are those of NVIDIA's guide. The other words for a server's state,
``-`` for a limit that is not set, and all error messages are ours: no source has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from partage.model.mps import DEFAULT_NAMESPACE, ServerStatus
from partage.sim.mps.limits import ALL_THREADS, DaemonLimits
from partage.sim.mps.named_state import CommandError, NamedServer, NamedState

_STATUS = {
    ServerStatus.ACTIVE: "Ready",
    ServerStatus.INITIALIZING: "Initializing",
    ServerStatus.FAULT: "Fault",
}
_ABSENT = "-"
_FORMATS = ("table", "csv", "csv,noheader")


class _Call(Struct):
    """The words of one command: positional ones, ``--key=value``, and flags. Each can be taken once."""

    words: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, words: Sequence[str]) -> _Call:
        call = cls()
        for word in words:
            key, sign, value = word.removeprefix("--").partition("=")
            if word.startswith("--") or sign:
                call.values[key] = value
            else:
                call.words.append(word)
        return call

    def next(self, what: str) -> str:
        if not self.words:
            raise CommandError(f"{what} is missing")
        return self.words.pop(0)

    def value(self, key: str) -> str | None:
        return self.values.pop(key, None)

    def needed(self, key: str) -> str:
        value = self.value(key)
        if not value:
            raise CommandError(f"--{key} is missing")
        return value

    def flag(self, key: str) -> bool:
        return self.value(key) is not None


def run_command(state: NamedState, pipe: str, words: Sequence[str]) -> str:
    """What one command prints. pipe: the pipe directory. Raises CommandError."""
    verb = _VERBS.get((words[0], words[1])) if len(words) > 1 else None
    if verb is None:
        raise CommandError(f"unknown command: {' '.join(words[:2])}")
    call = _Call.of(words[2:])
    reply = verb(state, pipe, call)
    if call.words or call.values:
        raise CommandError(f"too much: {' '.join((*call.words, *call.values))}")
    return reply


def _create_server(state: NamedState, _pipe: str, call: _Call) -> str:
    uid = call.value("uid")
    name = call.next("the name") if uid is None or call.words else f"uid_{uid}"
    state.create_server(name, None if uid is None else int(uid), call.value("allowed-devices"))
    return f"Server '{name}' created"


def _delete_server(state: NamedState, _pipe: str, call: _Call) -> str:
    name = call.next("the name")
    state.delete_server(name, force=call.flag("force"))
    return f"Server '{name}' deleted"


def _list_servers(state: NamedState, pipe: str, call: _Call) -> str:
    only = call.words.pop(0) if call.words else None
    if only is not None and state.named(only) is None:
        raise CommandError(f"there is no server {only!r}")
    rows = [
        (
            server.name,
            server.uid,
            server.pid,
            _STATUS[server.status],
            f"{pipe}/{server.name}",
            _ABSENT,
            _ABSENT,
        )
        for server in _servers(state)
        if only in (None, server.name) and server.pid
    ]
    columns = ("name", "uid", "pid", "status", "pipe-directory", "allowed-devices", "context-ids")
    return _listed(columns, rows, call)


def _set_server(state: NamedState, _pipe: str, call: _Call) -> str:
    return _set(state, call.next("the name"), DEFAULT_NAMESPACE, call)


def _create_namespace(state: NamedState, _pipe: str, call: _Call) -> str:
    name = call.next("the name")
    state.create_namespace(call.needed("server"), name)
    return f"Namespace '{name}' created"


def _set_namespace(state: NamedState, _pipe: str, call: _Call) -> str:
    return _set(state, call.needed("server"), call.next("the name"), call)


def _set(state: NamedState, server: str, name: str, call: _Call) -> str:
    memory, threads = call.value("pinned-memory-limit"), call.value("active-thread-percentage")
    if memory is None and threads is None:
        raise CommandError("at least one option is required")
    state.set_namespace(server, name, memory, threads)
    return ""


def _list_namespaces(state: NamedState, pipe: str, call: _Call) -> str:
    server = call.value("server")
    rows = [
        (
            name,
            named_server.name,
            _STATUS[named_server.status],
            *_amounts(limits),
            "0",
            f"{pipe}/{named_server.name}/{name}",
        )
        for named_server in _servers(state)
        for name, limits in named_server.namespaces.items()
        if server in (None, named_server.name) and named_server.pid
    ]
    columns = ("name", "server", "server-status", "pinned-memory-limit", "active-thread-percentage")
    return _listed((*columns, "client-priority", "pipe-directory"), rows, call)


def _get_namespace(state: NamedState, pipe: str, call: _Call) -> str:
    name, server, asked = call.next("the name"), call.next("the server"), call.next("the field")
    of = state.named(server)
    if of is None or name not in of.namespaces:
        raise CommandError(f"there is no namespace {name!r} in {server!r}")
    memory, threads = _amounts(of.namespaces[name])
    known = {
        "name": name,
        "server": server,
        "server-status": _STATUS[of.status],
        "pipe-directory": f"{pipe}/{server}/{name}",
        "pinned-memory-limit": memory,
        "active-thread-percentage": threads,
    }
    if asked not in known:
        raise CommandError(f"there is no field {asked!r}")
    return known[asked]


def _amounts(limits: DaemonLimits) -> tuple[str, str]:
    threads = _ABSENT if limits.threads == ALL_THREADS else f"{limits.threads:.2f}"
    return limits.printed_memory("0") or _ABSENT, threads


def _list_clients(state: NamedState, _pipe: str, call: _Call) -> str:
    server = call.value("server")
    if not call.flag("all") and server is None:
        raise CommandError("--server or --all is missing")
    rows = [
        (client.pid, named_server.name, 0, client.route[1] or DEFAULT_NAMESPACE, client.command)
        for named_server in _servers(state)
        for client in named_server.clients
        if server in (None, named_server.name)
    ]
    return _listed(("pid", "server", "device", "namespace", "cmd"), rows, call)


def _end_client(state: NamedState, _pipe: str, call: _Call) -> str:
    pid = call.next("the pid")
    state.end_client(int(pid) if pid.isdecimal() else 0)
    return ""


def _servers(state: NamedState) -> list[NamedServer]:
    return [server for server in state.servers if isinstance(server, NamedServer)]


def _listed(columns: Sequence[str], rows: Sequence[Sequence[object]], call: _Call) -> str:
    output_format = call.value("format") or _FORMATS[0]
    if output_format not in _FORMATS:
        raise CommandError(f"there is no format {output_format!r}")
    if output_format == "table":
        header = [column.upper() for column in columns]
        return "\n".join("".join(f"{cell!s:<26}" for cell in row).rstrip() for row in (header, *rows))
    lines = [",".join(map(str, row)) for row in rows]
    return "\n".join(lines if output_format == "csv,noheader" else [",".join(columns), *lines])


_VERBS: dict[tuple[str, str], Callable[[NamedState, str, _Call], str]] = {
    ("server", "create"): _create_server,
    ("server", "delete"): _delete_server,
    ("server", "list"): _list_servers,
    ("server", "set"): _set_server,
    ("namespace", "create"): _create_namespace,
    ("namespace", "list"): _list_namespaces,
    ("namespace", "set"): _set_namespace,
    ("namespace", "get"): _get_namespace,
    ("client", "list"): _list_clients,
    ("client", "terminate"): _end_client,
}
