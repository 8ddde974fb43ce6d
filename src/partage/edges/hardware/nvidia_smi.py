"""Runs nvidia-smi, for settings that NVML has no call for. Found below the driver root, run with a
deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from partage.edges.hardware.host import Host
from partage.errors import HardwareTimeout, Unsupported
from partage.values import Frozen

_DIRECTORIES = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "opt/bin", "run/current-system/sw/bin")
_LONGEST = 2000
_KILL_S = 2.0


class SmiOutput(Frozen):
    """Exit code of nvidia-smi and its output, in one line."""

    code: int
    output: str

    def __str__(self) -> str:
        return self.output or f"it ended with code {self.code} and no output"


def find_nvidia_smi(driver_root: Path, purpose: str) -> Path:
    """nvidia-smi below the driver root. Raises Unsupported. purpose: ``a GPU reset``, for the error
    message.
    """
    for directory in _DIRECTORIES:
        path = driver_root / directory / "nvidia-smi"
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise Unsupported(
        f"{purpose} needs nvidia-smi, and there is none below {driver_root}",
        "install the driver's tools there, or set --driver-root to where they are",
    )


async def run_nvidia_smi(host: Host, purpose: str, *arguments: str, deadline_s: float) -> SmiOutput:
    """Run it until it ends. Raises Unsupported if it is not installed, HardwareTimeout."""
    process = await asyncio.create_subprocess_exec(
        find_nvidia_smi(host.driver, purpose),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=_environment(host),
    )
    try:
        async with asyncio.timeout(deadline_s):
            output, _ = await process.communicate()
    except TimeoutError as error:
        raise HardwareTimeout(
            f"nvidia-smi did not end {purpose} within {deadline_s:g} s",
            "dmesg may say which GPU is in trouble",
        ) from error
    finally:
        await _end(process)
    text = " ".join(output.decode(errors="replace").split())[:_LONGEST]
    return SmiOutput(process.returncode or 0, text)


def _environment(host: Host) -> dict[str, str]:
    """Environment of nvidia-smi: it must load the library of its own driver, not another one on the loader's
    path.
    """
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    from partage.edges.hardware.binding import find_library

    library = find_library(host.driver)
    if library is not None and host.driver != Path("/"):
        environment["LD_LIBRARY_PATH"] = str(library.parent)
    return environment


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it if it still runs. A process that hangs in the driver cannot be killed, and is not waited
    for.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _KILL_S)
