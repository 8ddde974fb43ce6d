"""The commands of version 2 of the control interface: text in, text out.

The words are those of NVIDIA's programs 535.261.03, 550.163.01 and 555.58.02, also where they are misspelt.
Without a GPU these have no server that is ready, so what they say to commands for one is known from their
messages alone: who may change settings of a server, or terminate its clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from partage.sim.mps.clients import SimulatedServer
from partage.sim.mps.limits import DaemonLimits
from partage.sim.mps.state import MpsControlState

Reply = Callable[[MpsControlState, Sequence[str]], str]
"""From the state and the words after the command to what is printed."""

_STATUS = "get_server_status"
NO_QUIT = "Not enough privilege to execute quit command"
_DEFAULTS = "Control deamon settings can only be modified by the user started it or by the root user."
_OF_OTHERS = {
    "set": "Only the root user may change settings for another user's server.",
    "shutdown": "Only the root user may shutdown another user's server.",
    "terminate": "Only the root user may terminate clients on another user's server.",
    "start": "Only the root user may start server for another user.",
}


def run_command(state: MpsControlState, line: str, uid: int = 0) -> str:
    """What one command prints, without the last newline. uid: of the user who gives it.

    ``quit`` is not here: the daemon handles it.
    """
    word, *more = line.split() or [""]
    if refused := _refusal(state, word, more, uid):
        return f"Insufficient privileges for UID {uid}. {refused}"
    reply = None if word == _STATUS and not state.node.has_status else _COMMANDS.get(word)
    return reply(state, more) if reply else f'Unknown command "{word}"'


def _refusal(state: MpsControlState, word: str, words: Sequence[str], uid: int) -> str:
    """Why a user may not give this command; empty: it may."""
    verb = word.partition("_")[0]
    if state.is_root(uid) or not state.node.root_alone or verb not in _OF_OTHERS:
        return ""
    if word.startswith("set_default_"):
        return _DEFAULTS
    if verb == "start":
        return _OF_OTHERS[verb] if words[-1:] != [str(uid)] else ""
    server = state.server(int(words[0])) if words and words[0].isdecimal() else None
    return _OF_OTHERS[verb] if server is not None and server.uid != uid else ""


def _server_list(state: MpsControlState, _words: Sequence[str]) -> str:
    return "\n".join(str(server.pid) for server in state.servers)


def _server_status(state: MpsControlState, words: Sequence[str]) -> str:
    if not (words and words[0].isdecimal()):
        return "A server PID is required"
    return _of_server(state, words, lambda server: server.status.name)


def _client_list(state: MpsControlState, words: Sequence[str]) -> str:
    return _of_server(state, words, lambda server: "\n".join(str(client.pid) for client in server.clients))


def _device_client_list(state: MpsControlState, words: Sequence[str]) -> str:
    if words and state.server(_pid(words)) is None:
        return f"Server {words[0]} not found"
    wanted = [server for server in state.servers if not words or str(server.pid) == words[0]]
    pids = " ".join(str(client.pid) for server in wanted for client in server.clients)
    return "\n".join(f"{device} {pids}".rstrip() for device in state.defaults.devices)


def _ps(state: MpsControlState, words: Sequence[str]) -> str:
    """Columns as the guide shows them; the device by the first part of its UUID."""
    if not state.servers:
        return "Server not found"
    only = words[1] if len(words) == 2 and words[0] == "-p" else None  # a client's
    rows = [f"{'PID':<10}{'ID':<6}{'SERVER':<10}{'DEVICE':<19}{'NAMESPACE':<15}COMMAND"]
    device = state.defaults.devices[0][:18] if state.defaults.devices else "-"
    for server in state.servers:
        rows += [
            f"{client.pid:<10}{0:<6}{server.pid:<10}{device:<19}{client.namespace:<15}{client.command}"
            for client in server.clients
            if only is None or str(client.pid) == only
        ]
    return "\n".join(rows)


def _shutdown(state: MpsControlState, words: Sequence[str]) -> str:
    """Without a GPU no server was there to be ended: that it is, is taken from the name."""
    return _of_server(state, words, lambda server: state.shut_down(server.pid))


def _start_server(state: MpsControlState, words: Sequence[str]) -> str:
    if len(words) == 2 and words[0] == "-uid" and words[1].isdecimal():
        state.start_server(int(words[1]))
        return ""
    return "A user id (UID) is required to start a new server"


def _set_default_threads(state: MpsControlState, words: Sequence[str]) -> str:
    state.defaults = _unless_ignored(state, state.defaults, state.defaults.with_threads(*words[:1] or [""]))
    return state.defaults.printed_threads


def _get_default_threads(state: MpsControlState, _words: Sequence[str]) -> str:
    return state.defaults.printed_threads


def _set_threads(state: MpsControlState, words: Sequence[str]) -> str:
    def change(server: SimulatedServer) -> str:
        server.limits = _unless_ignored(state, server.limits, server.limits.with_threads(*words[1:2] or [""]))
        return server.limits.printed_threads

    return _of_server(state, words, change)


def _get_threads(state: MpsControlState, words: Sequence[str]) -> str:
    return _of_server(state, words, lambda server: server.limits.printed_threads)


def _set_default_memory(state: MpsControlState, words: Sequence[str]) -> str:
    state.defaults = _told_memory(state, state.defaults, words)
    return ""


def _get_default_memory(state: MpsControlState, words: Sequence[str]) -> str:
    return state.defaults.printed_memory(words[0]) if words else ""


def _set_memory(state: MpsControlState, words: Sequence[str]) -> str:
    def change(server: SimulatedServer) -> str:
        server.limits = _told_memory(state, server.limits, words[1:])
        return ""

    return _of_server(state, words, change)


def _get_memory(state: MpsControlState, words: Sequence[str]) -> str:
    name = words[1] if len(words) > 1 else "0"
    return _of_server(state, words, lambda server: server.limits.printed_memory(name))


def _terminate(state: MpsControlState, words: Sequence[str]) -> str:
    server, client = _pid(words), _pid(words[1:])
    if state.terminate(server, client):
        return ""
    if state.server(server) is None:
        return f"Server {server} not found\nServer {server} not found!\n1"
    return f"No client {client} of server {server}"  # our words


def _of_server(state: MpsControlState, words: Sequence[str], reply: Callable[[SimulatedServer], str]) -> str:
    server = state.server(_pid(words))
    return reply(server) if server else f"Server {_pid(words)} not found"


def _pid(words: Sequence[str]) -> int:
    """The first word as a number; 0 where it is none."""
    return int(words[0]) if words and words[0].isdecimal() else 0


def _told_memory(state: MpsControlState, limits: DaemonLimits, words: Sequence[str]) -> DaemonLimits:
    """The limits with that of a device. Only an ordinal is taken; what stands behind the amount is not read,
    and an amount that is missing is 0.
    """
    ordinal, amount = (*words, "", "")[:2]
    return (
        _unless_ignored(state, limits, limits.with_memory(ordinal, amount)) if ordinal.isdecimal() else limits
    )


def _unless_ignored(state: MpsControlState, before: DaemonLimits, after: DaemonLimits) -> DaemonLimits:
    return replace(before) if state.node.ignores_limits else after


_COMMANDS: dict[str, Reply] = {
    "get_server_list": _server_list,
    _STATUS: _server_status,
    "get_client_list": _client_list,
    "get_device_client_list": _device_client_list,
    "ps": _ps,
    "start_server": _start_server,
    "set_default_active_thread_percentage": _set_default_threads,
    "get_default_active_thread_percentage": _get_default_threads,
    "set_active_thread_percentage": _set_threads,
    "get_active_thread_percentage": _get_threads,
    "set_default_device_pinned_mem_limit": _set_default_memory,
    "get_default_device_pinned_mem_limit": _get_default_memory,
    "set_device_pinned_mem_limit": _set_memory,
    "get_device_pinned_mem_limit": _get_memory,
    "terminate_client": _terminate,
    "shutdown_server": _shutdown,
}
