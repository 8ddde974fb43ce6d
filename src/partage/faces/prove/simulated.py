"""The engine for machines without a GPU: a simulated MPS control daemon of its own, and its clients."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from partage.edges.mps.control_v2 import ControlV2
from partage.edges.mps.control_v3 import OPTIONS, ControlV3, configuration
from partage.edges.mps.paths import DriverFiles
from partage.edges.mps.processes import MULTI_USER
from partage.edges.mps.stopping import wait_until
from partage.errors import DaemonError
from partage.faces import child
from partage.faces.bench.places import Place
from partage.faces.prove.daemon import Daemon
from partage.faces.prove.model import Evidence
from partage.faces.prove.share import Share
from partage.faces.prove.stage import Ground, Need
from partage.faces.prove.tenant import Lost
from partage.model.mps import DaemonSpec
from partage.model.policy import Strategy
from partage.sim.mps.node import CLIENT_PROGRAM, MpsNode, install
from partage.units import MIB

_PROGRAMS = "usr/bin"
_UP_S = 20.0


class Simulation:
    """A directory of programs, and a daemon for each share that wants one.

    deaf: the daemon ignores the limits that it is given, and says nothing.
    """

    evidence = Evidence.SIMULATED

    def __init__(self, root: Path, *, faults: bool, deaf: bool = False, deadline_s: float = 20.0) -> None:
        self._root, self._faults, self._deaf = root, faults, deaf
        self.deadline_s = deadline_s

    def argv(self, uid: int | None) -> tuple[str, ...]:
        user = () if uid is None else (str(uid),)
        return (str(self._root / _PROGRAMS / CLIENT_PROGRAM), *user)

    def lacks(self, need: Need) -> str:
        match need:
            case Need.FAULTS:
                return "" if self._faults else "it ends the work of whoever is hit: --faults tries it"
            case Need.ROOT:
                return "" if os.geteuid() == 0 else "processes of other users can be begun by root only"
            case Need.NEIGHBOUR:
                return ""
        return "it takes a real GPU; the simulation has the MPS daemon and its clients"

    async def holder(self, gpu: str) -> str:
        del gpu
        return ""

    def versions(self) -> Mapping[str, str]:
        return {}

    def ground(self, share: Share) -> AbstractAsyncContextManager[Ground]:
        return self._with_daemon(share)

    @asynccontextmanager
    async def _with_daemon(self, share: Share) -> AsyncIterator[Ground]:
        if share.offering.shared is not Strategy.MPS:
            raise Lost("the simulation has nothing but MPS to try")
        home = _directory("daemon-", self._root)
        pipe, log = _directory("pipe-", home), _directory("log-", home)
        spec = _spec(share)
        program = install(
            self._root / _PROGRAMS, MpsNode({spec.device: share.device_bytes}, deaf_to_limits=self._deaf)
        )
        environment = {
            "PATH": os.defpath,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(log),
            "CUDA_VISIBLE_DEVICES": spec.device,
        }
        daemon = await child.begin([str(program), "-f", *_options(spec, home)], environment)
        try:
            await _serving(spec, DriverFiles(self._root), environment)
            known = Daemon(pipe, self._root, named=bool(spec.namespaces))
            yield Ground(_place(share, pipe / share.offering.pipe, self._root), known)
        finally:
            await daemon.end()
            shutil.rmtree(home)


def _spec(share: Share) -> DaemonSpec:
    """What the agent's daemon would be asked to be."""
    offering = share.offering
    return DaemonSpec(
        offering.gpu,
        offering.device,
        share.largest_bytes // MIB * MIB,
        share.largest_threads,
        namespaces=share.namespaces,
    )


def _options(spec: DaemonSpec, home: Path) -> list[str]:
    """One server for all users; with namespaces what it is told stands in a file."""
    if not spec.namespaces:
        return [MULTI_USER[spec.protocol]]
    path = home / "mps.toml"
    path.write_text(configuration(spec), encoding="utf-8")
    return [*OPTIONS, str(path), MULTI_USER[spec.protocol]]


async def _serving(spec: DaemonSpec, driver: DriverFiles, environment: Mapping[str, str]) -> None:
    """The daemon answers, and was told its limits. Raises Lost."""
    problem = ""

    async def answers() -> bool:
        nonlocal problem
        try:
            if spec.namespaces:
                await ControlV3(driver.program, environment).listed()
            else:
                await ControlV2(driver.program, environment).set_limits(spec)
        except DaemonError as error:
            problem = str(error)
            return False
        return True

    if not await wait_until(answers, _UP_S):
        raise Lost(f"the simulated control daemon does not answer: {problem}")


def _place(share: Share, pipe: Path, root: Path) -> Place:
    return Place(
        device=share.offering.device,
        mig=share.mig,
        pipe=pipe,
        memory_bytes=share.device_bytes,
        share_bytes=share.bytes,
        driver_root=root,
        exclusive=share.exclusive,
    )


def _directory(prefix: str, parent: Path) -> Path:
    """A new one that clients of every user may pass."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    path.chmod(0o755)
    return path


@asynccontextmanager
async def simulation(*, faults: bool, deaf: bool = False) -> AsyncIterator[Simulation]:
    """A simulation, of which nothing is left afterwards."""
    root = _directory("partage-prove-", Path("/tmp"))  # noqa: S108 - the path of a socket has to be short
    try:
        yield Simulation(root, faults=faults, deaf=deaf)
    finally:
        shutil.rmtree(root)
