"""The engine for machines without a GPU: a simulated MPS control daemon for each share, and its clients."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from partage.errors import DaemonError
from partage.lab.daemon import PROGRAMS, MpsDaemon, passable_directory, simulated_daemon
from partage.lab.prove.model import Evidence
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import AttackNeed, CannotTry, ShareSetup, lacks_permission
from partage.model.policy import Strategy
from partage.sim.mps.node import CLIENT_PROGRAM

_POSSIBLE = (AttackNeed.FAULTS, AttackNeed.ROOT, AttackNeed.NEIGHBOUR)


class SimulatedEngine:
    """root: directory of the programs. deaf: daemons silently ignore the limits that they are given."""

    evidence = Evidence.SIMULATED

    def __init__(self, root: Path, *, faults: bool, deaf: bool = False, deadline_s: float = 20.0) -> None:
        self._root, self._faults, self._deaf = root, faults, deaf
        self.deadline_s = deadline_s

    def argv(self, uid: int | None) -> tuple[str, ...]:
        user = () if uid is None else (str(uid),)
        return (str(self._root / PROGRAMS / CLIENT_PROGRAM), *user)

    def lacks(self, need: AttackNeed) -> str:
        if need not in _POSSIBLE:
            return "it takes a real GPU; the simulation has the MPS daemon and its clients"
        return lacks_permission(need, faults=self._faults)

    async def holder(self, gpu: str) -> str:
        del gpu
        return ""

    def versions(self) -> Mapping[str, str]:
        return {}

    def setup(self, share: PromisedShare) -> AbstractAsyncContextManager[ShareSetup]:
        return self._with_daemon(share)

    @asynccontextmanager
    async def _with_daemon(self, share: PromisedShare) -> AsyncIterator[ShareSetup]:
        if share.offering.shared is not Strategy.MPS:
            raise CannotTry("the simulation has nothing but MPS to try")
        running = simulated_daemon(self._root, share.daemon_spec, share.device_bytes, deaf=self._deaf)
        try:
            async with running as pipe:
                daemon = MpsDaemon(pipe, self._root, named=bool(share.namespaces))
                yield ShareSetup(share.place(pipe, self._root), daemon)
        except DaemonError as error:
            raise CannotTry(f"the simulated control daemon does not answer: {error}") from error


@asynccontextmanager
async def simulation(*, faults: bool, deaf: bool = False) -> AsyncIterator[SimulatedEngine]:
    """An engine, of which nothing is left afterwards."""
    root = passable_directory("partage-prove-", Path("/tmp"))  # noqa: S108 - a socket's path has to be short
    try:
        yield SimulatedEngine(root, faults=faults, deaf=deaf)
    finally:
        shutil.rmtree(root)
