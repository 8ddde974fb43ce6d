"""MPS daemons for the jobs of a Slurm node. Imported only for a job that has a share of MPS."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from partage.edges.mps.home import DaemonHost
from partage.edges.mps.keeper import MpsKeeper
from partage.errors import PartageError
from partage.model.ids import DeviceUuid
from partage.model.mps import DaemonSpec, DaemonState
from partage.slurm.agent.job_node import JobNode
from partage.slurm.host.root_directory import RootDirectory

_STOP_S = 60.0


def start_daemons(node: JobNode, specs: Iterable[DaemonSpec]) -> tuple[DaemonState, ...]:
    """Start these daemons, or find that they run. Raises PartageError, OSError."""
    with RootDirectory(node.run_dir):
        keeper = _keeper(node)
    return asyncio.run(_started(keeper, tuple(specs)))


def stop_daemons(node: JobNode, devices: Iterable[DeviceUuid]) -> tuple[str, ...]:
    """Stop these daemons. No job has them any more: what is still connected has escaped its job, and ends."""
    return asyncio.run(_stopped(_keeper(node), tuple(devices)))


def running_daemons(node: JobNode) -> frozenset[DeviceUuid]:
    """The devices that have a daemon. Raises PartageError, OSError."""
    return frozenset(daemon.device for daemon in asyncio.run(_keeper(node).states()))


def _keeper(node: JobNode) -> MpsKeeper:
    """Jobs see the node's /dev/shm, so the daemons have no other. They are no root, and make no files in pipe
    and log; with mount namespaces of their own they would not see what is mounted when they run.
    """
    return MpsKeeper(node.run_dir, node.driver_root, host=DaemonHost(own_mounts=False))


async def _started(keeper: MpsKeeper, specs: tuple[DaemonSpec, ...]) -> tuple[DaemonState, ...]:
    return tuple([await keeper.start(spec) for spec in specs])


async def _stopped(keeper: MpsKeeper, devices: tuple[DeviceUuid, ...]) -> tuple[str, ...]:
    wrong = []
    for device in devices:
        try:
            async with asyncio.timeout(_STOP_S):
                await keeper.stop(device, force=True)
        except (PartageError, TimeoutError) as error:
            wrong.append(f"the MPS daemon of {device} was not stopped: {error or 'it took too long'}")
    return tuple(wrong)
