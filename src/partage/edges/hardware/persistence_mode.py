"""Persistence mode must be off during a reset. It is turned on again afterwards, even if this process is
killed.

A file lists the GPUs for which it was turned off, until it is on again. The process that wrote the file
holds a lock on it, so that no other process turns the mode on during the reset. A reboot removes both: the
file is on a tmpfs, and the driver forgets the mode.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path

from partage.edges.hardware.nvml_queries import Nvml
from partage.errors import HardwareError
from partage.model.ids import GpuUuid

_LONGEST = 1 << 16


class PersistenceMode:
    """Turns persistence mode off and on again. For one thread."""

    def __init__(self, directory: Path) -> None:
        """directory: of the file. If the file cannot be written, the mode stays off after this process was
        killed.
        """
        self._path = directory / "persistence-off.json"
        self._ours: tuple[GpuUuid, ...] = ()
        self._file: int | None = None

    def switch_off(self, nvml: Nvml, gpus: Sequence[GpuUuid]) -> None:
        """Turn it off for those GPUs that have it on. gpus: UUIDs of GPUs that answer. Raises
        HardwareError.
        """
        handles = nvml.handles()
        found = [gpu for gpu in gpus if nvml.optional("nvmlDeviceGetPersistenceMode", handles[gpu])]
        if not found:
            return
        self._ours = (*self._ours, *found)
        self._remember()
        for gpu in found:
            nvml.optional("nvmlDeviceSetPersistenceMode", handles[gpu], 0)

    def restore(self, nvml: Nvml) -> None:
        """Turn it on again where this process, or one that was killed, has turned it off.

        An error of a GPU is ignored, because it must not keep a session from opening; the next session
        tries again.
        """
        gpus = self._ours or self._left_behind()
        if not gpus:
            return
        try:
            handles = nvml.handles()
            for gpu in gpus:
                if gpu in handles:
                    nvml.optional("nvmlDeviceSetPersistenceMode", handles[gpu], 1)
        except HardwareError:
            return
        self._forget()

    def _remember(self) -> None:
        content = json.dumps(self._ours).encode()
        with contextlib.suppress(OSError):  # the reset is done anyway
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._lock(os.O_CREAT):
                assert self._file is not None
                os.truncate(self._file, 0)
                os.pwrite(self._file, content, 0)

    def _left_behind(self) -> tuple[GpuUuid, ...]:
        """GPUs for which a killed process has not turned the mode on again."""
        try:
            if not self._lock():
                return ()
            assert self._file is not None
            found = json.loads(os.pread(self._file, _LONGEST, 0))
        except OSError:
            return ()
        except ValueError:
            found = []  # incomplete: the process was killed before it turned anything off
        gpus = tuple(GpuUuid(gpu) for gpu in found if isinstance(gpu, str)) if isinstance(found, list) else ()
        if not gpus:
            self._forget()
        return gpus

    def _lock(self, flags: int = 0) -> bool:
        """Open and lock the file unless another process holds the lock. Raises OSError."""
        if self._file is not None:
            return True
        file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._file = file
        return True

    def _forget(self) -> None:
        self._ours = ()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._file)
            self._file = None
