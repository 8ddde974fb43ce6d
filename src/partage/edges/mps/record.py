"""The record of a daemon on disk: how it was started, which process it is, and which sockets it made: a
tenant can remove them, or listen there itself.

Written before the daemon is started, and again when its process is known. So a daemon that never started can
be told from one that died.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from msgspec import convert, field, to_builtins

from partage.edges.host.read_file import read_regular
from partage.edges.host.unix_sockets import listener
from partage.edges.mps.daemon_logs import LogMark
from partage.edges.mps.paths import DaemonPaths
from partage.model.mps import SERVER, DaemonSpec
from partage.values import Frozen

CLIENTS = "control"
"""The socket of clients."""

COMMANDS = "control_privileged"
"""The socket to which NVIDIA's program sends root's commands; the simulated one has only the other."""

SocketId = tuple[int, int, int]
"""Device, inode, and time of the last change in nanoseconds."""


def socket_ids(paths: DaemonPaths) -> dict[str, SocketId]:
    """The sockets that are there now, by name."""
    found = ((name, _socket_id(paths.pipe / name)) for name in (CLIENTS, COMMANDS))
    return {name: one for name, one in found if one is not None}


def slot_socket_ids(paths: DaemonPaths, spec: DaemonSpec) -> dict[str, SocketId]:
    """The sockets of its slots that are there now, by the slot's name."""
    found = ((name, _socket_id(paths.pipe / SERVER / name / CLIENTS)) for name in spec.slot_names)
    return {name: one for name, one in found if one is not None}


def changed_slots(paths: DaemonPaths, record: DaemonRecord) -> tuple[str, ...]:
    """Slots whose socket is not the daemon's any more: who had one can have put its own there."""
    if not record.slot_sockets:
        return ()
    now = slot_socket_ids(paths, record.spec)
    return tuple(name for name, one in record.slot_sockets.items() if now.get(name) != one)


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
    for name in (CLIENTS, *(socket_id for socket_id in socket_ids(paths) if socket_id != CLIENTS)):
        found = listener(paths.pipe / name)
        if found is None:
            return f"nobody listens at its socket {name}"
        if found != pid:
            return f"{f'process {found}' if found else 'another process'} listens at its socket {name}"
    return ""


def _socket_id(path: Path) -> SocketId | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


VERSION = 2
_LARGEST_BYTES = 256 * 2**10


class DaemonIdentity(Frozen):
    """One process; a later process with the same pid differs.

    started: clock ticks since boot, from /proc. boot: the boot id, empty if the kernel has none.
    """

    pid: int
    started: int
    boot: str


class DirectoryKind(StrEnum):
    """What the directories of a daemon are.

    bounded: a file system of their own each, so that nothing else is filled where they are. plain:
    directories, because the host is not to have those file systems, or does not permit them. old: directories
    that were there before the daemon, or were made by an older Partage.
    """

    BOUNDED = "bounded"
    PLAIN = "plain"
    OLD = "old"


class DaemonRecord(Frozen):
    """identity: None while the daemon is being started. remark: a problem with its directories, while it
    runs. bound_to: as in ``DaemonState``. sockets: that it has made; empty: an older Partage did not look.
    directories: a record without is an older Partage's. settled: the end of its log when its limits were set
    and read back; None: not yet, or somebody else kept changing them. set_ns: as in ``DaemonState``.
    slot_sockets: as sockets, of its slots.
    """

    spec: DaemonSpec
    identity: DaemonIdentity | None = None
    remark: str = ""
    bound_to: str = ""
    sockets: Mapping[str, SocketId] = field(default_factory=dict)
    directories: DirectoryKind = DirectoryKind.OLD
    settled: LogMark | None = None
    set_ns: int = 0
    slot_sockets: Mapping[str, SocketId] = field(default_factory=dict)


def save_record(path: Path, record: DaemonRecord) -> None:
    """Replace the record atomically. Not synced, because a daemon does not survive a reboot either. Raises
    OSError.
    """
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"version": VERSION, **to_builtins(record)}), encoding="ascii")
    unfinished.replace(path)


def load_record(path: Path) -> DaemonRecord | None:
    """The record; None if there is no readable one."""
    try:
        found = json.loads(read_regular(path, _LARGEST_BYTES))
        if found.pop("version") != VERSION:
            return None
        return convert(found, DaemonRecord)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
