"""While nvidia-smi resets GPUs, nothing else may open a session or change a GPU, also not after the process
that started it was killed: nvidia-smi goes on then.

The lock is a file in the run directory. nvidia-smi inherits it open and locked, so the kernel ends the lock
when both processes have ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from partage.edges.hardware.host import Host
from partage.errors import GpuInUse
from partage.model.ids import GpuUuid

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_TRY_S = 0.5
"""Others may hold the lock for a moment, to see whether a reset runs."""

_LONGEST = 4096


@contextlib.contextmanager
def reset_lock(host: Host, gpus: Sequence[GpuUuid]) -> Iterator[int | None]:
    """The locked file, for nvidia-smi to inherit; None if the run directory cannot be written.

    Raises GpuInUse while another reset runs.
    """
    file = _opened(host, gpus)
    try:
        yield file
    finally:
        if file is not None:
            os.close(file)


def running_reset(host: Host) -> str:
    """Which reset by another process still runs, as a sentence; empty: none, or the lock may not be read."""
    try:
        file = os.open(_path(host), _FLAGS)
    except OSError:
        return ""
    try:
        return "" if _locked(file, fcntl.LOCK_SH) else _sentence(file)
    finally:
        os.close(file)


def _path(host: Host) -> Path:
    return host.run / "gpu-reset.lock"


def _opened(host: Host, gpus: Sequence[GpuUuid]) -> int | None:
    path = _path(host)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, _FLAGS | os.O_CREAT, 0o600)
    except OSError:
        return None
    until_s = time.monotonic() + _TRY_S
    while not _locked(file, fcntl.LOCK_EX):
        if time.monotonic() > until_s:
            running = _sentence(file)
            os.close(file)
            raise GpuInUse(running, "wait until it has ended")
        time.sleep(0.01)
    os.truncate(file, 0)
    os.pwrite(file, ", ".join(gpus).encode(), 0)
    return file


def _locked(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sentence(file: int) -> str:
    gpus = os.pread(file, _LONGEST, 0).decode(errors="replace")
    return f"nvidia-smi still resets {gpus or 'a GPU'}, for another or an earlier process of Partage"
