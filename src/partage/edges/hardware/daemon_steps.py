"""Steps on MPS daemons: passed to the DaemonKeeper, its errors translated into those of the hardware port."""

from __future__ import annotations

from partage.edges.hardware.port import DaemonKeeper
from partage.errors import DaemonError, HardwareError, Unsupported
from partage.model.gpu_use import UsersOf, nobody
from partage.model.mps import DaemonState
from partage.model.step import EndClient, SetNamespace, StartDaemon, StopDaemon

DaemonStep = StartDaemon | StopDaemon | EndClient | SetNamespace
"""A step on a daemon."""


async def perform_daemon_step(keeper: DaemonKeeper | None, step: DaemonStep, users: UsersOf = nobody) -> None:
    """Perform the step. users: as for ``DaemonKeeper.stop``.

    Raises Unsupported if there is no keeper, GpuInUse, NotFound, HardwareError.
    """
    if keeper is None:
        raise Unsupported(
            f"cannot {step}: this process does not manage MPS daemons", "the agent's helper does"
        )
    try:
        match step:
            case StartDaemon(_, spec):
                await keeper.start(spec)
            case StopDaemon(_, device):
                await keeper.stop(device, users=users)
            case EndClient(_, device, server, client):
                await keeper.terminate(device, server, client)
            case SetNamespace(_, device, namespace):
                await keeper.limit(device, namespace)
    except DaemonError as error:
        raise HardwareError(error.problems) from error


async def observe_daemons(keeper: DaemonKeeper | None) -> tuple[DaemonState, ...]:
    """All daemons. Raises HardwareError."""
    try:
        return () if keeper is None else await keeper.states()
    except DaemonError as error:
        raise HardwareError(error.problems) from error
