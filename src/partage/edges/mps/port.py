"""The port to MPS control daemons: immutable values in and out, four methods.

A daemon does not belong to the process that started it: every process finds the daemons below the run
directory and can manage them. Implementation: ``edges.mps.keeper``; on machines without a GPU with the
control program of ``sim.mps``.
"""

from __future__ import annotations

from typing import Protocol

from partage.model.ids import DeviceUuid
from partage.model.mps import DaemonSpec, DaemonState


class MpsDaemons(Protocol):
    """The control daemons of one node.

    Every method may raise DaemonError (a daemon failed, or did not answer in time) and NotPermitted. Two
    processes may call at the same time: steps on one device wait for each other.
    """

    async def start(self, spec: DaemonSpec) -> DaemonState:
        """The daemon of ``spec.device``, with a running server, and limits that were read back and compared.

        If it runs with this spec already, its limits are set and verified again. If it runs with another
        spec and has no clients, it is replaced. Leftovers of a dead daemon are removed first, including its
        servers, which can no longer be controlled. The compute mode is not changed.

        Raises GpuInUse (another spec, and it has clients), Unsupported (no control program, no such
        option), DaemonError (it did not start, or ignores a limit: then it was stopped again).
        """
        ...

    async def stop(self, device: DeviceUuid, *, force: bool = False) -> None:
        """Stop the daemon of a device and remove its directories. Nothing happens if there is none.

        force: also end the work of its clients, and a daemon that does not answer. Without it, raises
        GpuInUse with the clients, and DaemonError if the daemon does not answer.
        """
        ...

    async def states(self) -> tuple[DaemonState, ...]:
        """Every daemon that was started and not stopped, ordered by device. A fault, no answer and a dead
        daemon are states.
        """
        ...

    async def terminate(self, device: DeviceUuid, server_pid: int, client_pid: int) -> None:
        """End the work of one client on the GPU and free its memory; done when this returns.

        The process lives on; its next CUDA call fails. Raises NotFound, DaemonError.
        """
        ...
