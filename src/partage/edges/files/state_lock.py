"""The lock of the state directory: one agent, or one ``partage apply``, at a time.

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

_FILE = "lock"


def take_lock(state_dir: Path) -> int:
    """The locked descriptor. Closed on exec, so no child keeps the lock when the agent is gone.

    Raises InputError if another process has the lock, OSError.
    """
    lock = os.open(state_dir / _FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise _in_use(state_dir) from None
    except OSError:
        os.close(lock)
        raise
    with suppress(OSError):  # who has the lock is for people only; a full disk does not matter here
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return lock


def is_locked(state_dir: Path) -> bool:
    """Whether an agent, or ``partage apply``, has the state directory now."""
    try:
        lock = os.open(state_dir / _FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
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


def check_unlocked(state_dir: Path) -> None:
    """Raise InputError if another process has the lock now."""
    if is_locked(state_dir):
        raise _in_use(state_dir)


def _in_use(state_dir: Path) -> InputError:
    return InputError(
        f"another agent{_owner(state_dir)} uses the state directory {state_dir}",
        hint="give each agent of a node its own --state-dir",
    )


def _owner(state_dir: Path) -> str:
    try:
        text = read_regular(state_dir / _FILE, 256).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return f" (process {text})" if text else ""
