"""The stage of an attack: tenants of one share, started as its containers are, and ended afterwards."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from partage.edges.mps.processes import wait_until
from partage.lab.daemon import MpsDaemon
from partage.lab.place import MEMORY_VARIABLE, THREADS_VARIABLE, TenantMode, TenantPlace
from partage.lab.prove.model import EvidenceKind
from partage.lab.prove.share import PromisedShare
from partage.lab.tenant import OK, TenantProcess, piece_bytes, start_tenant
from partage.model.driver_limit import LimitAt
from partage.model.ids import GpuUuid
from partage.units import MIB
from partage.values import Frozen

VariableChanges = Mapping[str, str | None]
"""Of a tenant's environment; None: without that variable."""
UNCHANGED: VariableChanges = {}
_GONE_S = 10.0


class CannotTry(Exception):
    """An attack cannot be tried, or failed half-way. The text is the reason, a clause."""


class CountedMemory(Frozen):
    """counted_bytes: what the driver or the kernel counts for the cgroup. summed_bytes: of its processes, of
    which there are so many.
    """

    counted_bytes: int
    summed_bytes: int
    processes: int


class AttackNeed(StrEnum):
    """What an attack needs beyond tenants of the share.

    gpu: a real one: the simulation has MPS clients, and neither compute modes nor multiprocessors.
    faults: permission to end the work of processes that a fault hits. root: processes of other users.
    commands: a daemon that may be given commands and kept from others, a simulated one.
    torch: PyTorch. container: to run in a container that holds a share. neighbour: a second MIG device.
    """

    GPU = "gpu"
    FAULTS = "faults"
    ROOT = "root"
    COMMANDS = "commands"
    TORCH = "torch"
    CONTAINER = "container"
    NEIGHBOUR = "neighbour"


@dataclass(frozen=True, slots=True)
class ShareSetup:
    """What an engine has set up for one share.

    daemon: of its MPS, None where the share has none. before: a program with its arguments that sets up a
    tenant and then becomes it; the tenant's command line follows. cgroup: of the tenants, where the driver's
    limit of the share is; None: it has none.
    """

    place: TenantPlace
    daemon: MpsDaemon | None = None
    before: tuple[str, ...] = ()
    cgroup: Path | None = None


@dataclass(frozen=True, slots=True)
class ProofEngine(ABC):
    """What starts tenants, and on what: a real node or a simulated daemon.

    faults: whether attacks may make kernels fault. deadline_s: for one answer of a tenant.
    """

    faults: bool
    deadline_s: float = field(default=60.0, kw_only=True)
    evidence: ClassVar[EvidenceKind]
    """How a row that was tried is known."""

    @abstractmethod
    def argv(self, uid: int | None) -> tuple[str, ...]:
        """The command line of a tenant of that user."""

    @abstractmethod
    def setup(self, share: PromisedShare) -> AbstractAsyncContextManager[ShareSetup]:
        """What surrounds a share, given back afterwards. Raises CannotTry."""

    def lacks(self, need: AttackNeed) -> str:
        """Why a need cannot be met here, a clause; empty where it can."""
        if need is AttackNeed.FAULTS and not self.faults:
            return "it ends the work of the processes that the fault hits: --faults tries it"
        if need is AttackNeed.ROOT and os.geteuid() != 0:
            return "only root can start processes of other users"
        if need is AttackNeed.COMMANDS and self.evidence is not EvidenceKind.SIMULATED:
            return "it would command a daemon that others use, or keep it from them; the simulation tries it"
        return ""

    async def counted(self, at: LimitAt) -> CountedMemory:
        """What a cgroup with the name of a container has. Raises CannotTry."""
        raise CannotTry(f"nothing is counted for {at.container[:12]} here")

    async def holder(self, gpu: GpuUuid) -> str:
        """What else works on a GPU (UUID) or holds a share of it; empty: nothing.

        Raises PartageError where that cannot be asked.
        """
        del gpu
        return ""

    def versions(self) -> Mapping[str, str]:
        """Of what tenants use. Blocking."""
        return {}


@dataclass(frozen=True, slots=True)
class Allocated:
    """What a tenant got that allocated piece by piece, and the answer to the last piece."""

    bytes: int
    answer: str


