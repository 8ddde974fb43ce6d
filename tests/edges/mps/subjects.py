"""What the contract runs on: the control program of the simulation, or the driver's own on a real GPU."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from partage.edges.hardware.port import DaemonKeeper
from partage.edges.mps.access import DaemonDeadlines
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.keeper import MpsKeeper
from partage.edges.mps.paths import DriverFiles
from partage.model.ids import GpuUuid, device_uuid
from partage.model.mps import CONTROL_PROGRAM, SERVER, DaemonSpec, MpsNamespace
from partage.sim.mps.node import MpsNode
from partage.units import GIB

GPUS = (
    GpuUuid("GPU-11111111-2222-3333-4444-000000000000"),
    GpuUuid("GPU-11111111-2222-3333-4444-000000000001"),
)
NOBODY = 65534
ROOT = os.geteuid() == 0
LIMIT = 2 * GIB
SHARE = "share0"
ANSWER_S = 10.0


class Tenant:
    """A process that is a client of a daemon, and does what it is told."""

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    async def hears(self, limit_s: float = ANSWER_S) -> str:
        """``ok``, or the name of CUDA's error."""
        assert self.process.stdout is not None
        async with asyncio.timeout(limit_s):
            return (await self.process.stdout.readline()).decode().strip().removeprefix("error ")

    async def says(self, request: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{request}\n".encode())
        return await self.hears()

    async def leaves(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()


@dataclass(slots=True)
class Subject:
    """One node with a control program. run_dir: short, passable for every user.

    devices: GPUs that can be shared. client: command line of a client program.
    protocol: version of the daemons' language; in version 3 all limits are a namespace's.
    node: what its control program can; None: a real GPU's driver.
    """

    run_dir: Path
    root: Path
    devices: tuple[GpuUuid, ...]
    client: tuple[str, ...]
    simulated: bool
    protocol: int = 2
    node: MpsNode | None = None
    tenants: list[Tenant] = field(default_factory=list)

    @property
    def says_faults(self) -> bool:
        """Whether the daemon says the status of a server: not 535's."""
        return self.node is None or self.node.has_status

    @property
    def queues_users(self) -> bool:
        """Whether clients speak to the daemon: a process in the server's place hides them from it."""
        return self.simulated or self.node is None

    def keeper(self, *, host: DaemonHost | None = None, **deadlines: float) -> DaemonKeeper:
        return MpsKeeper(self.run_dir, self.root, host=host, deadlines=DaemonDeadlines(**deadlines))

    def spec(self, number: int = 0, **changes: object) -> DaemonSpec:
        wanted: dict[str, object] = {"memory_bytes": LIMIT, "threads_percent": 25} | changes
        device = self.devices[number]
        spec = DaemonSpec(device, device, **wanted)  # type: ignore[arg-type]
        if self.protocol == 2 or spec.namespaces:
            return spec
        return replace(spec, namespaces=(MpsNamespace(SHARE, spec.memory_bytes, spec.threads_percent),))

    def home(self, number: int = 0) -> Path:
        return self.run_dir / "mps" / self.devices[number]

    def pipe(self, number: int = 0) -> Path:
        """What a container is given as its pipe directory."""
        pipe = self.home(number) / "pipe"
        return pipe if self.protocol == 2 else pipe / SERVER / SHARE

    @contextlib.asynccontextmanager
    async def commander(self) -> AsyncIterator[int]:
        """While somebody has a control program open and gives it no command; its pid."""
        shimmed = self.root / "usr/local/bin" / CONTROL_PROGRAM  # see ``stand_in``
        process = await asyncio.create_subprocess_exec(
            shimmed if shimmed.exists() else DriverFiles(self.root).program(),
            stdin=PIPE,
            stdout=PIPE,
            env={"PATH": os.defpath, "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe())},
        )
        try:
            yield process.pid
        finally:
            process.kill()
            await process.wait()

    async def begins(self, number: int = 0, *, uid: int | None = None, **env: str) -> Tenant:
        """A client, whether or not it is let in."""
        inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        pipe = str(self.pipe(number))
        process = await asyncio.create_subprocess_exec(
            *self.client,
            *([] if uid is None else [str(uid)]),
            stdin=PIPE,
            stdout=PIPE,
            env=inherited | {"CUDA_MPS_PIPE_DIRECTORY": pipe} | env,
        )
        tenant = Tenant(process)
        self.tenants.append(tenant)
        return tenant

    async def tenant(self, number: int = 0, *, uid: int | None = None, **env: str) -> Tenant:
        """A client that was let in."""
        tenant = await self.begins(number, uid=uid, **env)
        assert await tenant.hears() == "ok"
        return tenant


@contextlib.asynccontextmanager
async def ending(subject: Subject) -> AsyncIterator[Subject]:
    """Whatever a test leaves is ended: clients first, then daemons, in whichever state."""
    try:
        yield subject
    finally:
        for tenant in subject.tenants:
            await tenant.leaves()
        for home in (subject.run_dir / "mps").glob("*-*/"):
            await subject.keeper().stop(device_uuid(home.name), force=True)


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def fill(directory: Path) -> None:
    """Write a file until the file system is full. Raises OSError then."""
    with (directory / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(2**16)):
            pass


async def until(condition: object, limit_s: float = ANSWER_S) -> None:
    """Wait for a condition, a coroutine function; fail where it does not come true."""
    async with asyncio.timeout(limit_s):
        while not await condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)
