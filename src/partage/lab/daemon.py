"""MPS control daemons of an experiment: the one that is there is asked, a simulated one is started and ended.

No setting of a daemon that is there is changed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

import partage
from partage.edges.mps.control_v2 import ControlV2
from partage.edges.mps.control_v3 import OPTIONS, ControlV3, configuration_file
from partage.edges.mps.paths import DriverFiles
from partage.edges.mps.processes import wait_until
from partage.errors import DaemonError, Unsupported
from partage.lab import child
from partage.lab.place import PIPE_VARIABLE
from partage.model.ids import DeviceUuid
from partage.model.mps import CONTROL_PROGRAM, MULTI_USER_OPTIONS, DaemonSpec
from partage.sim.mps.node import MpsNode, install_programs

PROGRAMS = "usr/bin"
"""The directory of the programs of a simulated driver, below its root."""
_ANSWER_S, _START_S = 5.0, 20.0


class MpsDaemon:
    """The daemon behind a pipe directory (CUDA_MPS_PIPE_DIRECTORY).

    driver_root: where the driver is installed. named: the daemon has named servers (version 3 of its control
    interface).
    """

    def __init__(self, pipe: Path, driver_root: Path = Path("/"), *, named: bool = False) -> None:
        environment = {"PATH": os.environ.get("PATH", os.defpath), PIPE_VARIABLE: str(pipe)}
        program = DriverFiles(driver_root).program
        self._environment = environment
        self._limits = ControlV2(program, environment, _ANSWER_S)
        self._listing = ControlV3(program, environment, _ANSWER_S) if named else self._limits

    async def clients(self) -> int | None:
        """How many clients its servers have; None where it cannot be asked."""
        try:
            return sum(len(server.clients) for server in await self._listing.listed())
        except (DaemonError, Unsupported):
            return None

    async def tell(self, command: str, uid: int | None = None) -> str:
        """What a simulated daemon answers to a command of a user; None: this one. Raises OSError."""
        folders = [str(Path(package.__file__ or "").parents[1]) for package in (partage, msgspec)]
        program = (
            f"import os, sys\nsys.path[:0] = {folders!r}\nfrom partage.sim.mps.control import main\n"
            f"{_become(uid)}\nsys.exit(main(['nvidia-cuda-mps-control']))"
        )
        asked = await asyncio.create_subprocess_exec(
            sys.executable, "-ISc", program, stdin=PIPE, stdout=PIPE, env=self._environment
        )
        answer, _ = await asked.communicate(f"{command}\n".encode())
        return answer.decode()

    @asynccontextmanager
    async def held(self, uid: int | None = None) -> AsyncIterator[int]:
        """While a process of a user is connected to it and says nothing: its pid. None: of this user.

        Raises OSError, DaemonError where it cannot connect.
        """
        holder = await child.start_child(
            [sys.executable, "-ISc", f"{_CONNECT}\n{_become(uid)}\nhold()"], self._environment
        )
        try:
            if await holder.hear() != _HELD:
                raise DaemonError(
                    f"nobody can connect to the MPS control daemon: {await holder.last_words()}"
                )
            yield holder.pid
        finally:
            await holder.end()

    async def answers(self, limit_s: float) -> bool:
        """Whether it answers a question within so many seconds."""
        try:
            async with asyncio.timeout(limit_s):
                return await self.clients() is not None
        except TimeoutError:
            return False

    async def memory_limit(self, likely_bytes: int) -> int | None:
        """Bytes that each client may have; None: no limit. Raises DaemonError, Unsupported.

        The daemon prints whole units: ``likely_bytes`` is returned where that is what it can have printed.
        """
        return await self._limits.memory_limit(likely_bytes)

    async def threads_limit(self) -> int:
        """Percent of the multiprocessors that each client may fill. Raises DaemonError, Unsupported."""
        return await self._limits.threads_limit()


def _become(uid: int | None) -> str:
    """A line of Python with which root becomes this user."""
    return "" if uid is None else f"os.setgroups([]); os.setresuid({uid}, {uid}, {uid})"


_HELD = b"held\n"
_CONNECT = f"""
import os, socket, sys

def hold():
    path = os.environ[{PIPE_VARIABLE!r}] + "/control"
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # NVIDIA's daemon
    if connection.connect_ex(path):
        connection = socket.socket(socket.AF_UNIX)  # the simulated one
        connection.connect(path)
    sys.stdout.write({_HELD.decode()!r})
    sys.stdout.flush()
    sys.stdin.read()
"""


def find_pipe(device: DeviceUuid, run_dir: Path, named: Path | None) -> Path | None:
    """The pipe directory of a device's MPS daemon: the named one, the agent's, or this container's own."""
    if named is not None:
        return named
    candidates = [run_dir / "mps" / device / "pipe"]
    if own := os.environ.get(PIPE_VARIABLE):
        candidates.append(Path(own))
    return next((path for path in candidates if _has_daemon(path)), None)


def _has_daemon(pipe: Path) -> bool:
    return any((pipe / name).exists() for name in ("control", f"{CONTROL_PROGRAM}.pid"))


# --- simulated ---------------------------------------------------------------------------------


@asynccontextmanager
async def simulated_daemon(
    root: Path, spec: DaemonSpec, memory_bytes: int, *, ignores_limits: bool = False
) -> AsyncIterator[Path]:
    """The pipe directory of a simulated daemon, which is started, told its limits, and ended afterwards.

    root: of the simulated driver. memory_bytes: of the device. ignores_limits: the daemon ignores its limits.
    Raises DaemonError where the daemon does not answer in time.
    """
    home = passable_directory("daemon-", root)
    pipe, log = passable_directory("pipe-", home), passable_directory("log-", home)
    program = install_programs(
        root / PROGRAMS, MpsNode({spec.device: memory_bytes}, ignores_limits=ignores_limits)
    )
    environment = {
        "PATH": os.defpath,
        PIPE_VARIABLE: str(pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(log),
        "CUDA_VISIBLE_DEVICES": spec.device,
    }
    daemon = await child.start_child([str(program), "-f", *_options(spec, home)], environment)
    try:
        await _wait_until_it_serves(spec, DriverFiles(root), environment)
        yield pipe
    finally:
        await daemon.end()
        shutil.rmtree(home)


def _options(spec: DaemonSpec, home: Path) -> list[str]:
    """One server for all users; limits of namespaces are read from a file."""
    if not spec.limits.apart:
        return [MULTI_USER_OPTIONS[spec.protocol]]
    path = home / "mps.toml"
    path.write_text(configuration_file(spec), encoding="utf-8")
    return [*OPTIONS, str(path), MULTI_USER_OPTIONS[spec.protocol]]


async def _wait_until_it_serves(
    spec: DaemonSpec, driver: DriverFiles, environment: Mapping[str, str]
) -> None:
    problem = DaemonError("the simulated control daemon does not answer")

    async def serves() -> bool:
        nonlocal problem
        try:
            if spec.limits.apart:
                await ControlV3(driver.program, environment).listed()
            else:
                await ControlV2(driver.program, environment).set_limits(spec)
        except DaemonError as error:
            problem = error
            return False
        return True

    if not await wait_until(serves, _START_S):
        raise problem


def passable_directory(prefix: str, parent: Path) -> Path:
    """A new directory that processes of every user may enter."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    path.chmod(0o755)
    return path
