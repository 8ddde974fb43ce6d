"""The engine for a real node: tenants through the driver, beside whatever daemon is there already.

It starts no daemon, sets nothing on a GPU, and asks before each attack whether anybody else has come.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from partage.agent.reconciler.one_shot import NodeAccess
from partage.edges.mps import launch
from partage.errors import DriverUnavailable
from partage.faces.bench.node import computes, guard_directory
from partage.faces.bench.places import Place
from partage.faces.prove.daemon import Daemon
from partage.faces.prove.model import Evidence
from partage.faces.prove.share import Share
from partage.faces.prove.stage import Ground, Need, in_container, pipe_of
from partage.faces.prove.tenant import Lost
from partage.model.gpu import NoDriver
from partage.model.policy import Strategy

_TORCH_VERSION = "import importlib.metadata as m; print(m.version('torch'))"
_VERSION_S = 20
PROGRAM = Path(__file__).with_name("program.py")


@dataclass(frozen=True, slots=True)
class Real:
    """python: the interpreter of the tenants; engine: torch, or cuda for the driver's library alone.

    node: who is asked for holders. run_dir: the agent's. pipe: a daemon's that was named, for every share.
    """

    python: str
    engine: str
    node: NodeAccess
    run_dir: Path
    faults: bool
    pipe: Path | None = None
    driver_root: Path = Path("/")
    deadline_s: float = 60.0
    evidence: Evidence = Evidence.HARDWARE

    def argv(self, uid: int | None) -> tuple[str, ...]:
        user = () if uid is None else ("--uid", str(uid))
        return (self.python, str(PROGRAM), "--engine", self.engine, *user)

    def lacks(self, need: Need) -> str:
        match need:
            case Need.FAULTS:
                return "" if self.faults else "it ends the work of whoever is hit: --faults tries it"
            case Need.ROOT:
                return "" if os.geteuid() == 0 else "processes of other users can be begun by root only"
            case Need.TORCH:
                return "" if self.engine == "torch" else "the guard caps frameworks: --engine torch tries it"
            case Need.CONTAINER:
                return "" if in_container() else "this is no container that holds a share"
        return ""

    async def holder(self, gpu: str) -> str:
        inventory, uses = await self.node.look()
        if isinstance(inventory.driver, NoDriver):
            raise DriverUnavailable(inventory.driver.reason)
        return next((str(use) for use in uses if use.gpu == gpu and computes(use)), "")

    def versions(self) -> Mapping[str, str]:
        if self.engine != "torch":
            return {}
        try:
            asked = subprocess.run(  # noqa: S603 - the operator's own interpreter
                [self.python, "-c", _TORCH_VERSION],
                capture_output=True, text=True, timeout=_VERSION_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return {"torch": "unknown"}
        return {"torch": asked.stdout.strip() or "unknown"}

    def ground(self, share: Share) -> AbstractAsyncContextManager[Ground]:
        return self._found(share)

    @asynccontextmanager
    async def _found(self, share: Share) -> AsyncIterator[Ground]:
        device = share.offering.device
        pipe = None
        if share.offering.shared is Strategy.MPS:
            pipe = pipe_of(device, self.run_dir, self.pipe)
            if pipe is None:
                raise Lost("no MPS daemon serves it; --mps-pipe names one")
        place = Place(
            device=device,
            mig=share.mig,
            pipe=None if pipe is None else pipe / share.offering.pipe,
            guard=guard_directory(),
            memory_bytes=share.device_bytes,
            share_bytes=share.bytes,
            driver_root=self.driver_root,
            exclusive=share.exclusive,
        )
        if pipe is None:
            yield Ground(place)
            return
        daemon = Daemon(pipe, self.driver_root, named=bool(share.offering.pipe))
        yield Ground(place, daemon, _with_shared_memory(pipe.with_name("shm")))


def _with_shared_memory(shm: Path) -> tuple[str, ...]:
    """A program that becomes a tenant which sees the daemon's own /dev/shm, as containers of its shares do.

    Empty where the daemon has none of its own, or where nobody may mount.
    """
    if os.geteuid() != 0 or not shm.is_mount():
        return ()
    return (sys.executable, "-I", "-S", launch.__file__, "", str(shm))
