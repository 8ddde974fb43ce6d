"""The commands of version 2 of the control interface: text in, text out.

Where NVIDIA's guide gives no words for a reply (an unknown pid, an unknown command) they are ours. Nothing
may depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from partage.sim.mps.clients import SimulatedServer
from partage.sim.mps.limits import DaemonLimits
from partage.sim.mps.state import MpsControlState

Reply = Callable[[MpsControlState, Sequence[str]], str]
"""From the state and the words after the command to what is printed."""


def run_command(state: MpsControlState, line: str) -> str:
    """What one command prints, without the last newline. ``quit`` is not here: the daemon handles it."""
    words = line.split()
    if not words:
        return ""
    reply = _COMMANDS.get(words[0])
    return reply(state, words[1:]) if reply else f"Unrecognized command: {words[0]}"


def _server_list(state: MpsControlState, _words: Sequence[str]) -> str:
    return "\n".join(str(server.pid) for server in state.servers)


def _server_status(state: MpsControlState, words: Sequence[str]) -> str:
    return _of_server(state, words, lambda server: server.status.name)


def _client_list(state: MpsControlState, words: Sequence[str]) -> str:
    return _of_server(state, words, lambda server: "\n".join(str(client.pid) for client in server.clients))


def _device_client_list(state: MpsControlState, words: Sequence[str]) -> str:
    wanted = [server for server in state.servers if not words or str(server.pid) == words[0]]
    pids = " ".join(str(client.pid) for server in wanted for client in server.clients)
    return "\n".join(f"{device} {pids}".rstrip() for device in state.defaults.devices)


def _ps(state: MpsControlState, words: Sequence[str]) -> str:
    """Columns as the guide shows them; the device by the first part of its UUID."""
    only = words[1] if len(words) == 2 and words[0] == "-p" else None
    rows = [f"{'PID':<10}{'ID':<6}{'SERVER':<10}{'DEVICE':<19}{'NAMESPACE':<15}COMMAND"]
    device = state.defaults.devices[0][:18] if state.defaults.devices else "-"
    for server in state.servers:
        rows += [
            f"{client.pid:<10}{0:<6}{server.pid:<10}{device:<19}{client.namespace:<15}{client.command}"
            for client in server.clients
            if only is None or str(client.pid) == only
        ]
    return "\n".join(rows)


def _start_server(state: MpsControlState, words: Sequence[str]) -> str:
    if len(words) == 2 and words[0] == "-uid" and words[1].isdecimal():
        state.start_server(int(words[1]))
        return ""
    return "Usage: start_server -uid <user id>"


def _set_default_threads(state: MpsControlState, words: Sequence[str]) -> str:
    state.defaults = _unless_ignored(state, state.defaults, state.defaults.with_threads(*words[:1] or [""]))
    return str(state.defaults.threads)


def _get_default_threads(state: MpsControlState, _words: Sequence[str]) -> str:
    return str(state.defaults.threads)


def _set_threads(state: MpsControlState, words: Sequence[str]) -> str:
    def change(server: SimulatedServer) -> str:
        server.limits = _unless_ignored(state, server.limits, server.limits.with_threads(*words[1:2] or [""]))
        return str(server.limits.threads)

    return _of_server(state, words, change)


def _get_threads(state: MpsControlState, words: Sequence[str]) -> str:
    return _of_server(state, words, lambda server: str(server.limits.threads))


def _set_default_memory(state: MpsControlState, words: Sequence[str]) -> str:
    if len(words) == 2:
        state.defaults = _unless_ignored(state, state.defaults, state.defaults.with_memory(*words))
    return ""


def _get_default_memory(state: MpsControlState, words: Sequence[str]) -> str:
    return state.defaults.printed_memory(words[0] if words else "0")


def _set_memory(state: MpsControlState, words: Sequence[str]) -> str:
    def change(server: SimulatedServer) -> str:
        if len(words) == 3:
            server.limits = _unless_ignored(state, server.limits, server.limits.with_memory(*words[1:]))
        return ""

    return _of_server(state, words, change)


def _get_memory(state: MpsControlState, words: Sequence[str]) -> str:
    name = words[1] if len(words) > 1 else "0"
    return _of_server(state, words, lambda server: server.limits.printed_memory(name))


def _terminate(state: MpsControlState, words: Sequence[str]) -> str:
    if len(words) == 2 and all(word.isdecimal() for word in words):
        if state.terminate(int(words[0]), int(words[1])):
            return ""
        return f"No client {words[1]} of server {words[0]}"
    return "Usage: terminate_client <server pid> <client pid>"


def _of_server(state: MpsControlState, words: Sequence[str], reply: Callable[[SimulatedServer], str]) -> str:
    server = state.server(int(words[0])) if words and words[0].isdecimal() else None
    return reply(server) if server else f"No server with pid {words[0] if words else ''}"


def _unless_ignored(state: MpsControlState, before: DaemonLimits, after: DaemonLimits) -> DaemonLimits:
    return replace(before) if state.node.ignores_limits else after


_COMMANDS: dict[str, Reply] = {
    "get_server_list": _server_list,
    "get_server_status": _server_status,
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
}
