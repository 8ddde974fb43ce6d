"""The record of a daemon on disk: how it was started, and which process it is.

Written before the daemon is started, and again when its process is known. So a daemon that never started
can be told from one that died.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from msgspec import convert, field, to_builtins

from partage.edges.host.read_file import read_regular
from partage.edges.mps.control_log import LogMark
from partage.edges.mps.sockets import SocketId
from partage.model.mps import DaemonSpec
from partage.values import Frozen

VERSION = 2
_LARGEST_BYTES = 64 * 2**10


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
    """

    spec: DaemonSpec
    identity: DaemonIdentity | None = None
    remark: str = ""
    bound_to: str = ""
    sockets: Mapping[str, SocketId] = field(default_factory=dict)
    directories: DirectoryKind = DirectoryKind.OLD
    settled: LogMark | None = None
    set_ns: int = 0


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
