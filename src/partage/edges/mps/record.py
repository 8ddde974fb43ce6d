"""What is written down about a daemon: what it was asked to be, and which process it is.

Written before the daemon is started, and again when its process is known: whoever finds the directory later
can tell a daemon that never came up from one that died.
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
    """One process, and no other that gets its number later.

    started: in clock ticks since boot, as /proc has it. boot: the boot id, empty where the kernel has none.
    """

    pid: int
    started: int
    boot: str


@dataclass(frozen=True, slots=True)
class Record:
    """identity: None while the daemon is being started.

    remark: what is amiss with its directories, for as long as it runs in them.
    """

    spec: DaemonSpec
    identity: DaemonIdentity | None = None
    remark: str = ""


def save(path: Path, record: Record) -> None:
    """Replace the record at once. Not synced: like its daemon it ends with the boot. Raises OSError."""
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"version": VERSION, **asdict(record)}), encoding="ascii")
    unfinished.replace(path)


def load(path: Path) -> Record | None:
    """The record; None where there is none that can be read."""
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
