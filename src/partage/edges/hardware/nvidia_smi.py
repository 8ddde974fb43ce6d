"""Runs nvidia-smi, for settings that NVML has no call for. Found below the driver root, run with a
deadline.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

from partage.edges.hardware.host import Host
from partage.errors import HardwareTimeout, Unsupported
from partage.values import Frozen

_DIRECTORIES = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "opt/bin", "run/current-system/sw/bin")
_LONGEST = 2000
_KILL_S = 2.0
_POLL_S = 0.01


_going_on: list[subprocess.Popen[bytes]] = []


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


async def run_nvidia_smi(
    host: Host,
    purpose: str,
    *arguments: str,
    deadline_s: float,
    may_kill: bool = True,
    lock: int | None = None,
) -> SmiOutput:
    """Run it until it ends. Raises Unsupported if it is not installed, HardwareTimeout.

    may_kill: False: it goes on when the caller gives up or this process ends. lock: an open file that it
    inherits.
    """
    # Not asyncio's subprocess, which is killed with its loop; not a pipe, which ends with this process.
    with os.fdopen(os.memfd_create("nvidia-smi"), "rb") as output:
        process = subprocess.Popen(  # noqa: S603, ASYNC220 - the program of the driver, which only starts here
            [find_nvidia_smi(host.driver, purpose), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(host),
            start_new_session=True,
            pass_fds=() if lock is None else (lock,),
        )
        try:
            code = await _exit_code(process, deadline_s)
        finally:
            if process.returncode is None:
                await _leave(process, may_kill=may_kill)
        if code is None:
            raise HardwareTimeout(
                f"nvidia-smi did not end {purpose} within {deadline_s:g} s",
                "dmesg may say which GPU is in trouble",
            )
        output.seek(0)
        text = " ".join(output.read().decode(errors="replace").split())[:_LONGEST]
    return SmiOutput(code, text)


async def _leave(process: subprocess.Popen[bytes], *, may_kill: bool) -> None:
    """Give a process up that still runs. It is waited for at the next one, so that none stays a zombie."""
    if may_kill:
        process.kill()
        await _exit_code(process, _KILL_S)
    _going_on[:] = [running for running in (*_going_on, process) if running.poll() is None]


async def _exit_code(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """None if it has not ended after that time: a process that hangs in the driver cannot be killed."""
    ends_s = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < ends_s:  # noqa: ASYNC110 - nothing tells its end
        await asyncio.sleep(_POLL_S)
    return process.returncode


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
