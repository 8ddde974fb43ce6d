"""The record of a daemon on disk: how it was started, and which process it is.

Written before the daemon is started, and again when its process is known. So a daemon that never started
can be told from one that died.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from partage.model.mps import DaemonSpec, MpsNamespace

VERSION = 1
_LARGEST_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class DaemonIdentity:
    """One process; a later process with the same pid differs.

    started: clock ticks since boot, from /proc. boot: the boot id, empty if the kernel has none.
    """

    pid: int
    started: int
    boot: str


@dataclass(frozen=True, slots=True)
class Record:
    """identity: None while the daemon is being started. remark: a problem with its directories, while it
    runs.
    """

    spec: DaemonSpec
    identity: DaemonIdentity | None = None
    remark: str = ""


def save(path: Path, record: Record) -> None:
    """Replace the record atomically. Not synced, because a daemon does not survive a reboot either. Raises
    OSError.
    """
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"version": VERSION, **asdict(record)}), encoding="ascii")
    unfinished.replace(path)


def load(path: Path) -> Record | None:
    """The record; None if there is no readable one."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST_BYTES))
        if found.pop("version") != VERSION:
            return None
        asked, identity = found.pop("spec"), found.pop("identity")
        namespaces = tuple(MpsNamespace(**one) for one in asked.pop("namespaces", ()))
        spec = DaemonSpec(**asked, namespaces=namespaces)
        return Record(spec, identity=DaemonIdentity(**identity) if identity is not None else None, **found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
