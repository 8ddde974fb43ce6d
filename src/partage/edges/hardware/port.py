"""The one port to GPUs and driver: coarse, serialisable, every call with a deadline.

Immutable values in and out, no handles. The list of verbs is closed, nine and no more: what is not here
cannot be asked of the privileged helper. One of them, ``perform``, changes something, and what it can be
told to do is closed, too: the acts of ``model.step``. Implementations: ``edges.hardware.nvml`` (in process),
``edges.hardware.remote`` (the helper process), ``sim.node.hardware`` (simulated). One contract suite
holds for all three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from partage.model.gpu import Inventory
from partage.model.health import GpuCondition, Xid
from partage.model.mps import DaemonSpec, DaemonState
from partage.model.process import Processes
from partage.model.step import Created, GpuUse, Step, TimeSlice

DEADLINE_S = 10.0
"""How long a caller waits for one call, unless it says otherwise. NVML answers in milliseconds; a GPU that
is falling off the bus can hold a call for seconds."""

STEP_DEADLINE_S = 60.0
"""How long a caller waits for one act. To destroy a GPU instance takes about a second, a reset several."""


@dataclass(frozen=True, slots=True)
class Events:
    """What happened since the last call. changed: MIG devices or driver changed; observe again."""

    xids: tuple[Xid, ...] = ()
    changed: bool = False


class Hardware(Protocol):
    """A node's GPUs. Every method may raise HardwareTimeout; a cancelled call leaves nothing behind."""

    async def observe(self) -> Inventory:
        """The whole node. A missing or broken driver is a state in the answer, not an error."""
        ...

    async def conditions(self) -> tuple[GpuCondition, ...]:
        """The driver's word on the health of each GPU, lost ones included. Raises DriverUnavailable."""
        ...

    async def events(self, timeout_s: float) -> Events:
        """Wait until something happened, at most timeout_s; then an empty Events. Raises DriverUnavailable.

        Does not hold up the other calls. An event is delivered once.
        """
        ...

    async def perform(self, step: Step) -> Created | None:
        """One act, done when this returns; at most STEP_DEADLINE_S. Made: what a creation brought.

        The other calls may have to wait for it: their deadlines begin when it ends.
        Not taken back by itself, and after any error (or none: the helper may be killed in the middle) it is
        the GPU's state, observed again, that counts, never the error. In particular:
        SetMode leaves the mode pending where a reset has to follow; NVML's two return values are both judged.
        Reset wants all that share it in one step. A destruction goes by gi_id and ci_id where they are
        given, and only if profile, placement (and uuid) are still those of the step. Verify changes nothing.
        SetComputeMode and SetTimeSlice do nothing where it is so already. EndProcess ends who works on the
        GPU and is not a client of MPS, never process 1 and never the helper or what is in its container.
        StartDaemon returns when the daemon serves with its limits verified; StopDaemon when it is gone.

        Raises GpuInUse (a process in the instance, compute instances left in it, a monitor that holds a
        handle while the mode changes or the GPU is reset, contexts that go on beside an exclusive compute
        mode, a process that does not end, clients of a daemon that has to go), InsufficientResources, NotFound (also another
        process than the one that is meant), StateMismatch (Verify; a mode or slice that is not the one before),
        Unsupported (no MIG, MIG mode off, a profile or a start that the GPU does not have, a reset that
        leaves out GPUs that share it or that this machine does not allow, a time slice where the GPU keeps
        its own, a client of MPS to be ended), NotPermitted, GpuLost, DriverUnavailable.
        """
        ...

    async def uses(self) -> tuple[GpuUse, ...]:
        """Who has GPUs or MIG devices open, this process and the helper left out. Raises DriverUnavailable.

        A pod is not known here: what runs in one is a process.
        """
        ...

    async def processes(self) -> Processes:
        """Who has contexts on GPUs, and how much memory each. Raises DriverUnavailable.

        See ``Processes.blind``: an empty answer may mean that nobody can be seen.
        """
        ...

    async def time_slices(self) -> tuple[TimeSlice, ...]:
        """The length of each GPU's time slice, by index, of those that answer. Raises DriverUnavailable.

        Slow, seconds on a node of many GPUs: only nvidia-smi knows it.
        """
        ...

    async def daemons(self) -> tuple[DaemonState, ...]:
        """Every MPS control daemon that was started here and not stopped. Asks each of them, for some seconds
        at most: one that does not answer is a state in the answer."""
        ...

    async def close(self) -> None:
        """Give everything back. Idempotent. MPS daemons live on."""
        ...


class DaemonKeeper(Protocol):
    """Who keeps the MPS control daemons for a hardware. See ``edges.mps.port``. May raise DaemonError."""

    async def start(self, spec: DaemonSpec) -> DaemonState:
        """One that is as asked."""
        ...

    async def stop(self, device: str) -> None:
        """None there, if it has no clients."""
        ...

    async def states(self) -> tuple[DaemonState, ...]:
        """All of them."""
        ...

    async def terminate(self, device: str, server_pid: int, client_pid: int) -> None:
        """End one client's work."""
        ...