class ExperimentStage:
    """The tenants of one attack on one share.

    unverified: the daemon could not be asked whether tenants are its clients. CUDA does not say: a process
    that cannot reach the daemon works without it, and without its limits.
    """

    def __init__(self, engine: ProofEngine, share: PromisedShare, setup: ShareSetup) -> None:
        self.engine, self.share = engine, share
        self.unverified = False
        self._setup = setup
        self._tenants: list[TenantProcess] = []
        self._clients: set[TenantProcess] = set()

    async def tenant(
        self,
        changes: VariableChanges = UNCHANGED,
        *,
        mode: TenantMode | None = None,
        number: int = 0,
        through: tuple[str, ...] = (),
    ) -> TenantProcess:
        """A tenant that has a context. Raises NotConnected, TenantLost, CannotTry. See ``begin``."""
        tenant = await self.begin(changes, mode=mode, number=number, through=through)
        await tenant.connected()
        if self._mode(mode) is TenantMode.MPS:
            self._clients.add(tenant)
            await self._verify()
        return tenant

    async def tell(self, command: str, uid: int | None = None) -> str:
        """What the daemon answers to a command, of root or of another user. Raises CannotTry."""
        return await self.daemon.tell(command, uid)

    @property
    def daemon(self) -> MpsDaemon:
        """The daemon of the share. Raises CannotTry where there is none."""
        if self._setup.daemon is None:
            raise CannotTry("there is no daemon")
        return self._setup.daemon

    @property
    def cgroup(self) -> Path:
        """Where the limit of the tenants is. Raises CannotTry where there is none."""
        if self._setup.cgroup is None:
            raise CannotTry("its tenants have no cgroup of their own")
        return self._setup.cgroup

    async def servers(self) -> list[str]:
        """Pids of the daemon's servers, once a tenant was there."""
        await self.end(await self.tenant())
        return (await self.tell("get_server_list")).split()

    async def begin(
        self,
        changes: VariableChanges = UNCHANGED,
        *,
        mode: TenantMode | None = None,
        number: int = 0,
        uid: int | None = None,
        through: tuple[str, ...] = (),
    ) -> TenantProcess:
        """A tenant that may have to wait for its context. Raises TenantLost.

        mode: None: as the share's containers work. number: on which of its MIG devices. through: a program
        of the tenant's own that starts it.
        """
        whole = {**self._environment(self._mode(mode), number), **changes}
        environment = {name: value for name, value in whole.items() if value is not None}
        argv = (*self._setup.before, *through, *self.engine.argv(uid))
        tenant = await start_tenant(argv, environment, self.engine.deadline_s)
        self._tenants.append(tenant)
        return tenant

    async def end(self, *tenants: TenantProcess) -> None:
        """End these tenants, or all."""
        ending = tenants or tuple(self._tenants)
        self._tenants = [tenant for tenant in self._tenants if tenant not in ending]
        self._clients.difference_update(ending)
        await asyncio.gather(*(process.end() for process in ending))

    async def others(self) -> int | None:
        """How many clients the daemon has while no tenant of ours is there; None: it cannot be asked."""
        return 0 if self._setup.daemon is None else await self._setup.daemon.clients()

    async def settled(self) -> None:
        """Wait for some time until the daemon has noticed that our tenants have gone."""

        async def no_clients() -> bool:
            return not await self.others()

        await wait_until(no_clients, _GONE_S)

    def _environment(self, mode: TenantMode, number: int) -> dict[str, str]:
        """As a container of the share has it."""
        found = self._setup.place.environment(mode, number)
        if self.share.by_variable and mode is TenantMode.MPS:
            found[MEMORY_VARIABLE] = f"0={self.share.bytes // MIB}M"
            found[THREADS_VARIABLE] = str(self.share.offering.threads_percent or 100)
        return found

    def _mode(self, mode: TenantMode | None) -> TenantMode:
        if mode is not None:
            return mode
        if self.share.offering.traits.through_daemon:
            return TenantMode.MPS
        return TenantMode.MIG if self.share.mig else TenantMode.ALONE

    async def _verify(self) -> None:
        """Raises CannotTry where a tenant is no client of the daemon, though it should be."""
        found = await self.others()
        self.unverified = self.unverified or found is None
        if found is not None and found < len(self._clients):
            raise CannotTry("a tenant is no client of the daemon: it did not reach it, and works beside it")


async def allocate_in_pieces(
    tenant: TenantProcess, limit_bytes: int, most_bytes: int, *, piece: int | None = None
) -> Allocated:
    """Allocate pieces of a limit, or of so many bytes, until one is refused, or until one more would exceed
    ``most_bytes``. Raises TenantLost.
    """
    piece = piece or piece_bytes(limit_bytes)
    got = 0
    while got + piece <= most_bytes:
        answer = await tenant.allocate(piece)
        if answer != OK:
            return Allocated(got, answer)
        got += piece
    return Allocated(got, OK)
