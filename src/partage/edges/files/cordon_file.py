"""The files in the state directory that name cordoned GPUs: they are still there after a reboot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from partage.edges.host.read_file import read_regular
from partage.errors import InputError

BY_HAND = "cordoned"
"""What ``partage cordon`` has written on this node."""

BY_NODE = "cordoned-by-node"
"""What the annotation of the Node has said last: an agent that starts may not reach the API server."""

_LIMIT_BYTES = 1 << 16


def read_names(path: Path) -> str:
    """The text of such a file; empty where there is none. Raises InputError."""
    try:
        return read_regular(path, _LIMIT_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def write_names(path: Path, names: Iterable[str]) -> None:
    """Replace the file in one step; remove it where there is no name. Raises InputError."""
    lines = "".join(f"{name}\n" for name in sorted(names))
    try:
        if not lines:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.new")
        beside.write_text(lines, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
