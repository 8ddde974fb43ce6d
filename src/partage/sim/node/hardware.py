"""The hardware port on a simulated node: as strict as the real one, and faults can be injected."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Collection

from msgspec import Struct
from msgspec.structs import replace

from partage.edges.hardware.port import DEADLINE_S, STEP_DEADLINE_S, Events
from partage.errors import DriverUnavailable, GpuInUse, HardwareError, HardwareTimeout, InputError
from partage.model.driver_limit import LimitAt, SeenLimit
from partage.model.gpu import Inventory, NoDriver
from partage.model.gpu_use import GpuUse, Left, Processes
from partage.model.health import GpuCondition, Xid
from partage.model.ids import PodUid
from partage.model.mps import DaemonState, PipeTenants
from partage.model.samples import Samples
from partage.model.step import Created, Step, TimeSlice
from partage.sim.node.daemons import daemons_of
from partage.sim.node.effects import apply_fault
from partage.sim.node.faults import (
    Call,
    FailCall,
    Fault,
    HangCall,
    HealCall,
    RaiseXid,
    Reboot,
    TimedFault,
)
from partage.sim.node.limits import limits_of
from partage.sim.node.machine import Machine
from partage.sim.node.observation import conditions_of, describe_node, inventory_of
from partage.sim.node.processes import left_of, processes_of, tenants_of, time_slices_of
from partage.sim.node.sampling import SimulatedSampler
from partage.sim.node.state import SimulatedNode, gpu_at, power_on
from partage.sim.node.steps import perform_step


class _CallFault(Struct):
    """A fault of calls that is in force. left: for how many more calls; None: until HealCall."""

    fault: FailCall | HangCall
    left: int | None


class SimulatedHardware:
    """A simulated node behind the hardware port (``edges.hardware.port.Hardware``).

    deadline_s, step_deadline_s: how long a call, and ``perform``, may hang before they raise HardwareTimeout.
    clock: in seconds, for faults that have a time; that is counted from the first call. calls: how often each
    was made. real_left: what is left of pods that are real while only the GPUs are simulated; it may block
    for milliseconds.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        deadline_s: float = DEADLINE_S,
        step_deadline_s: float = STEP_DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
        real_left: Callable[[Collection[PodUid]], Left] | None = None,
    ) -> None:
        self._state = power_on(machine)
        self._real_left = real_left
        self._deadline_s = deadline_s
        self._act_deadline_s = step_deadline_s
        self._clock = clock
        self._first_call_s: float | None = None
        self.calls: Counter[Call] = Counter()
        self._timed: list[TimedFault] = list(machine.faults)
        self._call_faults: list[_CallFault] = []
        self._impossible: list[str] = []
        self._sampler = SimulatedSampler()
        self._xids: deque[Xid] = deque()
        self._changed = False
        self._state_changed = asyncio.Event()

    @property
    def state(self) -> SimulatedNode:
        """The node's state now."""
        return self._state

    async def observe(self) -> Inventory:
        """The whole node."""
        await self._begin_call("observe")
        return inventory_of(self._state)

    async def conditions(self) -> tuple[GpuCondition, ...]:
        """What the driver says of every GPU's health."""
        await self._begin_call("conditions")
        self._require_driver()
        return conditions_of(self._state)

    async def events(self, timeout_s: float) -> Events:
        """What happened since the last call; waits for it."""
        await self._begin_call("events")
        until_s = self._clock() + timeout_s
        while True:
            self._require_driver()
            if self._xids or self._changed:
                return self._take_events()
            now_s = self._clock()
            if now_s >= until_s:
                return Events()
            self._state_changed.clear()
            await self._wait_for_change(min(until_s, self._next_timed_fault_s()) - now_s)
            self._apply_timed_faults()

    async def perform(self, step: Step) -> Created | None:
        """One step on the simulated driver."""
        lost_answer = await self._begin_call("perform")
        self._require_driver()
        self._sampler.advance(self._state_now())
        state, outcome = perform_step(self._state, step)
        self._set_state(state)
        if lost_answer is not None:
            raise lost_answer
        if isinstance(outcome, HardwareError):
            raise outcome
        return outcome

    async def uses(self) -> tuple[GpuUse, ...]:
        """Who was put on GPUs and MIG devices."""
        await self._begin_call("uses")
        self._require_driver()
        lost = {lost.uuid for lost in self._state.lost.values()}
        return tuple(use for use in self._state.all_uses if use.gpu not in lost)

    async def processes(self) -> Processes:
        """Who was put on GPUs with a pid."""
        await self._begin_call("processes")
        self._require_driver()
        return processes_of(self._state_now())

    async def left_of(self, pods: Collection[PodUid]) -> Left:
        """Who of these pods was put on GPUs and has not left."""
        await self._begin_call("left")
        if self._real_left is not None:
            return await asyncio.to_thread(self._real_left, pods)
        return left_of(self._state, pods)

    async def samples(self) -> Samples:
        """Memory and activity now, and the peaks since the first call."""
        await self._begin_call("samples")
        self._require_driver()
        return self._sampler.samples(self._state_now())

    async def time_slices(self) -> tuple[TimeSlice, ...]:
        """What was set, or why it cannot be set."""
        await self._begin_call("time-slices")
        self._require_driver()
        return time_slices_of(self._state)

    async def daemons(self) -> tuple[DaemonState, ...]:
        """What was started and not stopped."""
        await self._begin_call("daemons")
        return daemons_of(self._state)

    async def limits(self, asked: Collection[LimitAt]) -> tuple[SeenLimit, ...]:
        """What the driver says of the cgroups of these containers."""
        await self._begin_call("limits")
        self._require_driver()
        return limits_of(self._state_now(), asked)

    async def tenants(self) -> PipeTenants:
        """Whose clients were put on GPUs."""
        await self._begin_call("tenants")
        return tenants_of(self._state)

    async def close(self) -> None:
        """There is nothing to give back."""

    async def inject(self, fault: Fault) -> None:
        """Make the fault happen now. Raises InputError for a GPU that the node does not have."""
        self._apply(fault)

    def __str__(self) -> str:
        faults = [f"{fault.fault.call} will {_described(fault.fault)}" for fault in self._call_faults]
        return "\n".join([describe_node(self._state), *faults, *self._impossible])

    # --- faults of calls -------------------------------------------------------------------------

    async def _begin_call(self, call: Call) -> HardwareError | None:
        """Count the call, and let it fail or hang. The answer: an error to raise once the step is done."""
        self.calls[call] += 1
        self._apply_timed_faults()
        active = next((fault for fault in self._call_faults if fault.fault.call == call), None)
        if active is None:
            return None
        if active.left is not None:
            active.left -= 1
            if active.left <= 0:
                self._call_faults.remove(active)
        if isinstance(active.fault, FailCall) and active.fault.done:
            return _copy(active.fault.error)
        await self._fail_or_hang(active.fault)
        return None

    async def _fail_or_hang(self, fault: FailCall | HangCall) -> None:
        if isinstance(fault, FailCall):
            raise _copy(fault.error)
        deadline_s = self._act_deadline_s if fault.call == "perform" else self._deadline_s
        if fault.seconds is not None and fault.seconds < deadline_s:
            await asyncio.sleep(fault.seconds)
            return
        await asyncio.sleep(deadline_s)
        raise HardwareTimeout(f"{fault.call} did not answer within {deadline_s:g} s")

    def _require_driver(self) -> None:
        if isinstance(self._state.driver, NoDriver):
            raise DriverUnavailable(self._state.driver.reason)

    # --- events ----------------------------------------------------------------------------------

    def _take_events(self) -> Events:
        taken = Events(tuple(self._xids), self._changed)
        self._xids.clear()
        self._changed = False
        return taken

    async def _wait_for_change(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._state_changed.wait()
        except TimeoutError:
            return

    # --- faults of the node ----------------------------------------------------------------------

    def _since_first_call_s(self) -> float:
        if self._first_call_s is None:
            self._first_call_s = self._clock()
        return self._clock() - self._first_call_s

    def _next_timed_fault_s(self) -> float:
        """When the next timed fault is due, by the clock; infinity for none."""
        first_s = self._first_call_s or 0.0
        return min(
            (first_s + row.after_s for row in self._timed if row.after_s is not None), default=float("inf")
        )

    def _apply_timed_faults(self) -> None:
        elapsed_s = self._since_first_call_s()
        due = [row for row in self._timed if _is_due(row, elapsed_s, self.calls.total())]
        for row in sorted(due, key=lambda row: row.after_s or 0.0):
            self._timed.remove(row)
            try:
                self._apply(row.fault)
            except InputError as error:
                # It was possible when it was written, and is not now: a layout for a GPU that is lost since.
                self._impossible.append(f"did not happen: {error}")

    def _state_now(self) -> SimulatedNode:
        """The state, with the time of now."""
        return replace(self._state, now_s=self._since_first_call_s())

    def _apply(self, fault: Fault) -> None:
        """Change the state, and note events and faults of calls. Raises InputError."""
        now = self._state_now()
        self._sampler.advance(now)
        state = replace(apply_fault(now, fault), now_s=0.0)
        match fault:
            case FailCall() | HangCall():
                self._call_faults.append(_CallFault(fault, fault.times))
            case HealCall(call):
                self._call_faults = [
                    call_fault for call_fault in self._call_faults if call_fault.fault.call != call
                ]
            case RaiseXid(gpu, code, gi, ci):
                uuid = None if gpu is None else gpu_at(self._state, gpu).uuid
                resets = None if gpu is None else self._state.conditions[gpu].resets
                self._xids.append(Xid(uuid, code, gi, ci, resets))
            case Reboot():
                self._call_faults.clear()
                self._xids.clear()
            case _:
                pass
        self._set_state(state)

    def _set_state(self, state: SimulatedNode) -> None:
        """Replace the state, and wake a call of ``events`` that waits."""
        self._changed = self._changed or _announced(state) != _announced(self._state)
        self._state = state
        self._state_changed.set()


def _announced(state: SimulatedNode) -> object:
    """What a driver sends events about: itself, MIG modes and MIG devices. A lost GPU is found by asking."""
    mig = tuple(
        (index, gpu.mig_mode, gpu.mig_devices, gpu.empty_instances)
        for index, gpu in sorted(state.gpus.items())
    )
    return state.driver, state.boots, mig


def _copy(error: HardwareError) -> HardwareError:
    """The same error without a traceback: one that is raised again and again must not collect them."""
    return (
        GpuInUse(error.problems, uses=error.uses)
        if isinstance(error, GpuInUse)
        else type(error)(error.problems)
    )


def _is_due(row: TimedFault, elapsed_s: float, calls: int) -> bool:
    if row.after_s is not None:
        return elapsed_s >= row.after_s
    return row.after_calls is not None and calls > row.after_calls


def _described(fault: FailCall | HangCall) -> str:
    if isinstance(fault, FailCall):
        return f"fail: {fault.error}"
    return "hang" if fault.seconds is None else f"take {fault.seconds:g} s"
