"""The port to GPUs and driver: few methods, serialisable values, a deadline for every call.

Values in and out are immutable and contain no handles. The list of methods is closed: nothing else can be
asked of the privileged helper. Only ``perform`` changes something, and only by the steps of ``model.step``.
Implementations: ``edges.hardware.nvml`` (in this process), ``edges.hardware.helper_client`` (through the
helper process), ``sim.node.hardware`` (simulated). One contract test suite holds for all three.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from partage.model.driver_limit import LimitAt, SeenLimit
from partage.model.gpu import Inventory
from partage.model.gpu_use import GpuUse, Left, Processes, UsersOf, nobody
from partage.model.health import GpuCondition, Xid
from partage.model.ids import DeviceUuid, PodUid
from partage.model.mps import DaemonSpec, DaemonState, MpsNamespace, PipeTenants
from partage.model.samples import Samples
from partage.model.step import Created, Reset, Step, TimeSlice
from partage.values import Frozen

DEADLINE_S = 10.0
"""Seconds that a caller waits for one call by default. NVML answers in milliseconds; a GPU that is falling
off the bus can block a call for seconds.
"""

STEP_DEADLINE_S = 60.0
"""Seconds that a caller waits for a step that is no reset. Destroying a GPU instance takes about a second."""

RESET_DEADLINE_S = 480.0
"""Seconds that nvidia-smi may take for a reset: what mig-parted's service allows; eight SXM boards take
minutes.
"""


COLD_GPU_S = 5.0
"""Seconds for each GPU that the first call of a session may take longer: without persistence mode the driver
initialises a GPU when the first client opens it, which takes 1 to 3 s, one after the other.
"""


def longer_s(step: Step) -> float:
    """Seconds that a caller waits for this step beyond STEP_DEADLINE_S."""
    return RESET_DEADLINE_S if isinstance(step, Reset) else 0.0


SAMPLED_FOR_S = 900.0
"""How long memory is sampled after the last call of ``samples``: three of the longest usual pauses between
scrapes."""


class Events(Frozen):
    """What happened since the last call. changed: MIG devices or driver changed; observe again."""

    xids: tuple[Xid, ...] = ()
    changed: bool = False


class Hardware(Protocol):
    """A node's GPUs. Every method may raise HardwareTimeout; a cancelled call has no effect on later
    calls.
    """

    async def observe(self) -> Inventory:
        """The whole node. A missing or broken driver is a state in the answer, not an error."""
        ...

    async def conditions(self) -> tuple[GpuCondition, ...]:
        """The driver's report on the health of each GPU, lost ones included. Raises DriverUnavailable."""
        ...

    async def events(self, timeout_s: float) -> Events:
        """Wait for events, at most timeout_s; then return an empty Events. Raises DriverUnavailable.

        Does not block other calls. Each event is delivered once.
        """
        ...

    async def perform(self, step: Step) -> Created | None:
        """Perform one step. It is done when this returns, after at most STEP_DEADLINE_S and ``longer_s``.
        Returns the created ids.

        Other calls may have to wait; their deadlines begin when the step ends.
        A step is not rolled back here. After any error, and after the death of the helper, observe again:
        the state of the GPU counts, not the error. In particular:
        SetMigMode leaves the mode pending if a reset has to follow. Reset needs all GPUs that share it in
        one step, and does nothing if the modes that it is for are in force. A destruction uses gi_id and
        ci_id if given, and is refused unless profile, placement (and uuid) are those of the step. Verify
        changes nothing. SetComputeMode and SetTimeSlice do nothing if the value is set already.
        SetNamespace and SetMemoryLimit return when the limits have been read back. SetMemoryLimit sets a
        hard limit only, of a container's cgroup that is there.
        EndProcess ends a process that uses the GPU and is no client of MPS; never process 1, the helper,
        or a process in the helper's container. StartDaemon returns when the daemon serves and its limits
        are verified; StopDaemon when it is gone.

        Raises GpuInUse (a process in the instance, compute instances left in it, a monitor that holds a
        handle during a mode change or reset, contexts beside an exclusive compute mode, a process that does
        not end, clients of a daemon that is to stop), InsufficientResources, NotFound (also if the id
        belongs to something else now), StateMismatch (Verify; a mode or time slice that is not the one
        before), Unsupported (no MIG, MIG mode off, a profile or start that the GPU does not have, a reset
        that leaves out GPUs that share it or that this machine does not allow, a time slice that the GPU
        does not support, a client of MPS as EndProcess), NotPermitted, GpuLost, DriverUnavailable.
        """
        ...

    async def uses(self) -> tuple[GpuUse, ...]:
        """The processes that use GPUs or MIG devices, without this process and the helper. Raises
        DriverUnavailable.

        Pods are not known here; their processes are listed.
        """
        ...

    async def processes(self) -> Processes:
        """The processes with contexts on GPUs, and the memory of each. Raises DriverUnavailable.

        See ``Processes.hidden``: an empty answer may mean that processes are not visible.
        """
        ...

    async def left_of(self, pods: Collection[PodUid]) -> Left:
        """Which processes of these pods still run, whether or not they have GPUs open. Needs no driver.

        Answers within milliseconds, also while other calls wait for the driver: an Allocate waits for it.
        """
        ...

    async def samples(self) -> Samples:
        """What GPUs, MIG devices and processes do now, and the peaks of their memory. Raises
        DriverUnavailable.

        From the first call on, memory is sampled every second, so that a peak between two calls is not
        missed; this ends when nobody has called for ``SAMPLED_FOR_S``. Cheap enough for a call a second.
        """
        ...

    async def time_slices(self) -> tuple[TimeSlice, ...]:
        """The length of each GPU's time slice, by index, for GPUs that answer. Raises DriverUnavailable.

        Takes seconds on a node with many GPUs, because it runs nvidia-smi.
        """
        ...

    async def daemons(self) -> tuple[DaemonState, ...]:
        """Every MPS control daemon that was started here and not stopped. A daemon that does not answer
        within some seconds is a state in the answer.
        """
        ...

    async def limits(self, asked: Collection[LimitAt]) -> tuple[SeenLimit, ...]:
        """The driver's memory limits of containers, in the order of the question. That there is none, or no
        cgroup, is an answer. Needs no right to read them. Raises DriverUnavailable.
        """
        ...

    async def tenants(self) -> PipeTenants:
        """Who has the pipe directories of the daemons, and what their processes may become. Needs no driver.

        Looks at every process of the node: for when a container starts, not for every tick.
        """
        ...

    async def close(self) -> None:
        """Release everything. Idempotent. MPS daemons keep running."""
        ...


