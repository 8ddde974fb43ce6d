"""The hardware port in this process: NVML calls on one thread, the wait for its events on another."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from partage.edges.hardware.daemon_steps import observe_daemons, perform_daemon_step
from partage.edges.hardware.discover import Discovery, Lacks
from partage.edges.hardware.end_process import check_uses_gpu, end_process, refuse_own_process
from partage.edges.hardware.event_queue import EventQueue
from partage.edges.hardware.gpu_settings import set_compute_mode, set_time_slice, time_slices
from partage.edges.hardware.host import Host
from partage.edges.hardware.left_processes import left_of
from partage.edges.hardware.memory_limits import ContainerCgroups, cgroup_root, read_limits, set_limit
from partage.edges.hardware.mig_instances import InstanceStep, MigInstances, set_mig_mode
from partage.edges.hardware.nvml_queries import Nvml
from partage.edges.hardware.nvml_samples import PERIOD_S, NvmlSampler
from partage.edges.hardware.nvml_threads import EventWatch, Worker
from partage.edges.hardware.pipe_tenants import pipe_tenants
from partage.edges.hardware.port import COLD_GPU_S, DEADLINE_S, STEP_DEADLINE_S, DaemonKeeper, Events
from partage.edges.hardware.processes import processes, users_of
from partage.edges.hardware.reset import (
    PersistenceMode,
    check_nvidia_smi,
    is_in_force,
    prepare_reset,
    reset_gpus,
    running_reset,
    verify_reset,
)
from partage.edges.hardware.running_processes import uses
from partage.errors import DriverUnavailable, HardwareError, HardwareTimeout
from partage.model.driver_limit import LimitAt, SeenLimit
from partage.model.gpu import PAUSED, Inventory, NoDriver
from partage.model.gpu_use import GpuUse, Left, Processes
from partage.model.health import GpuCondition
from partage.model.ids import DeviceUuid, PodUid
from partage.model.mps import DaemonState, PipeTenants
from partage.model.samples import Samples
from partage.model.step import (
    Created,
    EndClient,
    EndProcess,
    Reset,
    SetComputeMode,
    SetMemoryLimit,
    SetMigMode,
    SetNamespace,
    SetTimeSlice,
    StartDaemon,
    Step,
    StopDaemon,
    TimeSlice,
    Verify,
)

T = TypeVar("T")

_CHECK_S = 30.0
"""A caller that waits for events checks session and watch this often. Every other call does so too."""

_REST_S = 5.0
"""A session whose watch ended is replaced after this time at the earliest, in case the driver fails at
once.
"""

_REOPEN_S = 60.0
"""While a GPU is lost, a new session is opened this often: NVML does not notice otherwise that it is back."""

_WATCH_S = 5.0
"""How long a watch may take to begin or to end."""

_CLOSE_S = 2.0

_COUNT_S = 2.0
"""How long a greeting may wait to know how many GPUs there are. To count them initialises none."""


class NvmlHardware:
    """A node's GPUs, read and changed with NVML in this process. See ``edges.hardware.port.Hardware``.

    The session is opened again when the driver was missing, unloaded or replaced. After a HardwareTimeout
    the thread hangs in the driver, and only a new process helps.
    """

    def __init__(
        self,
        driver_root: str | Path = "/",
        *,
        host: Host | None = None,
        deadline_s: float = DEADLINE_S,
        step_deadline_s: float = STEP_DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
        keeper: DaemonKeeper | None = None,
        lacks_geometry: Lacks = lambda _: False,
        paused: Callable[[], str] = str,
    ) -> None:
        """driver_root: where the driver is installed. host: where all files are, instead of driver_root.

        keeper: manages the MPS daemons; None: there are none. lacks_geometry: the GPUs whose driver is asked
        what MIG allows on them. paused: why the driver has to be left alone now; empty if it has not.
        """
        self._host = host or Host(driver=Path(driver_root))
        self._deadline_s = deadline_s
        self._act_deadline_s = step_deadline_s
        self._clock = clock
        self._keeper = keeper
        self._paused = paused
        self._worker = Worker("nvml", self._between_calls)
        self._looker = Worker("left processes")  # of its own: the driver may be what they are stuck in
        self._tenants_looker = Worker("tenants")  # of its own: an Allocate waits for the one above
        self._mailbox = EventQueue()
        self._one_step = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        # The following fields are used on the worker's thread only.
        self._nvml = Nvml(self._host)
        self._discovery = Discovery(self._nvml, self._host, lacks_geometry)
        self._sampler = NvmlSampler(self._nvml, self._host, clock)
        self._cgroups = ContainerCgroups(cgroup_root(self._host))
        self._persistence = PersistenceMode(self._host.run)
        self._watch: EventWatch | None = None
        self._opened_at = 0.0
        self._some_lost = False
        self._publish: Callable[[Events], None] | None = None
        self._interrupted = False
        # The following fields are set on the worker's thread, and read by callers, too.
        self._listed = 0
        self._is_warm = False

    async def observe(self) -> Inventory:
        return await self._on_thread(self._observe)

    async def conditions(self) -> tuple[GpuCondition, ...]:
        return await self._query(self._discovery.conditions)

    async def events(self, timeout_s: float) -> Events:
        loop = asyncio.get_running_loop()
        self._publish = self._publisher(loop)
        ends_at = loop.time() + timeout_s
        while True:
            missing = await self._opened()
            if missing is not None:
                raise DriverUnavailable(missing.reason, missing.hint)
            remaining_s = max(0.0, ends_at - loop.time())
            events = await self._mailbox.take(min(remaining_s, _CHECK_S))
            if events.xids or events.changed or remaining_s <= _CHECK_S:
                return events

    async def perform(self, step: Step) -> Created | None:
        match step:
            case EndProcess():
                await self._end(step)
            case StartDaemon() if reason := self._paused():
                raise DriverUnavailable(f"the driver is paused: {reason}", "wait until it may be used again")
            case StartDaemon() if running := running_reset(self._host):
                raise DriverUnavailable(running, "wait until it has ended")
            case StartDaemon() | StopDaemon() | EndClient() | SetNamespace():
                await perform_daemon_step(self._keeper, step, self._users_of)
            case SetMemoryLimit():
                await self._query(lambda: set_limit(self._nvml, self._cgroups, step))
            case _:
                return await self._perform_alone(step)
        return None

    async def _perform_alone(
        self, step: InstanceStep | SetMigMode | SetComputeMode | Reset | SetTimeSlice
    ) -> Created | None:
        """Perform a step while no other call is made."""
        async with self._one_step:
            self._idle.clear()
            try:
                match step:
                    case Reset():
                        await self._reset(step)
                    case SetTimeSlice():
                        await self._in_session(lambda: self._nvml.gpu_handle(step.gpu), self._allowed_s())
                        await set_time_slice(self._host, step)
                    case _:
                        return await self._in_session(lambda: self._change(step), self._step_allowed_s())
            finally:
                self._idle.set()
                if not isinstance(step, Verify):
                    self._nvml.something_changed()
                    self._mailbox.put(Events(changed=True))  # not every driver raises an event for it
        return None

    async def _users_of(self, device: DeviceUuid, without: Collection[int]) -> tuple[str, ...]:
        """As ``UsersOf``: who may be a client of an MPS daemon that cannot say so."""
        return users_of(await self.processes(), device, without)

    async def uses(self) -> tuple[GpuUse, ...]:
        return await self._query(lambda: uses(self._nvml, self._host))

    async def processes(self) -> Processes:
        return await self._query(lambda: processes(self._nvml, self._host))

    async def left_of(self, pods: Collection[PodUid]) -> Left:
        return await self._looker.call(lambda: left_of(self._host.proc, pods), self._deadline_s)

    async def samples(self) -> Samples:
        return await self._query(self._sampler.samples)

    async def time_slices(self) -> tuple[TimeSlice, ...]:
        return await time_slices(self._host, await self._query(self._nvml.handles))

    async def limits(self, asked: Collection[LimitAt]) -> tuple[SeenLimit, ...]:
        return await self._query(lambda: read_limits(self._nvml, self._cgroups, asked))

    async def daemons(self) -> tuple[DaemonState, ...]:
        return await observe_daemons(self._keeper)

    async def tenants(self) -> PipeTenants:
        return await self._tenants_looker.call(self._tenants, self._deadline_s)

    def _tenants(self) -> PipeTenants:
        return pipe_tenants(self._host.proc, self._keeper.pipes() if self._keeper else {})

    async def close(self) -> None:
        self._publish = None
        if (watch := self._watch) is not None:
            watch.stop(0.0)  # here, because the worker's thread may hang
        with contextlib.suppress(HardwareTimeout):  # a thread that hangs in the driver ends with the process
            await self._worker.call(self._leave, min(self._deadline_s, _CLOSE_S))
        self._worker.stop()
        self._looker.stop()
        self._tenants_looker.stop()

    async def _reset(self, step: Reset) -> None:
        """Reset with nvidia-smi. No session is open meanwhile, because its handles would block the reset."""
        if await self._in_session(lambda: is_in_force(self._nvml, step), self._allowed_s()):
            return
        check_nvidia_smi(self._host)
        pending = await self._worker.call(lambda: self._prepare(step), self._allowed_s())
        output = await reset_gpus(self._host, step.gpus)
        await self._in_session(
            lambda: verify_reset(self._nvml, self._host, step, output, pending=pending),
            self._step_allowed_s(),
        )

    async def _end(self, step: EndProcess) -> None:
        """End a process. This takes a while and needs no session, so other calls do not have to wait."""
        refuse_own_process(self._host, step)
        check_uses_gpu((await self.processes()).rows, step)
        await end_process(self._host, step)

    async def _on_thread(self, function: Callable[[], T]) -> T:
        """Make a call that asks all GPUs, in a session if one can be opened."""
        await self._until_idle()
        # A session that is open is not asked for first: the thread, and the loop, would wake twice. In a new
        # one the GPUs are counted before: so long may the call take.
        if not self._nvml.is_open or self._needs_new_session():
            await self._opened()
        return await self._worker.call(lambda: self._warmed(function), self._allowed_s())

    async def _opened(self) -> NoDriver | None:
        """Open a session; None, or why that is not possible. Never while a step is performed: a session that
        opens during a reset would make it fail.
        """
        await self._until_idle()
        return await self._worker.call(self._open, self._allowed_s())

    async def _until_idle(self) -> None:
        while not self._idle.is_set():
            await self._idle.wait()

    def _allowed_s(self) -> float:
        """How long a call may take: longer while the GPUs may be cold, because the session is new."""
        return self._deadline_s + (0.0 if self._is_warm else self._listed * COLD_GPU_S)

    def _step_allowed_s(self) -> float:
        """How long a step may take. It may open a session anew, with all GPUs cold."""
        return self._act_deadline_s + self._listed * COLD_GPU_S

    async def cold_s(self) -> float:
        """How much longer than usual a call may take here if the GPUs are cold; 0 if there is no driver."""
        with contextlib.suppress(HardwareError):
            await self._worker.call(self._open, min(self._deadline_s, _COUNT_S))
        return self._listed * COLD_GPU_S

    async def _query(self, function: Callable[[], T]) -> T:
        """As ``_on_thread``, in an open session. Raises DriverUnavailable."""
        return await self._on_thread(lambda: self._with_session(function))

    async def _in_session(self, function: Callable[[], T], deadline_s: float) -> T:
        """A part of the step that is being performed. Raises DriverUnavailable."""
        return await self._worker.call(lambda: self._with_session(function), deadline_s)

    def _publisher(self, loop: asyncio.AbstractEventLoop) -> Callable[[Events], None]:
        def publish(events: Events) -> None:
            if events.changed:
                self._nvml.something_changed()
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._mailbox.put, events)

        return publish

    # --- on the worker's thread --------------------------------------------------------------------

    def _between_calls(self) -> float | None:
        """Sample, but not while a step is performed: a session without handles may be needed there."""
        return self._sampler.between() if self._idle.is_set() else PERIOD_S

    def _warmed(self, function: Callable[[], T]) -> T:
        """What the function returns; all GPUs are initialised then."""
        result = function()
        self._is_warm = self._nvml.is_open
        return result

    def _observe(self) -> Inventory:
        missing = self._open()
        if missing is None:
            try:
                return self._inventory()
            except HardwareError:
                # The session may belong to a driver that was unloaded: try a new one.
                self._end_session()
                missing = self._open()
        if missing is None:
            try:
                return self._inventory()
            except HardwareError as error:
                self._end_session()
                missing = NoDriver("failed", error.problems[0].message, error.problems[0].hint)
        return self._discovery.without_driver(missing)

    def _inventory(self) -> Inventory:
        inventory = self._discovery.inventory()
        self._some_lost = bool(inventory.lost)
        return inventory

    def _change(self, step: InstanceStep | SetMigMode | SetComputeMode) -> Created | None:
        match step:
            case SetMigMode():
                set_mig_mode(self._nvml, self._host, self._reopen, step)
            case SetComputeMode():
                set_compute_mode(self._nvml, self._host, step, self._nvml.gpu_handle(step.gpu))
            case _:
                return MigInstances(self._nvml, self._host).perform(step)
        return None

    def _prepare(self, step: Reset) -> bool:
        pending = self._with_session(lambda: prepare_reset(self._nvml, self._persistence, step))
        self._end_session()
        return pending

    def _with_session(self, function: Callable[[], T]) -> T:
        """What the function returns. Raises DriverUnavailable, and closes the session then."""
        missing = self._open()
        if missing is not None:
            raise DriverUnavailable(missing.reason, missing.hint)
        try:
            return function()
        except DriverUnavailable:
            self._end_session()
            raise

    def _reopen(self) -> None:
        """A new session without handles and without a watch: handles of events can block a change of the
        GPU.
        """
        self._end_session()
        self._opened_at = self._clock()
        self._interrupted = True
        missing = self._nvml.open()
        if missing is not None:
            raise DriverUnavailable(missing.reason, missing.hint)

    def _open(self) -> NoDriver | None:
        """Open a session, and a watch if events are asked for. Returns None, or why that is not possible."""
        if reason := self._paused():
            self._end_session()
            self._nvml.unload()
            self._interrupted = True
            return NoDriver(PAUSED, f"the driver is paused: {reason}", "wait until it may be used again")
        if self._nvml.is_open and self._needs_new_session():
            self._end_session()
        if not self._nvml.is_open:
            if running := running_reset(self._host):
                self._interrupted = True
                return NoDriver("resetting", running, "wait until it has ended; dmesg may say more")
            self._opened_at = self._clock()
            missing = self._nvml.open()
            if missing is not None:
                self._interrupted = True
                return missing
            with contextlib.suppress(HardwareError):  # the call that opens the session meets it, too
                self._listed = self._nvml.count()
            self._persistence.restore(self._nvml)
        if self._watch is None and self._publish is not None:
            self._begin_watch(self._publish)
        return None

    def _needs_new_session(self) -> bool:
        """Whether a new session is needed: the watch ended, or a lost GPU may be back."""
        age_s = self._clock() - self._opened_at
        watch_ended = self._watch is not None and self._watch.ended
        return (watch_ended and age_s >= _REST_S) or (self._some_lost and age_s >= _REOPEN_S)

    def _begin_watch(self, publish: Callable[[Events], None]) -> None:
        self._watch = EventWatch(self._nvml, publish)
        self._watch.start(_WATCH_S)
        if self._interrupted:
            # Events may have been missed: observe again.
            publish(Events(changed=True))
        self._interrupted = True

    def _leave(self) -> None:
        """Close the session. If a thread waits for events in it, the end of the process closes it, sooner."""
        if self._watch is None or self._watch.stop(0.0):
            self._sampler.end_session()
            self._nvml.close()

    def _end_session(self) -> None:
        """Close the session, the watch first: NVML must not be shut down while a thread waits in it."""
        if self._watch is not None:
            if not self._watch.stop(_WATCH_S + self._allowed_s() - self._deadline_s):
                raise HardwareTimeout("the wait for the driver's events does not end")
            self._watch = None
        self._is_warm = False
        self._sampler.end_session()
        self._nvml.close()
