"""The engine for machines without a GPU: for each share a simulated MPS control daemon and its clients, or a
simulated cgroup with a memory limit of the driver's, and processes in it.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from partage.codec.values import encode
from partage.errors import DaemonError
from partage.lab.daemon import PROGRAMS, MpsDaemon, passable_directory, simulated_daemon
from partage.lab.prove.limited_cgroup import entering
from partage.lab.prove.model import EvidenceKind
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import AttackNeed, CannotTry, CountedMemory, ProofEngine, ShareSetup
from partage.model.driver_limit import LimitAt, LimitBackend
from partage.sim.mps.node import CLIENT_PROGRAM, write_program
from partage.sim.node.limited_client import LimitedGpu, read_gpu

_GPU = "gpu.json"
_POSSIBLE = (AttackNeed.FAULTS, AttackNeed.ROOT, AttackNeed.COMMANDS, AttackNeed.NEIGHBOUR)


@dataclass(frozen=True, slots=True)
class SimulatedEngine(ProofEngine):
    """root: directory of the programs. ignores_limits: daemons and the driver ignore limits that are set.

    backend: what counts the memory of cgroups.
    """

    evidence = EvidenceKind.SIMULATED
    root: Path
    ignores_limits: bool = False
    backend: LimitBackend = LimitBackend.MISC

    def argv(self, uid: int | None) -> tuple[str, ...]:
        user = () if uid is None else (str(uid),)
        return (str(self.root / PROGRAMS / CLIENT_PROGRAM), *user)

    def lacks(self, need: AttackNeed) -> str:
        if need not in _POSSIBLE:
            return "it takes a real GPU; the simulation has the MPS daemon, cgroups, and their processes"
        return ProofEngine.lacks(self, need)

    @asynccontextmanager
    async def setup(self, share: PromisedShare) -> AsyncIterator[ShareSetup]:
        if share.offering.limited:
            yield self._limited(share)
            return
        if not share.offering.traits.through_daemon:
            raise CannotTry("the simulation has nothing but MPS and the driver's limits to try")
        running = simulated_daemon(
            self.root, share.daemon_spec, share.device_bytes, ignores_limits=self.ignores_limits
        )
        try:
            async with running as pipe:
                daemon = MpsDaemon(pipe, self.root, named=bool(share.namespaces))
                yield ShareSetup(share.place(pipe, self.root), daemon)
        except DaemonError as error:
            raise CannotTry(f"the simulated control daemon does not answer: {error}") from error

    async def counted(self, at: LimitAt) -> CountedMemory:
        gpu, path = read_gpu(self.root / _GPU), f"/{at.container}"
        processes = gpu.of_processes(path)
        return CountedMemory(gpu.tree().used_bytes(path, at.gpu), sum(processes.values()), len(processes))

    def _limited(self, share: PromisedShare) -> ShareSetup:
        """A cgroup with the name of a container."""
        cgroup = self.root / "cgroups" / secrets.token_hex(32)
        cgroup.mkdir(parents=True)
        limits = {} if self.ignores_limits else {f"/{cgroup.name}": share.bytes}
        gpu = LimitedGpu(str(cgroup.parent), self.backend, share.offering.gpu, share.device_bytes, limits)
        (self.root / _GPU).write_bytes(encode(gpu))
        client = self.root / PROGRAMS / CLIENT_PROGRAM
        write_program(client, "partage.sim.node.limited_client", str(self.root / _GPU))
        return ShareSetup(share.place(None, self.root), before=entering(cgroup), cgroup=cgroup)


@asynccontextmanager
async def simulation(
    *, faults: bool, ignores_limits: bool = False, backend: LimitBackend = LimitBackend.MISC
) -> AsyncIterator[SimulatedEngine]:
    """An engine, of which nothing is left afterwards."""
    root = passable_directory("partage-prove-", Path("/tmp"))  # noqa: S108 - a socket's path has to be short
    try:
        yield SimulatedEngine(faults, root, ignores_limits, backend, deadline_s=20.0)
    finally:
        shutil.rmtree(root)
