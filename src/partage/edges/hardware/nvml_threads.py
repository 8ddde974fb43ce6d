"""The threads of a process that has NVML: one for calls that may block, with deadlines for the callers, and
one that waits for events.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import TypeVar

from partage.edges.hardware.nvml_queries import EVENT_XID, EventSet, Nvml, NvmlEvent
from partage.edges.hardware.port import Events
from partage.errors import GpuLost, HardwareError, HardwareTimeout
from partage.model.health import Xid
from partage.model.ids import GpuUuid

T = TypeVar("T")


class Worker:
    """Makes calls one after the other on its own thread.

    A call that does not return blocks the calls behind it, which time out too; then the process must be
    replaced. The thread is a daemon thread, so that the process can end although a driver call hangs.
    """

    def __init__(self, name: str, between: Callable[[], float | None] = lambda: None) -> None:
        """between: called on the thread after every call, and again after the seconds that it returns; None:
        not
        before the next call. It raises nothing.
        """
        self._name = name
        self._between = between
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[[], T], deadline_s: float) -> T:
        """What the function returns or raises. Raises HardwareTimeout after deadline_s.

        If the caller is cancelled before the call begins, the call is not made.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._start()
        self._jobs.put(lambda: _make(function, future, loop))
        try:
            async with asyncio.timeout(deadline_s):
                return await future
        except TimeoutError as error:
            raise HardwareTimeout(
                f"a driver call did not end within {deadline_s:g} s", "dmesg may say which GPU is in trouble"
            ) from error

    def stop(self) -> None:
        """End the thread after the queued calls, without waiting. A later call starts a new thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _start(self) -> None:
        if self._thread is None:
            self._jobs = SimpleQueue()
            self._thread = threading.Thread(
                target=_run, args=(self._jobs, self._between), name=self._name, daemon=True
            )
            self._thread.start()


def _run(jobs: SimpleQueue[Callable[[], None] | None], between: Callable[[], float | None]) -> None:
    while True:
        try:
            job = jobs.get(timeout=between())
        except Empty:
            continue
        if job is None:
            return
        job()


def _make(function: Callable[[], T], future: asyncio.Future[T], loop: asyncio.AbstractEventLoop) -> None:
    """Make one call and hand the result to the loop, unless the caller is gone."""
    if future.cancelled():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - every error is raised in the caller
        _deliver(loop, future, lambda error=error: future.set_exception(error))  # type: ignore[misc]
    else:
        _deliver(loop, future, lambda: future.set_result(result))


def _deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], settle: Callable[[], None]) -> None:
    def settle_if_awaited() -> None:
        if not future.done():
            settle()

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle_if_awaited)


_SLICE_MS = 2000
"""Longest single wait in the driver. A new session waits for its end, the end of the process does not."""

_PAUSE_S = 0.2


class EventWatch:
    """Waits for XIDs and changes of all GPUs that answer, until it is stopped or the driver fails.

    Events from before the start are not delivered.
    """

    def __init__(self, nvml: Nvml, publish: Callable[[Events], None]) -> None:
        self._nvml = nvml
        self._publish = publish
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)

    def start(self, timeout_s: float) -> None:
        """Start the thread; returns when events are registered, or after timeout_s."""
        self._thread.start()
        self._ready.wait(timeout_s)

    @property
    def ended(self) -> bool:
        """The driver failed: the session must be opened again."""
        return self._ready.is_set() and not self._thread.is_alive()

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread; False if it still hangs in the driver after timeout_s."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        watched: frozenset[GpuUuid] | None = None
        try:
            while not self._stop.is_set():
                watched = self._watch(watched)
        except HardwareError:
            # The next observation finds the cause and opens the session again.
            self._publish(Events(changed=True))
        finally:
            self._ready.set()

    def _watch(self, before: frozenset[GpuUuid] | None) -> frozenset[GpuUuid]:
        """Watch until stopped or a GPU is lost. before, and the result: UUIDs of the watched GPUs."""
        event_set = self._nvml.create_event_set()
        try:
            uuids = self._register(event_set)
            watched = frozenset(uuids.values())
            if before is not None and watched != before:
                self._publish(Events(changed=True))
            self._ready.set()
            self._wait(event_set, uuids)
        finally:
            self._nvml.free_event_set(event_set)
        return watched

    def _register(self, event_set: EventSet) -> dict[int, GpuUuid]:
        """Register all GPUs that answer. Returns addresses of their handles to UUIDs."""
        uuids: dict[int, GpuUuid] = {}
        for uuid, handle in self._nvml.handles().items():
            with contextlib.suppress(GpuLost):
                if self._nvml.register(handle, event_set):
                    uuids[self._nvml.address(handle)] = uuid
        return uuids

    def _wait(self, event_set: EventSet, uuids: Mapping[int, GpuUuid]) -> None:
        try:
            while not self._stop.is_set():
                event = self._nvml.wait(event_set, _SLICE_MS)
                if event is not None:
                    self._publish(_events(event, uuids))
        except GpuLost:
            # The event set keeps failing while the lost GPU is in it: create one without it.
            self._stop.wait(_PAUSE_S)


def _events(event: NvmlEvent, uuids: Mapping[int, GpuUuid]) -> Events:
    if event.kind == EVENT_XID:
        return Events(xids=(Xid(uuids.get(event.gpu), event.data, event.gi_id, event.ci_id),))
    return Events(changed=True)
