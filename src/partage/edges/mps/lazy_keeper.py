"""The keeper of daemons, loaded where there are daemons or one is to be started.

What manages them takes 1 MiB of the helper, and most nodes have none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from partage.edges.mps.paths import homes_below
from partage.model.gpu_use import UsersOf, nobody
from partage.model.ids import DeviceUuid
from partage.model.mps import DaemonSpec, DaemonState, MpsNamespace

if TYPE_CHECKING:
    from partage.edges.mps.keeper import MpsKeeper


class KeeperOnDemand:
    """The daemons below a run directory. Implements ``edges.hardware.port.DaemonKeeper``.

    make: imports and makes the keeper.
    """

    def __init__(self, run_dir: Path, make: Callable[[], MpsKeeper]) -> None:
        self._run_dir = run_dir
        self._make = make

    @cached_property
    def _keeper(self) -> MpsKeeper:
        return self._make()

    async def start(self, spec: DaemonSpec) -> DaemonState:
        return await self._keeper.start(spec)

    async def stop(self, device: DeviceUuid, *, force: bool = False, users: UsersOf = nobody) -> None:
        await self._keeper.stop(device, force=force, users=users)

    async def limit(self, device: DeviceUuid, namespace: MpsNamespace) -> None:
        await self._keeper.limit(device, namespace)

    async def states(self) -> tuple[DaemonState, ...]:
        homes = await asyncio.to_thread(homes_below, self._run_dir)
        return await self._keeper.states() if homes else ()

    def pipes(self) -> Mapping[DeviceUuid, Path]:
        return self._keeper.pipes() if homes_below(self._run_dir) else {}

    async def terminate(self, device: DeviceUuid, server_pid: int, client_pid: int) -> None:
        await self._keeper.terminate(device, server_pid, client_pid)
