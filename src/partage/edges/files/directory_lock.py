"""The locks of an agent's directories: of the state directory for one agent or one ``partage apply`` at a
time, of the run directory, where the helper's socket is, for one agent.

Imported before the agent, so it imports little.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from partage.edges.host import file_lock
from partage.edges.host.read_file import read_regular
from partage.errors import InputError

STATE_LOCK, RUN_LOCK = "lock", "agent.lock"
"""The files that are locked."""

_NAMES = {STATE_LOCK: ("state directory", "--state-dir"), RUN_LOCK: ("run directory", "--run-dir")}
_LOOK_EVERY_S = 0.05


def take_lock(directory: Path, file: str = STATE_LOCK, *, wait_s: float = 0) -> int:
    """The locked descriptor. Closed on exec, so no child keeps the lock when the agent is gone. Blocking.

    Raises InputError if another process has the lock, and still has it after ``wait_s``; OSError.
    """
    deadline = time.monotonic() + wait_s
    lock = os.open(directory / file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while not (ours := file_lock.try_lock(lock)) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
    except OSError:
        os.close(lock)
        raise
    if not ours:
        os.close(lock)
        raise _in_use(directory, file)
    with suppress(OSError):  # who has the lock is for people only; a full disk does not matter here
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return lock


@contextmanager
def locked_run_directory(run_dir: Path, *, wait_s: float) -> Iterator[None]:
    """Hold the run directory, which is made where it is missing. Blocking.

    Raises InputError where another agent has it. One that cannot be locked at all is reported by what cannot
    be written there.
    """
    lock = None
    with suppress(OSError):
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = take_lock(run_dir, RUN_LOCK, wait_s=wait_s)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def is_locked(directory: Path, file: str = STATE_LOCK) -> bool:
    """Whether another process has the directory now."""
    return file_lock.is_locked(directory / file)


def check_unlocked(directory: Path, file: str = STATE_LOCK, *, wait_s: float = 0) -> None:
    """Raise InputError if another process has the lock, and still has it after ``wait_s``. Blocking."""
    deadline = time.monotonic() + wait_s
    while is_locked(directory, file):
        if time.monotonic() >= deadline:
            raise _in_use(directory, file)
        time.sleep(_LOOK_EVERY_S)


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
