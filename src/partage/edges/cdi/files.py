"""One CDI file: the runtime sees all of it or none."""

from __future__ import annotations

from pathlib import Path

from partage.edges.host.replace_file import replace_file
from partage.errors import HardwareError


def write_cdi_file(path: Path, content: bytes) -> None:
    """Write it, with its directory. It is not flushed. Raises HardwareError."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(path, content, mode=0o644, hidden=True, flush=False)
    except OSError as error:
        raise HardwareError(f"cannot write the CDI file {path}: {error.strerror}") from error


def remove_cdi_file(path: Path) -> None:
    """Remove it, if it is there. Raises HardwareError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise HardwareError(f"cannot remove the CDI file {path}: {error.strerror}") from error
