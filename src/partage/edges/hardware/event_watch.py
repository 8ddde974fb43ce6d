"""The thread that waits for NVML's events."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping

from partage.edges.hardware.nvml_queries import EVENT_XID, EventSet, Nvml, NvmlEvent
from partage.edges.hardware.port import Events
from partage.errors import GpuLost, HardwareError
from partage.model.health import Xid
from partage.model.ids import GpuUuid

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
