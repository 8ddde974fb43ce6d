"""The hardware port through the helper process ``partage hardware``."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeVar, cast

from partage.codec.values import CodecError, decode
from partage.edges.hardware.deadlines import PERFORM, CallDeadlines
from partage.edges.hardware.event_queue import EventQueue
from partage.edges.hardware.helper_connection import HelperConnection
from partage.edges.hardware.port import DEADLINE_S, STEP_DEADLINE_S, Events, longer_s
from partage.edges.hardware.supervisor import GOOD_WHILE_S, HelperState, HelperSupervisor
from partage.errors import DriverUnavailable, HardwareError, HardwareTimeout, Unsupported
from partage.model.driver_limit import LimitAt, SeenLimit
from partage.model.gpu import Inventory, NoDriver
from partage.model.gpu_use import GpuUse, Left, Processes
from partage.model.health import GpuCondition
from partage.model.ids import PodUid
from partage.model.mps import DaemonState, PipeTenants
from partage.model.paths import check_socket_path
from partage.model.samples import Samples
from partage.model.step import Created, Step, TimeSlice

T = TypeVar("T")

_EVENTS_WAIT_S = 20.0
_EVENTS_PAUSE_S = 1.0
_GRACE_S = 0.5
"""The helper has the same deadline without this. If it is alive, it reports itself which call did not end."""


class RemoteHardware:
    """A node's GPUs, read and changed through the helper. See ``edges.hardware.port.Hardware``.

    A helper that dies or hangs is replaced in the background. Meanwhile calls raise DriverUnavailable at
    once, and ``events`` returns ``changed`` when the next helper serves.
    """

    def __init__(
        self,
        socket_path: str | Path,
        spawn: Sequence[str] | None = None,
        *,
        first: subprocess.Popen[bytes] | None = None,
        deadline_s: float = DEADLINE_S,
        step_deadline_s: float = STEP_DEADLINE_S,
    ) -> None:
        """spawn: command line of a helper that this object starts and ends; None: it is started elsewhere.
        first: a helper that was started with it already.

        Raises InputError for a path that is too long for a socket.
        """
        check_socket_path(socket_path)
        self._deadlines = CallDeadlines(deadline_s + _GRACE_S, step_deadline_s + _GRACE_S)
        self._mailbox = EventQueue()
        self._supervisor = HelperSupervisor(
            Path(socket_path), spawn, lambda: self._mailbox.put(Events(changed=True)), first
        )
        self._pump: asyncio.Task[None] | None = None

    @property
    def state(self) -> HelperState:
        """The state of the helper now."""
        return self._supervisor.state

    def start(self) -> None:
        """Start the helper now, in a running loop; the first call would start it too."""
        self._supervisor.start()

    async def observe(self) -> Inventory:
        inventory = await self._ask("observe", Inventory)
        self._replace_after_upgrade(inventory)
        return inventory

    async def conditions(self) -> tuple[GpuCondition, ...]:
        return await self._ask("conditions", tuple[GpuCondition, ...])

    async def perform(self, step: Step) -> Created | None:
        return await self._ask(PERFORM, cast("type[Created | None]", Created | None), step, longer_s(step))

    async def uses(self) -> tuple[GpuUse, ...]:
        return await self._ask("uses", tuple[GpuUse, ...])

    async def processes(self) -> Processes:
        return await self._ask("processes", Processes)

    async def left_of(self, pods: Collection[PodUid]) -> Left:
        try:
            return await self._ask("left", Left, sorted(pods))
        except Unsupported:  # it stays when the agent is upgraded, where it is not replaced by hand
            return Left(unseen="the helper is older than the agent and does not look for processes")

    async def samples(self) -> Samples:
        return await self._ask("samples", Samples)

    async def time_slices(self) -> tuple[TimeSlice, ...]:
        return await self._ask("time-slices", tuple[TimeSlice, ...])

    async def daemons(self) -> tuple[DaemonState, ...]:
        return await self._ask("daemons", tuple[DaemonState, ...])

    async def limits(self, asked: Collection[LimitAt]) -> tuple[SeenLimit, ...]:
        try:
            return await self._ask("limits", tuple[SeenLimit, ...], tuple(asked))
        except Unsupported:
            return tuple(SeenLimit(at, why="the helper is older than the agent") for at in asked)

    async def tenants(self) -> PipeTenants:
        try:
            return await self._ask("tenants", PipeTenants)
        except Unsupported:
            return PipeTenants(unseen="the helper is older than the agent and does not look for tenants")

    async def events(self, timeout_s: float) -> Events:
        self._supervisor.start()
        if self._pump is None:
            self._pump = asyncio.create_task(self._fetch_events(), name="hardware-events")
        events = await self._mailbox.take(timeout_s)
        if self._supervisor.down.is_set() and not (events.xids or events.changed):
            raise self._supervisor.absence()
        return events

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        await self._supervisor.close()

    async def _ask(self, verb: str, kind: type[T], arguments: object = None, extra_s: float = 0.0) -> T:
        connection = await self._supervisor.connection()
        return await self._exchange(connection, verb, kind, arguments, extra_s)

    async def _exchange(
        self,
        connection: HelperConnection,
        verb: str,
        kind: type[T],
        arguments: object,
        extra_s: float = 0.0,
    ) -> T:
        """One request and its decoded answer. A helper that hangs or sends invalid data is replaced."""
        try:
            async with self._deadlines.within(verb, extra_s + connection.cold_s):
                answer = await connection.request(verb, None, arguments)
            return decode(kind, answer)
        except HardwareTimeout as error:
            self._supervisor.give_up(connection, error)
            raise
        except CodecError as error:
            invalid = DriverUnavailable(f"the helper's answer to {verb} cannot be read: {error}")
            self._supervisor.give_up(connection, invalid)
            raise invalid from error

    async def _fetch_events(self) -> None:
        """Ask for events in a loop, so that none is lost between two callers."""
        while True:
            await self._supervisor.up.wait()
            connection = self._supervisor.current
            if connection is None:
                continue
            try:
                events = await self._exchange(connection, "events", Events, _EVENTS_WAIT_S, _EVENTS_WAIT_S)
            except HardwareError as error:
                self._mailbox.fail(error)
                if connection.is_open:
                    await asyncio.sleep(_EVENTS_PAUSE_S)  # without a driver the call fails at once
                else:
                    await self._supervisor.down.wait()
            else:
                if events.xids or events.changed:
                    self._mailbox.put(events)

    def _replace_after_upgrade(self, inventory: Inventory) -> None:
        """Replace the helper after a driver upgrade: a process cannot load another version of the library."""
        driver, connection = inventory.driver, self._supervisor.current
        if not isinstance(driver, NoDriver) or driver.kind != "version-mismatch":
            return
        if connection is not None and self._supervisor.served_s > GOOD_WHILE_S:
            self._supervisor.give_up(connection, DriverUnavailable(driver.reason))