class DaemonKeeper(Protocol):
    """Manages the MPS control daemons of a node. Implementation: ``edges.mps.keeper``.

    A daemon does not belong to the process that started it: every process finds the daemons below the run
    directory and can manage them. Every method may raise DaemonError (a daemon failed, or did not answer in
    time) and NotPermitted. Two processes may call at the same time: steps on one device wait for each other.
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

    async def stop(self, device: DeviceUuid, *, force: bool = False, users: UsersOf = nobody) -> None:
        """Stop the daemon of a device and remove its directories. Nothing happens if there is none.

        force: also end the work of its clients. Without it, raises GpuInUse with the clients. A daemon that
        does not answer, or servers that have lost theirs, cannot say who their clients are: then ``users`` is
        asked before they are ended, and GpuInUse is raised with what it names.
        """
        ...

    async def limit(self, device: DeviceUuid, namespace: MpsNamespace) -> None:
        """Set the limits of a namespace of the device's daemon, for clients that connect from now on, and
        read them back. In one command, so there is no moment without a limit.

        Raises NotFound (no daemon that runs, no such namespace), DaemonError (it ignores the limits).
        """
        ...

    async def states(self) -> tuple[DaemonState, ...]:
        """Every daemon that was started and not stopped, ordered by device. A fault, no answer and a dead
        daemon are states.
        """
        ...

    def pipes(self) -> Mapping[DeviceUuid, Path]:
        """The pipe directories of all daemons that were started and not stopped. Blocks for a listing."""
        ...

    async def terminate(self, device: DeviceUuid, server_pid: int, client_pid: int) -> None:
        """End the work of one client on the GPU and free its memory; done when this returns.

        The process lives on; its next CUDA call fails. Raises NotFound, DaemonError.
        """
        ...
