"""GPU reset with nvidia-smi (NVML has no call for it), with a deadline; its output is part of the errors.

While nvidia-smi resets GPUs, nothing else may open a session or change a GPU, also not after the process that
started it was killed: nvidia-smi goes on then. The lock is a file in the run directory. nvidia-smi inherits
it open and locked, so the kernel ends the lock when both processes have ended.

Persistence mode must be off during a reset. It is turned on again afterwards, even if this process is killed:
a file lists the GPUs for which it was turned off, until it is on again. The process that wrote the file holds
a lock on it, so that no other process turns the mode on during the reset. A reboot removes both: the file is
on a tmpfs, and the driver forgets the mode.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from partage.edges.hardware.gpu_queries import Handle
from partage.edges.hardware.host import Host
from partage.edges.hardware.nvidia_smi import find_nvidia_smi, run_nvidia_smi
from partage.edges.hardware.nvml_queries import Nvml
from partage.edges.hardware.port import RESET_DEADLINE_S
from partage.errors import (
    GpuInUse,
    GpuLost,
    HardwareError,
    NotPermitted,
    Unsupported,
)
from partage.model.ids import GpuUuid
from partage.model.step import Reset

_LONGEST_LIST = 1 << 16


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
            found = json.loads(os.pread(self._file, _LONGEST_LIST, 0))
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


_PURPOSE = "a GPU reset"


def is_in_force(nvml: Nvml, step: Reset) -> bool:
    """Whether nothing is left to do: the step is for MIG modes, and all of them are in force already. Some
    drivers reset the GPU themselves when its mode is set. Raises HardwareError.
    """
    handles = {gpu: nvml.gpu_handle(gpu) for gpu in step.gpus}
    return bool(step.pending) and not any(_is_pending(nvml, handles[gpu]) for gpu in step.pending)


def prepare_reset(nvml: Nvml, persistence: PersistenceMode, step: Reset) -> bool:
    """Turn persistence mode off, because it counts as a user of the GPU. Raises HardwareError.

    Returns whether the MIG mode of one of the GPUs waits for the reset.
    """
    pending = [_is_pending(nvml, nvml.gpu_handle(gpu)) for gpu in step.gpus]
    persistence.switch_off(nvml, step.gpus)
    return any(pending)


def verify_reset(nvml: Nvml, host: Host, step: Reset, output: str | None, *, pending: bool) -> None:
    """Check the MIG modes after the reset. The session is a new one, in which persistence mode is on again.

    output: of nvidia-smi, if it failed. pending: as ``prepare_reset`` returned it. Raises HardwareError if
    nvidia-smi failed and no mode took effect, or if a mode still waits.
    """
    handles = nvml.handles()
    gone = [gpu for gpu in step.gpus if gpu not in handles]
    if gone:
        raise GpuLost(
            f"{', '.join(gone)} did not come back from the reset: {output or 'nvidia-smi printed nothing'}"
        )
    waiting = [gpu for gpu in step.gpus if _is_pending(nvml, handles[gpu])]
    if waiting:
        silent = "nvidia-smi reports success, but the MIG mode still waits for it"
        raise reset_error(waiting, output or silent, host.unseen_holder())
    if output is not None and not pending:
        raise reset_error(step.gpus, output, host.unseen_holder())


def _is_pending(nvml: Nvml, handle: Handle) -> bool:
    mode = nvml.mig_mode(handle)
    return mode is not None and mode.current != mode.pending


def check_nvidia_smi(host: Host) -> None:
    """Raise Unsupported if nvidia-smi is missing: before anything is closed or turned off for the reset."""
    find_nvidia_smi(host.driver, _PURPOSE)


async def reset_gpus(host: Host, gpus: Sequence[GpuUuid], deadline_s: float = RESET_DEADLINE_S) -> str | None:
    """Reset GPUs, by UUID, in one call. None if nvidia-smi reports success, else its output.

    Also if the caller gives up, nvidia-smi goes on: a reset that is ended in the middle can lose the GPU.
    Until it has ended no process of Partage opens a session (``running_reset``). Raises Unsupported,
    HardwareTimeout, GpuInUse while another reset runs.
    """
    arguments = ("--gpu-reset", "-i", ",".join(gpus))
    with reset_lock(host, gpus) as lock:
        output = await run_nvidia_smi(
            host, _PURPOSE, *arguments, deadline_s=deadline_s, may_kill=False, lock=lock
        )
    return str(output) if output.code else None


def reset_error(gpus: Sequence[GpuUuid], output: str, unseen_holder: str) -> HardwareError:
    """The error for the output of nvidia-smi. unseen_holder: what may hold a GPU without any process."""
    message = f"the reset of {', '.join(gpus)} did not succeed: {output}"
    low = output.lower()
    if "permission" in low:
        return NotPermitted(message)
    if "in use" in low or "being used" in low:
        holders = f"stop what holds the GPU: DCGM, nvsm, a display{unseen_holder and f'; {unseen_holder}'}"
        return GpuInUse(message, holders)
    if "not supported" in low or "not allowed" in low or "nvlink" in low:
        return Unsupported(
            message,
            "reset all GPUs that share NVLinks together; in a virtual machine turn the mode on or off with "
            "nvidia-smi -mig, reboot it, and try again",
        )
    return HardwareError(message)
