"""Whether a daemon's sockets are those that it made: a tenant can remove them, or listen there itself.

The kernel's own numbers tell: inode and time of change, which nobody can set. Blocking.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping

from partage.edges.host.listening import listener
from partage.edges.mps.paths import DaemonPaths

CLIENTS = "control"
"""Where clients connect."""

COMMANDS = "control_privileged"
"""Where NVIDIA's program sends root's commands; the simulated one has only the other."""

SocketId = tuple[int, int, int]
"""Device, inode, and time of the last change in nanoseconds."""


def socket_ids(paths: DaemonPaths) -> dict[str, SocketId]:
    """The sockets that are there now, by name."""
    found = ((name, _socket_id(paths, name)) for name in (CLIENTS, COMMANDS))
    return {name: one for name, one in found if one is not None}


def changed(paths: DaemonPaths, made: Mapping[str, SocketId]) -> dict[str, str]:
    """Sockets that are not as the daemon has made them any more, each with a sentence."""
    now = socket_ids(paths)
    return {
        name: f"its socket {name} was {'changed by somebody else' if name in now else 'removed'}, so it "
        "has to be replaced"
        for name, one in made.items()
        if now.get(name) != one
    }


def answers_elsewhere(paths: DaemonPaths, pid: int) -> str:
    """Who else than the daemon listens at its sockets, a clause; empty: nobody. Call it once they are there.

    A tenant may have been faster than who looks at them for the first time.
    """
    for name in (CLIENTS, *(one for one in socket_ids(paths) if one != CLIENTS)):
        found = listener(paths.pipe / name)
        if found is None:
            return f"nobody listens at its socket {name}"
        if found != pid:
            return f"{f'process {found}' if found else 'another process'} listens at its socket {name}"
    return ""


def _socket_id(paths: DaemonPaths, name: str) -> SocketId | None:
    try:
        found = (paths.pipe / name).lstat()
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
