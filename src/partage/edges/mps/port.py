"""The port to MPS control daemons: immutable values in and out, four verbs.

A daemon does not belong to the process that started it. Whoever looks finds the daemons below the run
directory, and takes them over by looking. Implementation: ``edges.mps.keeper``; on machines without a GPU it
works with the control program of ``sim.mps``.
"""

from __future__ import annotations

from typing import Protocol

from partage.model.mps import DaemonSpec, DaemonState


class MpsDaemons(Protocol):
    """The control daemons of one node.

    Every method may raise DaemonError (a daemon failed, or did not answer in time) and NotPermitted. Two
    processes may call at the same time: acts on one device wait for each other.
    """

    async def start(self, spec: DaemonSpec) -> DaemonState:
        """The daemon of ``spec.device``, with a server that runs, and limits read back and found right.

        One that runs as asked is left alone, its limits are set and verified again. One that was asked to be
        something else is replaced if it has no clients. What a dead one left is cleared away first, its
        servers included: they cannot be asked or limited any more. Compute mode is not touched.

        Raises GpuInUse (another spec, and clients are there), Unsupported (no control program, no such
        option), DaemonError (it did not start, or ignores a limit: then it was stopped again).
        """
        ...

    async def stop(self, device: str, *, force: bool = False) -> None:
        """End the daemon of a device and remove its directories. Nothing where there is none.

        force: end its clients' work, too, and a daemon that does not answer. Raises GpuInUse with the
        clients that are there otherwise, and DaemonError where the daemon does not say.
        """
        ...

    async def states(self) -> tuple[DaemonState, ...]:
        """Every daemon that was started and not stopped, by device. Fault, silence and death are states."""
        ...

    async def terminate(self, device: str, server_pid: int, client_pid: int) -> None:
        """End one client's work on the GPU and give its memory back; done when this returns.

        The process itself lives on; its next CUDA call fails. Raises NotFound, DaemonError.
        """
        ...
