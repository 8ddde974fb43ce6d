"""Starts a control daemon so that it keeps running when the process that started it ends.

If systemd runs and can be reached, the daemon becomes a systemd unit with its own cgroup. Otherwise it gets
its own session and, if the whole cgroup v2 tree is writable, its own cgroup, so that stopping the service
or container does not stop it. In a container that sees only its part of the tree this is not possible:
there the daemon ends with the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

from partage.edges.listening import is_listening
from partage.edges.mps import launch
from partage.edges.mps.paths import DaemonPaths
from partage.errors import DaemonError, Unsupported
from partage.model.ids import DeviceUuid
from partage.values import Frozen

_SYSTEMD_RUN = "systemd-run"
_CGROUP = "partage-mps"
_TAIL_BYTES = 16384
_CHATTER = ("Accepting connection...", "User did not send valid credentials")


class DaemonHost(Frozen):
    """The node around the daemons. The directories are parameters, so that tests can use their own.

    run: ``/run``, with the sockets of systemd and D-Bus. path: where systemd-run is looked for.
    own_shm: whether a daemon gets its own /dev/shm, which needs CAP_SYS_ADMIN.
    """

    proc: Path = Path("/proc")
    run: Path = Path("/run")
    selinux: Path = Path("/sys/fs/selinux")
    path: str | None = None
    own_shm: bool = True

    def systemd_run(self) -> str:
        """Path of systemd-run if systemd runs and takes calls; empty otherwise, and without root."""
        if os.geteuid() != 0 or not (self.run / "systemd/system").is_dir():
            return ""
        sockets = (self.run / "systemd/private", self.run / "dbus/system_bus_socket")
        return (shutil.which(_SYSTEMD_RUN, path=self.path) or "") if any(map(is_listening, sockets)) else ""

    def cgroup(self, paths: DaemonPaths) -> Path | None:
        """The cgroup for the daemon of these directories, which may not exist yet; None if the tree is not
        writable.
        """
        name = f"{paths.device}@{crc32(os.fsencode(paths.home)):08x}"
        for line in _lines(self.proc / "self/mountinfo"):
            before, _, after = line.partition(" - ")
            root, mounted = before.split()[3:5]
            if after.startswith("cgroup2 ") and root == "/" and os.access(mounted, os.W_OK):
                return Path(mounted) / _CGROUP / name
        return None

    def make_cgroup(self, paths: DaemonPaths) -> str:
        """Create the cgroup and return its path; empty if that is not possible."""
        path = self.cgroup(paths)
        if path is None:
            return ""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError:
            return ""
        return str(path) if os.access(path / "cgroup.procs", os.W_OK) else ""

    def remove_cgroup(self, paths: DaemonPaths) -> None:
        """Remove the cgroup. If a process is still in it, it stays; it uses no resources."""
        path = self.cgroup(paths)
        if path is not None:
            with contextlib.suppress(OSError):
                path.rmdir()


def unit_name(device: DeviceUuid) -> str:
    """The daemon's systemd unit."""
    return f"partage-mps-{device}.service"


async def start_daemon(
    command: Sequence[str],
    environment: Mapping[str, str],
    paths: DaemonPaths,
    *,
    host: DaemonHost,
    own_shm: bool,
    deadline_s: float,
) -> None:
    """Run the control program, which becomes a daemon; done when it has.

    own_shm: the daemon sees ``paths.shm`` as /dev/shm.
    Raises DaemonError with the program's output, Unsupported if it cannot be run.
    """
    if systemd_run := host.systemd_run():
        argv = [systemd_run, *_unit(environment, paths, own_shm=own_shm), "--", *command]
        surroundings: Mapping[str, str] = os.environ
    else:
        cgroup = await asyncio.to_thread(host.make_cgroup, paths)
        shm = str(paths.shm) if own_shm else ""
        argv = [sys.executable, "-I", "-S", str(launch.__file__), cgroup, shm, *command]
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


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
