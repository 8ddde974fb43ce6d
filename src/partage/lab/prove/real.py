"""The engine for a real node: tenants use the driver, and the MPS daemon that is there.

It starts no daemon and changes no setting of a GPU. Before each attack it asks whether other processes have
come.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from partage.edges.hardware.port import Hardware
from partage.edges.mps import launch
from partage.errors import DriverUnavailable, HardwareError
from partage.lab.daemon import MpsDaemon, find_pipe
from partage.lab.gpus import guard_directory, is_workload
from partage.lab.prove.limited_cgroup import CGROUPS, COMPILED, entering, limited_cgroup
from partage.lab.prove.model import EvidenceKind
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import AttackNeed, CannotTry, CountedMemory, ProofEngine, ShareSetup
from partage.lab.tenant import TenantLaunch
from partage.model.cgroup import parse_cgroup
from partage.model.driver_limit import DriverLimit, LimitAt
from partage.model.gpu import Inventory, NoDriver
from partage.model.gpu_use import GpuUse
from partage.model.ids import GpuUuid

_TORCH_VERSION = "import importlib.metadata as m; print(m.version('torch'))"
_VERSION_S = 20


@dataclass(frozen=True, slots=True)
class RealEngine(ProofEngine):
    """observe: the node and who uses it. run_dir: the agent's. pipe: of a named daemon, for every share.

    memory: what a cgroup has. hook, cgroups: as for ``limited_cgroup``.
    """

    evidence = EvidenceKind.HARDWARE
    launch: TenantLaunch
    observe: Callable[[], Awaitable[tuple[Inventory, Sequence[GpuUse]]]]
    run_dir: Path
    pipe: Path | None = None
    memory: Callable[[LimitAt], Awaitable[CountedMemory]] | None = None
    driver_root: Path = Path("/")
    hook: Path = COMPILED
    cgroups: Path = CGROUPS

    def argv(self, uid: int | None) -> tuple[str, ...]:
        return self.launch.argv(uid)

    def lacks(self, need: AttackNeed) -> str:
        if need is AttackNeed.TORCH and self.launch.engine != "torch":
            return "the guard caps frameworks: --engine torch tries it"
        # The environment of a container that holds a share of Partage's says so.
        if need is AttackNeed.CONTAINER and not os.environ.get("PARTAGE_GPUS"):
            return "this is no container that holds a share"
        return ProofEngine.lacks(self, need)

    async def counted(self, at: LimitAt) -> CountedMemory:
        return await (super().counted if self.memory is None else self.memory)(at)

    async def holder(self, gpu: GpuUuid) -> str:
        inventory, uses = await self.observe()
        if isinstance(inventory.driver, NoDriver):
            raise DriverUnavailable(inventory.driver.reason)
        return next((str(use) for use in uses if use.gpu == gpu and is_workload(use)), "")

    def versions(self) -> Mapping[str, str]:
        if self.launch.engine != "torch":
            return {}
        try:
            asked = subprocess.run(  # noqa: S603 - the operator's own interpreter
                [self.launch.python, "-c", _TORCH_VERSION],
                capture_output=True, text=True, timeout=_VERSION_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return {"torch": "unknown"}
        return {"torch": asked.stdout.strip() or "unknown"}

    @asynccontextmanager
    async def setup(self, share: PromisedShare) -> AsyncIterator[ShareSetup]:
        guard = guard_directory()
        if share.offering.limited:
            limit = DriverLimit(share.offering.gpu, share.bytes)
            async with limited_cgroup(limit, self.driver_root, self.hook, self.cgroups) as cgroup:
                place = share.place(None, self.driver_root)
                yield ShareSetup(place, before=entering(cgroup), cgroup=cgroup)
            return
        if not share.offering.traits.through_daemon:
            yield ShareSetup(share.place(None, self.driver_root, guard))
            return
        pipe = find_pipe(share.offering.device, self.run_dir, self.pipe)
        if pipe is None:
            raise CannotTry("no MPS daemon serves it; --mps-pipe names one")
        daemon = MpsDaemon(pipe, self.driver_root, named=bool(share.offering.pipe))
        before = _with_shared_memory(pipe.with_name("shm"))
        yield ShareSetup(share.place(pipe, self.driver_root, guard), daemon, before)


def _with_shared_memory(shm: Path) -> tuple[str, ...]:
    """A program that becomes a tenant which sees the daemon's own /dev/shm, as containers of its shares do.

    Empty where the daemon has none of its own, or where this process may not mount.
    """
    if os.geteuid() != 0 or not shm.is_mount():
        return ()
    return (sys.executable, "-I", "-S", launch.__file__, "", "", str(shm))


async def counted_memory(hardware: Hardware, at: LimitAt) -> CountedMemory:
    """Asked as the agent asks for a container. Raises CannotTry where one of them cannot be had."""
    try:
        (seen,), processes = await hardware.limits([at]), await hardware.processes()
    except HardwareError as error:
        raise CannotTry(str(error)) from error
    if seen.state is None or seen.state.used_bytes is None:
        raise CannotTry(f"what is counted for {seen.cgroup or 'the cgroup'} cannot be read: {seen.why}")
    own = [
        row
        for row in processes.rows
        if row.gpu == at.gpu and parse_cgroup(row.cgroups).container == at.container
    ]
    if not own or any(row.used_bytes is None for row in own):
        raise CannotTry(processes.hidden or "the driver does not say what its processes use")
    return CountedMemory(seen.state.used_bytes, sum(row.used_bytes or 0 for row in own), len(own))
