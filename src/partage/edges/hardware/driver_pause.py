"""The note that tells every process of the node to leave the driver alone: ``<run-dir>/driver-paused``.

A file, because it outlives agent and helper, and because a process that starts meanwhile reads it before it
opens the driver.
"""

from __future__ import annotations

from pathlib import Path

NOTE = "driver-paused"
_MOST = 500


def read_pause(run_dir: Path) -> str:
    """Why the driver is left alone; empty if it is not. A note that cannot be read is one."""
    try:
        with (run_dir / NOTE).open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST).strip() or "it is paused"
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"{run_dir / NOTE} cannot be read: {error.strerror}"


def write_pause(run_dir: Path, reason: str) -> None:
    """Pause, or end the pause with an empty reason. Raises OSError."""
    path = run_dir / NOTE
    if not reason:
        path.unlink(missing_ok=True)
        return
    beside = path.with_name(f"{NOTE}.new")
    beside.write_text(reason[:_MOST] + "\n", encoding="utf-8")
    beside.replace(path)
