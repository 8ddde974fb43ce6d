"""Persistence mode, which has to be off for a reset, and is on again afterwards, whatever becomes of us.

The GPUs for which it was switched off stand in a file until it is on again. The file is locked as long as
whoever wrote it lives, so that nobody switches it on in the middle of another's reset. A reboot forgets the
file, and the driver the mode.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path

from partage.edges.hardware.readings import Nvml
from partage.errors import HardwareError

_LONGEST = 1 << 16


class PersistenceMode:
    """Switches it off and on again. One thread's own."""

    def __init__(self, directory: Path) -> None:
        """directory: where the file is. Where it cannot be, a killed process leaves the mode off."""
        self._path = directory / "persistence-off.json"
        self._ours: tuple[str, ...] = ()
        self._file: int | None = None

    def switch_off(self, nvml: Nvml, gpus: Sequence[str]) -> None:
        """Off, for those GPUs that have it on. gpus: UUIDs; all of them answer. Raises HardwareError."""
        handles = nvml.handles()
        found = [gpu for gpu in gpus if nvml.optional("nvmlDeviceGetPersistenceMode", handles[gpu])]
        if not found:
            return
        self._ours = (*self._ours, *found)
        self._remember()
        for gpu in found:
            nvml.optional("nvmlDeviceSetPersistenceMode", handles[gpu], 0)

    def restore(self, nvml: Nvml) -> None:
        """On again, where this process or one that is no more has switched it off.

        What a GPU answers is nobody's trouble who opens a session: it is tried again with the next one.
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
        with contextlib.suppress(OSError):  # no reason to do without the reset
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._lock(os.O_CREAT):
                assert self._file is not None
                os.truncate(self._file, 0)
                os.pwrite(self._file, content, 0)

    def _left_behind(self) -> tuple[str, ...]:
        """What a process that is no more has not switched on again."""
        try:
            if not self._lock():
                return ()
            assert self._file is not None
            found = json.loads(os.pread(self._file, _LONGEST, 0))
        except OSError:
            return ()
        except ValueError:
            found = []  # cut off while it was written: nothing was switched off yet
        gpus = tuple(gpu for gpu in found if isinstance(gpu, str)) if isinstance(found, list) else ()
        if not gpus:
            self._forget()
        return gpus

    def _lock(self, flags: int = 0) -> bool:
        """Open the file, if nobody else works on it. Raises OSError."""
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
