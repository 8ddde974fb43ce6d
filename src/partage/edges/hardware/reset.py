"""GPU reset: NVML has no call for it, nvidia-smi has. Run with a deadline, its words handed back."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partage.edges.hardware.binding import find_library
from partage.edges.hardware.host import Host
from partage.edges.hardware.persistence import Persistence
from partage.edges.hardware.readings import Handle, Nvml
from partage.errors import (
    GpuInUse,
    GpuLost,
    HardwareError,
    HardwareTimeout,
    NotPermitted,
    NotThere,
    Unsupported,
)
from partage.model.step import Reset

DEADLINE_S = 45.0
"""How long a reset may take: less than an act may, so that who waits hears what happened."""

_DIRECTORIES = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "opt/bin", "run/current-system/sw/bin")
_LONGEST = 2000
_KILL_S = 2.0


@dataclass(frozen=True, slots=True)
class Before:
    """pending: GPUs whose mode waits for the reset."""

    pending: tuple[str, ...]


def prepare(nvml: Nvml, persistence: Persistence, step: Reset) -> Before:
    """Persistence mode counts as somebody who holds the GPU: off with it. Raises HardwareError."""
    handles = nvml.handles()
    for gpu in step.gpus:
        if gpu not in handles:
            if len(handles) < nvml.count():
                raise GpuLost(f"GPU {gpu} is not among those that answer")
            raise NotThere(f"this node has no GPU {gpu}")
    pending = tuple(gpu for gpu in step.gpus if _is_pending(nvml, handles[gpu]))
    persistence.switch_off(nvml, step.gpus)
    return Before(pending)


def conclude(nvml: Nvml, step: Reset, before: Before, words: str | None) -> None:
    """See what has become of the modes. The session is a new one: persistence mode is on again.

    words: what nvidia-smi said, if it failed. Raises HardwareError where nvidia-smi failed and nothing came
    into force, or where a mode still waits.
    """
    handles = nvml.handles()
    gone = [gpu for gpu in step.gpus if gpu not in handles]
    if gone:
        raise GpuLost(
            f"{', '.join(gone)} did not come back from the reset: {words or 'nvidia-smi said nothing'}"
        )
    waiting = [gpu for gpu in step.gpus if _is_pending(nvml, handles[gpu])]
    if waiting:
        raise refusal(waiting, words or "nvidia-smi says that it did, and the MIG mode still waits for it")
    if words is not None and not before.pending:
        raise refusal(step.gpus, words)


def _is_pending(nvml: Nvml, handle: Handle) -> bool:
    mode = nvml.mig_mode(handle)
    return mode is not None and mode.current != mode.pending


def find_nvidia_smi(driver_root: Path) -> Path:
    """nvidia-smi below the driver root. Raises Unsupported."""
    for directory in _DIRECTORIES:
        path = driver_root / directory / "nvidia-smi"
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise Unsupported(
        f"a GPU reset takes nvidia-smi, and below {driver_root} there is none",
        "install the driver's tools there, say with --driver-root where they are, or reboot the node",
    )


async def run_nvidia_smi(host: Host, gpus: Sequence[str], deadline_s: float = DEADLINE_S) -> str | None:
    """Reset GPUs, by UUID, in one call. None: nvidia-smi says that it did; otherwise what it says.

    Raises Unsupported, HardwareTimeout.
    """
    path = find_nvidia_smi(host.driver)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    library = find_library(host.driver)
    if library is not None and host.driver != Path("/"):
        environment["LD_LIBRARY_PATH"] = str(library.parent)
    process = await asyncio.create_subprocess_exec(
        path,
        "--gpu-reset",
        "-i",
        ",".join(gpus),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
    )
    try:
        async with asyncio.timeout(deadline_s):
            output, _ = await process.communicate()
    except TimeoutError as error:
        raise HardwareTimeout(
            f"nvidia-smi did not end the reset within {deadline_s:g} s",
            "dmesg may say which GPU is in trouble",
        ) from error
    finally:
        await _end(process)
    if process.returncode == 0:
        return None
    words = " ".join(output.decode(errors="replace").split())[:_LONGEST]
    return words or f"it ended with code {process.returncode} and no word"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it if it still runs. One that hangs in the driver does not die: it is not waited for."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _KILL_S)


def refusal(gpus: Sequence[str], words: str) -> HardwareError:
    """The error for what nvidia-smi said."""
    message = f"the reset of {', '.join(gpus)} did not succeed: {words}"
    low = words.lower()
    if "permission" in low:
        return NotPermitted(message)
    if "in use" in low or "being used" in low:
        return GpuInUse(message, "stop what holds the GPU: DCGM, persistenced, nvsm, a display")
    if "not supported" in low or "not allowed" in low or "nvlink" in low:
        return Unsupported(
            message, "reset all GPUs that share NVLinks together; in a virtual machine, reboot it"
        )
    return HardwareError(message)
