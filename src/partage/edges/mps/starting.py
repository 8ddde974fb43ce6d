"""Starts a control daemon so that it keeps running when the process that started it ends.

It gets its own session and, where the host's cgroups can be written, one of those, so that stopping the
service or container does not stop it. Elsewhere the daemon ends with the container; which of these it is,
``home`` says. A daemon that is to be a unit of systemd is started by ``unit_daemon``.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Sequence
from pathlib import Path

from partage.edges.host.own_task import end_group
from partage.edges.mps import launch
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.paths import DaemonPaths, DriverFiles
from partage.errors import DaemonError, Unsupported
from partage.model.mps import DaemonHome

_TAIL_BYTES = 16384
_CHATTER = re.compile(
    r"(?:\] |^)(?:Accepting connection\.\.\.|User did not send valid credentials|NEW UI|Removed Shm file .*)$"
)
_ASKED = re.compile(r"(?:\] |^)Cmd:")
_ANSWERED = re.compile(r"(?:\] |^)UI closed$")
_EVENT = re.compile(r"exited with|[Ff]ail|[Ee]rror")
"""What happened while the connection was open, such as the end of a server that was to be started."""


async def start_daemon(
    driver: DriverFiles,
    options: Sequence[str],
    limits: dict[str, str],
    paths: DaemonPaths,
    *,
    host: DaemonHost,
    home: DaemonHome,
    own_shm: bool,
    deadline_s: float,
) -> None:
    """Run the control program, which becomes a daemon; done when it has.

    limits: variables that only a daemon has. home: where it is to live. own_shm: the daemon sees
    ``paths.shm`` as /dev/shm.
    Raises DaemonError with the program's output, Unsupported if it cannot be run.
    """
    cgroups = await asyncio.to_thread(host.make_cgroups, home, paths)
    namespace = host.cgroup_namespace() if cgroups else ""
    shm = str(paths.shm) if own_shm else ""
    program = str(driver.program())
    surrounded = [namespace, os.pathsep.join(cgroups), shm]
    argv = [sys.executable, "-I", "-S", str(launch.__file__), *surrounded, program, "-d", *options]
    environment = driver.environment(paths) | limits | {"CUDA_VISIBLE_DEVICES": paths.device}
    # Not a pipe: the daemon keeps its standard output open, so a reader would wait for ever.
    output = paths.start_log
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=DEVNULL,
            stdout=file,
            stderr=STDOUT,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    await _finish(process, output, program, deadline_s)


async def _finish(process: Process, output: Path, program: str, deadline_s: float) -> None:
    try:
        async with asyncio.timeout(deadline_s):
            code = await process.wait()
    except TimeoutError as error:
        raise DaemonError(f"{program} did not start within {deadline_s:g} s: {last_line(output)}") from error
    finally:
        await end_group(process)
    if code == launch.FAILED:
        raise Unsupported(f"the MPS control daemon cannot be run: {last_line(output)}")
    if code:
        raise DaemonError(f"the MPS control daemon did not start ({code}): {last_line(output)}")


def last_line(path: Path, otherwise: str = "no reason given") -> str:
    """The last useful line of a log, or another text if there is none.

    What is between a command and the end of its connection is mostly its answer; Partage asks again and
    again.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return otherwise
    found, asked = otherwise, False
    for line in text.splitlines():
        if _ASKED.search(line) or _ANSWERED.search(line):
            asked = _ASKED.search(line) is not None
        elif line.strip() and (_EVENT.search(line) or not (asked or _CHATTER.search(line))):
            found = line.strip()[:400]
    return found
