"""Where an attack takes place: tenants of one share, begun as its containers would be, gone afterwards."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from partage.edges.mps.stopping import wait_until
from partage.faces.bench.model import Mode
from partage.faces.bench.places import Place
from partage.faces.prove.daemon import Daemon
from partage.faces.prove.model import Evidence
from partage.faces.prove.share import Share
from partage.faces.prove.tenant import OK, Lost, Tenant, begin
from partage.model.policy import Strategy
from partage.units import MIB

MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
Changes = Mapping[str, str | None]
UNCHANGED: Changes = {}
_GONE_S = 10.0
_PIECES = 16


class Need(StrEnum):
    """What an attack takes beyond tenants of the share.

    gpu: a real one: the simulation has MPS clients, and neither compute modes nor multiprocessors.
    faults: leave to end the work of whoever is hit. root: to begin processes of other users.
    torch: PyTorch. container: to be in a container that holds a share. neighbour: a second MIG device.
    """

    GPU = "gpu"
    FAULTS = "faults"
    ROOT = "root"
    TORCH = "torch"
    CONTAINER = "container"
    NEIGHBOUR = "neighbour"


@dataclass(frozen=True, slots=True)
class Ground:
    """What an engine has set up for one share.

    daemon: of its MPS, None where the share has none. before: a program with its arguments that becomes the
    tenant's, which comes after it.
    """

    place: Place
    daemon: Daemon | None = None
    before: tuple[str, ...] = ()


class Engine(Protocol):
    """Who begins tenants, and on what."""

    @property
    def evidence(self) -> Evidence:
        """What a row that was tried rests on."""
        ...

    @property
    def deadline_s(self) -> float:
        """For one answer of a tenant."""
        ...

    def argv(self, uid: int | None) -> tuple[str, ...]:
        """The program of a tenant, as that user."""
        ...

    def lacks(self, need: Need) -> str:
        """Why that cannot be had here, a clause; empty where it can."""
        ...

    async def holder(self, gpu: str) -> str:
        """Who works on a GPU (UUID) or holds a share of it, other than we; empty: nobody.

        Raises PartageError where that cannot be asked.
        """
        ...

    def versions(self) -> Mapping[str, str]:
        """Of what tenants use. Blocking."""
        ...

    def ground(self, share: Share) -> AbstractAsyncContextManager[Ground]:
        """Everything around a share, given back afterwards. Raises Lost where it cannot be had."""
        ...


@dataclass(frozen=True, slots=True)
class Got:
    """What somebody got who allocated piece by piece, and what the last piece was answered."""

    bytes: int
    answer: str


class Stage:
    """One attack's tenants on one share.

    unverified: nobody could be asked whether tenants were clients of the daemon. CUDA does not say: one that
    cannot reach it works without it, and without its limits.
    """

    def __init__(self, engine: Engine, share: Share, ground: Ground) -> None:
        self.engine, self.share = engine, share
        self.unverified = False
        self._ground = ground
        self._tenants: list[Tenant] = []
        self._clients: set[Tenant] = set()

    async def tenant(
        self, changes: Changes = UNCHANGED, *, mode: Mode | None = None, number: int = 0
    ) -> Tenant:
        """One that has a context. Raises NotLetIn, Lost. See ``begins``."""
        tenant = await self.begins(changes, mode=mode, number=number)
        await tenant.entered()
        if self._mode(mode) is Mode.MPS:
            self._clients.add(tenant)
            await self._verify()
        return tenant

    async def begins(
        self,
        changes: Changes = UNCHANGED,
        *,
        mode: Mode | None = None,
        number: int = 0,
        uid: int | None = None,
    ) -> Tenant:
        """One that may have to wait for its context. Raises Lost.

        changes: of its environment, None: without that variable. mode: None: as the share's containers work.
        number: on which of its MIG devices.
        """
        whole = {**self.environment(mode, number), **changes}
        environment = {name: value for name, value in whole.items() if value is not None}
        argv = (*self._ground.before, *self.engine.argv(uid))
        tenant = await begin(argv, environment, self.engine.deadline_s)
        self._tenants.append(tenant)
        return tenant

    def environment(self, mode: Mode | None = None, number: int = 0) -> dict[str, str]:
        """As a container of the share has it."""
        share, mode = self.share, self._mode(mode)
        found = self._ground.place.environment(mode, number)
        if share.by_variable and mode is Mode.MPS:
            found[MEMORY_VARIABLE] = f"0={share.bytes // MIB}M"
            found[THREADS_VARIABLE] = str(share.offering.threads_percent or 100)
        return found

    async def leave(self, *tenants: Tenant) -> None:
        """These, or all, are gone afterwards."""
        leaving = tenants or tuple(self._tenants)
        self._tenants = [one for one in self._tenants if one not in leaving]
        self._clients.difference_update(leaving)
        await asyncio.gather(*(one.end() for one in leaving))

    async def others(self) -> int | None:
        """How many clients the daemon has while we have none; None: it cannot be asked."""
        return 0 if self._ground.daemon is None else await self._ground.daemon.clients()

    async def settled(self) -> None:
        """Wait until the daemon has noticed that ours have gone; not for ever, for others may have come."""

        async def nobody() -> bool:
            return not await self.others()

        await wait_until(nobody, _GONE_S)

    def _mode(self, mode: Mode | None) -> Mode:
        """How tenants work: as they are told, or as the share's containers do."""
        if mode is not None:
            return mode
        if self.share.offering.shared is Strategy.MPS:
            return Mode.MPS
        return Mode.MIG if self.share.mig else Mode.ALONE

    async def _verify(self) -> None:
        """Raises Lost where a tenant is no client of the daemon, though it should be."""
        found = await self.others()
        self.unverified = self.unverified or found is None
        if found is not None and found < len(self._clients):
            raise Lost("a tenant is no client of the daemon: it did not reach it, and works beside it")


async def fill(tenant: Tenant, limit_bytes: int, most_bytes: int) -> Got:
    """Allocate sixteenths of a limit, one after the other, until one is refused or ``most`` would be passed.

    Raises Lost.
    """
    piece = max(limit_bytes // _PIECES, MIB)
    got = 0
    while got + piece <= most_bytes:
        answer = await tenant.allocate(piece)
        if answer != OK:
            return Got(got, answer)
        got += piece
    return Got(got, OK)


def in_container(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process holds a share of Partage's: its environment says so."""
    return bool(environ.get("PARTAGE_GPUS"))


def pipe_of(device: str, run_dir: Path, named: Path | None) -> Path | None:
    """The pipe directory of the MPS daemon for a device: the named one, the agent's, this container's own."""
    if named is not None:
        return named
    places = [run_dir / "mps" / device / "pipe"]
    if own := os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        places.append(Path(own))
    return next((path for path in places if (path / "control").exists()), None)
