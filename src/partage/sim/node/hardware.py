"""The hardware port on a simulated node: as strict as the real one, and it can be told to misbehave."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from partage.edges.hardware.port import DEADLINE_S, STEP_DEADLINE_S, Events
from partage.errors import DriverUnavailable, GpuInUse, HardwareError, HardwareTimeout, InputError
from partage.model.gpu import Inventory, NoDriver
from partage.model.health import GpuCondition, Xid
from partage.model.mps import DaemonState
from partage.model.process import Processes
from partage.model.step import Created, GpuUse, Step, TimeSlice
from partage.sim.node.acts import performed
from partage.sim.node.daemons import daemons_of
from partage.sim.node.effects import after
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
from partage.sim.node.machine import Machine
from partage.sim.node.settings import processes_of, time_slices_of
from partage.sim.node.state import SimulatedNode, conditions_of, known_gpu, observed, picture, switched_on


@dataclass(slots=True)
class _Spell:
    """A fault of a call, and how many calls it still befalls; None: until healed."""

    fault: FailCall | HangCall
    left: int | None


class SimulatedHardware:
    """A simulated node behind the hardware port (``edges.hardware.port.Hardware``).

    deadline_s, step_deadline_s: how long a call and an act may hang before they raise HardwareTimeout.
    clock: seconds, for faults that happen by themselves; counted from the first call.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        deadline_s: float = DEADLINE_S,
        step_deadline_s: float = STEP_DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = switched_on(machine)
        self._deadline_s = deadline_s
        self._act_deadline_s = step_deadline_s
        self._clock = clock
        self._began: float | None = None
        self._calls = 0
        self._timed: list[TimedFault] = list(machine.faults)
        self._spells: list[_Spell] = []
        self._missed: list[str] = []
        self._xids: deque[Xid] = deque()
        self._changed = False
        self._news = asyncio.Event()

    @property
    def state(self) -> SimulatedNode:
        """The node's state now."""
        return self._state

    async def observe(self) -> Inventory:
        """The whole node."""
        await self._admit("observe")
        return observed(self._state)

    async def conditions(self) -> tuple[GpuCondition, ...]:
        """The driver's word on every GPU."""
        await self._admit("conditions")
        self._require_driver()
        return conditions_of(self._state)

    async def events(self, timeout_s: float) -> Events:
        """What happened; waits for it."""
        await self._admit("events")
        until = self._clock() + timeout_s
        while True:
            self._require_driver()
            if self._xids or self._changed:
                return self._take_events()
            now = self._clock()
            if now >= until:
                return Events()
            self._news.clear()
            await self._wait_for_news(min(until, self._next_due()) - now)
            self._let_time_pass()

    async def perform(self, step: Step) -> Created | None:
        """One act on the simulated driver."""
        lost_answer = await self._admit("perform")
        self._require_driver()
        state, outcome = performed(self._state, step)
        self._become(state)
        if lost_answer is not None:
            raise lost_answer
        if isinstance(outcome, HardwareError):
            raise outcome
        return outcome

    async def uses(self) -> tuple[GpuUse, ...]:
        """Who was put on GPUs and MIG devices."""
        await self._admit("uses")
        self._require_driver()
        lost = {lost.uuid for lost in self._state.lost.values()}
        return tuple(use for use in self._state.busy if use.gpu not in lost)

    async def processes(self) -> Processes:
        """Who was put on GPUs with a pid."""
        await self._admit("processes")
        self._require_driver()
        return processes_of(self._state)

    async def time_slices(self) -> tuple[TimeSlice, ...]:
        """What was set, or cannot be."""
        await self._admit("time-slices")
        self._require_driver()
        return time_slices_of(self._state)

    async def daemons(self) -> tuple[DaemonState, ...]:
        """Those that were started and not stopped."""
        await self._admit("daemons")
        return daemons_of(self._state)

    async def close(self) -> None:
        """Nothing is held."""

    async def misbehave(self, fault: Fault) -> None:
        """Make the fault happen now. Raises InputError for a GPU that the node does not have."""
        self._happen(fault)

    def __str__(self) -> str:
        spells = [f"{spell.fault.call} will {_word(spell.fault)}" for spell in self._spells]
        return "\n".join([picture(self._state), *spells, *self._missed])

    async def _admit(self, call: Call) -> HardwareError | None:
        """Let the call in, or let it suffer. An error: what to raise once the act is done."""
        self._calls += 1
        self._let_time_pass()
        spell = next((spell for spell in self._spells if spell.fault.call == call), None)
        if spell is None:
            return None
        if spell.left is not None:
            spell.left -= 1
            if spell.left <= 0:
                self._spells.remove(spell)
        if isinstance(spell.fault, FailCall) and spell.fault.done:
            return _anew(spell.fault.error)
        await self._suffer(spell.fault)
        return None

    async def _suffer(self, fault: FailCall | HangCall) -> None:
        if isinstance(fault, FailCall):
            raise _anew(fault.error)
        deadline_s = self._act_deadline_s if fault.call == "perform" else self._deadline_s
        if fault.seconds is not None and fault.seconds < deadline_s:
            await asyncio.sleep(fault.seconds)
            return
        await asyncio.sleep(deadline_s)
        raise HardwareTimeout(f"{fault.call} did not answer within {deadline_s:g} s")

    def _require_driver(self) -> None:
        if isinstance(self._state.driver, NoDriver):
            raise DriverUnavailable(self._state.driver.reason)

    def _take_events(self) -> Events:
        taken = Events(tuple(self._xids), self._changed)
        self._xids.clear()
        self._changed = False
        return taken

    async def _wait_for_news(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._news.wait()
        except TimeoutError:
            return

    def _since_began(self) -> float:
        if self._began is None:
            self._began = self._clock()
        return self._clock() - self._began

    def _next_due(self) -> float:
        """When the next timed fault is due, by the clock; infinity for none."""
        began = self._began or 0.0
        return min(
            (began + row.after_s for row in self._timed if row.after_s is not None), default=float("inf")
        )

    def _let_time_pass(self) -> None:
        elapsed = self._since_began()
        due = [row for row in self._timed if _is_due(row, elapsed, self._calls)]
        for row in sorted(due, key=lambda row: row.after_s or 0.0):
            self._timed.remove(row)
            try:
                self._happen(row.fault)
            except InputError as error:
                # Possible when it was written, and no longer: a layout for a GPU that has been lost since.
                self._missed.append(f"did not happen: {error}")

    def _happen(self, fault: Fault) -> None:
        """Change the state; raise what there is to hear. Raises InputError."""
        state = after(self._state, fault)
        match fault:
            case FailCall() | HangCall():
                self._spells.append(_Spell(fault, fault.times))
            case HealCall(call):
                self._spells = [spell for spell in self._spells if spell.fault.call != call]
            case RaiseXid(gpu, code, gi, ci):
                uuid = None if gpu is None else known_gpu(self._state, gpu).uuid
                self._xids.append(Xid(uuid, code, gi, ci))
            case Reboot():
                self._spells.clear()
                self._xids.clear()
            case _:
                pass
        self._become(state)

    def _become(self, state: SimulatedNode) -> None:
        """The state from now on; whoever waits for news hears of it."""
        self._changed = self._changed or _structure(state) != _structure(self._state)
        self._state = state
        self._news.set()


def _structure(state: SimulatedNode) -> object:
    """What a driver tells of: itself, MIG modes and MIG devices. That a GPU is lost has to be asked for."""
    mig = tuple(
        (index, gpu.mig_mode, gpu.mig_devices, gpu.empty_instances)
        for index, gpu in sorted(state.gpus.items())
    )
    return state.driver, state.boots, mig


def _anew(error: HardwareError) -> HardwareError:
    """An error that is raised again and again must not collect tracebacks."""
    return (
        GpuInUse(error.problems, uses=error.uses)
        if isinstance(error, GpuInUse)
        else type(error)(error.problems)
    )


def _is_due(row: TimedFault, elapsed_s: float, calls: int) -> bool:
    if row.after_s is not None:
        return elapsed_s >= row.after_s
    return row.after_calls is not None and calls > row.after_calls


def _word(fault: FailCall | HangCall) -> str:
    if isinstance(fault, FailCall):
        return f"fail: {fault.error}"
    return "hang" if fault.seconds is None else f"take {fault.seconds:g} s"
