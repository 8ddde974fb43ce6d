"""The locks of an agent's directories: of the state directory for one agent or one ``partage apply`` at a
time, of the run directory, where the helper's socket is, for one agent.

Imported before the agent, so it imports little.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from partage.edges.read_file import read_regular
from partage.errors import InputError

STATE_LOCK, RUN_LOCK = "lock", "agent.lock"
"""The files that are locked."""

_NAMES = {STATE_LOCK: ("state directory", "--state-dir"), RUN_LOCK: ("run directory", "--run-dir")}


def take_lock(directory: Path, file: str = STATE_LOCK) -> int:
    """The locked descriptor. Closed on exec, so no child keeps the lock when the agent is gone.

    Raises InputError if another process has the lock, OSError.
    """
    lock = os.open(directory / file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise _in_use(directory, file) from None
    except OSError:
        os.close(lock)
        raise
    with suppress(OSError):  # who has the lock is for people only; a full disk does not matter here
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return lock


def is_locked(directory: Path, file: str = STATE_LOCK) -> bool:
    """Whether another process has the directory now."""
    try:
        lock = os.open(directory / file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def check_unlocked(directory: Path, file: str = STATE_LOCK) -> None:
    """Raise InputError if another process has the lock now."""
    if is_locked(directory, file):
        raise _in_use(directory, file)


def _in_use(directory: Path, file: str) -> InputError:
    name, option = _NAMES[file]
    return InputError(
        f"another agent{_owner(directory / file)} uses the {name} {directory}",
        hint=f"give each agent of a node its own {option}",
    )


def _owner(lock: Path) -> str:
    try:
        text = read_regular(lock, 256).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return f" (process {text})" if text else ""
