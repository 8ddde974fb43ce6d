"""One act on a daemon at a time, among processes, too: a helper that was replaced may not have ended yet."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

from partage.edges.mps.stopping import in_thread, wait_until
from partage.errors import DaemonError, NotPermitted


@contextlib.asynccontextmanager
async def held(path: Path, limit_s: float) -> AsyncIterator[None]:
    """Hold the lock file; the kernel frees it when the process ends. Raises DaemonError, NotPermitted."""
    handle = await asyncio.to_thread(_open, path)
    try:
        if not await wait_until(in_thread(_take, handle), limit_s):
            raise DaemonError(
                f"somebody else acts on the MPS daemon {path.stem}, and has done so for {limit_s:g} s"
            )
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether somebody acts on the daemon now."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _take(handle)
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except PermissionError as error:
        raise NotPermitted(
            f"MPS daemons cannot be kept below {path.parent}: {error}", "Partage has to own its --run-dir"
        ) from error
    except OSError as error:
        raise DaemonError(
            f"MPS daemons cannot be kept below {path.parent}: {error}", "is --run-dir writable?"
        ) from error


def _take(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
