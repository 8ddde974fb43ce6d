"""Starts a control daemon so that it keeps running when the process that started it ends.

If systemd runs and can be reached, the daemon becomes a systemd unit with its own cgroup. Otherwise it gets
its own session and, where the host's cgroups can be written, one of those, so that stopping the service or
container does not stop it. Elsewhere the daemon ends with the container; which of these it is, ``home`` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Mapping, Sequence
from pathlib import Path

from partage.edges.mps import launch
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.paths import DaemonPaths
from partage.errors import DaemonError, Unsupported
from partage.model.daemon_home import DaemonHome, HomeKind
from partage.model.ids import DeviceUuid

_TAIL_BYTES = 16384
_CHATTER = ("Accepting connection...", "User did not send valid credentials")


def unit_name(device: DeviceUuid) -> str:
    """The daemon's systemd unit."""
    return f"partage-mps-{device}.service"


async def start_daemon(
    command: Sequence[str],
    environment: Mapping[str, str],
    paths: DaemonPaths,
    *,
    host: DaemonHost,
    home: DaemonHome,
    own_shm: bool,
    deadline_s: float,
) -> None:
    """Run the control program, which becomes a daemon; done when it has.

    home: where it is to live. own_shm: the daemon sees ``paths.shm`` as /dev/shm.
    Raises DaemonError with the program's output, Unsupported if it cannot be run.
    """
    if home.kind is HomeKind.UNIT:
        argv = [host.systemd_run(), *_unit(environment, paths, own_shm=own_shm), "--", *command]
        surroundings: Mapping[str, str] = os.environ
    else:
        cgroups = await asyncio.to_thread(host.make_cgroups, home, paths)
        namespace = host.cgroup_namespace() if cgroups else ""
        shm = str(paths.shm) if own_shm else ""
        surrounded = [namespace, os.pathsep.join(cgroups), shm]
        argv = [sys.executable, "-I", "-S", str(launch.__file__), *surrounded, *command]
        surroundings = environment
    # Not a pipe: the daemon keeps its standard output open, so a reader would wait for ever.
    output = paths.home / "start.log"
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=DEVNULL,
            stdout=file,
            stderr=STDOUT,
            env=dict(surroundings),
            cwd="/",
            start_new_session=True,
        )
    await _finish(process, output, command[0], deadline_s)


async def _finish(process: Process, output: Path, program: str, deadline_s: float) -> None:
    try:
        async with asyncio.timeout(deadline_s):
            code = await process.wait()
    except TimeoutError as error:
        raise DaemonError(f"{program} did not start within {deadline_s:g} s: {last_line(output)}") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if code == launch.FAILED:
        raise Unsupported(f"the MPS control daemon cannot be run: {last_line(output)}")
    if code:
        raise DaemonError(f"the MPS control daemon did not start ({code}): {last_line(output)}")


def _unit(environment: Mapping[str, str], paths: DaemonPaths, *, own_shm: bool) -> list[str]:
    """Options of systemd-run. The unit disappears when the daemon ends, also after a failure."""
    options = [
        "--quiet",
        "--collect",
        f"--unit={unit_name(paths.device)}",
        f"--description=MPS control daemon of {paths.device}",
        "--service-type=forking",
        f"--property=PIDFile={paths.pid_file}",
        *(f"--setenv={name}={value}" for name, value in environment.items()),
    ]
    return [*options, f"--property=BindPaths={paths.shm}:{launch.SHARED_MEMORY}"] if own_shm else options


def last_line(path: Path) -> str:
    """The last useful line of a log, or a text that there is none.

    Lines about queries are skipped: a control daemon logs every query, and that it comes from no valid
    client.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
            lines = [line for line in text.splitlines() if line.strip() and not line.endswith(_CHATTER)]
    except OSError:
        lines = []
    return lines[-1].strip()[:400] if lines else "no reason given"
