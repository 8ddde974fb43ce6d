"""The engine for machines without a GPU: a simulated MPS control daemon for each share, and its clients."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from partage.errors import DaemonError
from partage.lab.daemon import PROGRAMS, MpsDaemon, passable_directory, simulated_daemon
from partage.lab.prove.model import EvidenceKind
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import AttackNeed, CannotTry, ProofEngine, ShareSetup
from partage.sim.mps.node import CLIENT_PROGRAM

_POSSIBLE = (AttackNeed.FAULTS, AttackNeed.ROOT, AttackNeed.COMMANDS, AttackNeed.NEIGHBOUR)


@dataclass(frozen=True, slots=True)
class SimulatedEngine(ProofEngine):
    """root: directory of the programs. ignores_limits: daemons ignore the limits that they are given."""

    evidence = EvidenceKind.SIMULATED
    root: Path
    ignores_limits: bool = False

    def argv(self, uid: int | None) -> tuple[str, ...]:
        user = () if uid is None else (str(uid),)
        return (str(self.root / PROGRAMS / CLIENT_PROGRAM), *user)

    def lacks(self, need: AttackNeed) -> str:
        if need not in _POSSIBLE:
            return "it takes a real GPU; the simulation has the MPS daemon and its clients"
        return ProofEngine.lacks(self, need)

    @asynccontextmanager
    async def setup(self, share: PromisedShare) -> AsyncIterator[ShareSetup]:
        if not share.offering.traits.through_daemon:
            raise CannotTry("the simulation has nothing but MPS to try")
        running = simulated_daemon(
            self.root, share.daemon_spec, share.device_bytes, ignores_limits=self.ignores_limits
        )
        try:
            async with running as pipe:
                daemon = MpsDaemon(pipe, self.root, named=bool(share.namespaces))
                yield ShareSetup(share.place(pipe, self.root), daemon)
        except DaemonError as error:
            raise CannotTry(f"the simulated control daemon does not answer: {error}") from error


@asynccontextmanager
async def simulation(*, faults: bool, ignores_limits: bool = False) -> AsyncIterator[SimulatedEngine]:
    """An engine, of which nothing is left afterwards."""
    root = passable_directory("partage-prove-", Path("/tmp"))  # noqa: S108 - a socket's path has to be short
    try:
        yield SimulatedEngine(faults, root, ignores_limits, deadline_s=20.0)
    finally:
        shutil.rmtree(root)
