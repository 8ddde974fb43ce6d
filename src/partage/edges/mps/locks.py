"""One step at a time on a daemon, also between processes: a helper that was replaced may still be running."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from partage.edges.host.file_lock import try_lock
from partage.edges.mps.processes import in_thread, wait_until
from partage.errors import DaemonError, NotPermitted


@contextlib.asynccontextmanager
async def hold_lock(path: Path, limit_s: float) -> AsyncIterator[None]:
    """Hold the lock file; the kernel releases it when the process ends. Raises DaemonError, NotPermitted."""
    handle = await asyncio.to_thread(_open, path)
    try:
        if not await wait_until(in_thread(try_lock, handle), limit_s):
            raise DaemonError(
                f"another process has been changing the MPS daemon {path.stem} for more than {limit_s:g} s"
            )
        yield
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except PermissionError as error:
        raise NotPermitted(
            f"MPS daemons cannot be kept below {path.parent}: {error}",
            "--run-dir must belong to Partage's user",
        ) from error
    except OSError as error:
        raise DaemonError(
            f"MPS daemons cannot be kept below {path.parent}: {error}", "is --run-dir writable?"
        ) from error
