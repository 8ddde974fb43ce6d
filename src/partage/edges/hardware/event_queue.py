"""Events of the driver that wait until the agent asks for them."""

from __future__ import annotations

import asyncio

from partage.edges.hardware.port import Events
from partage.errors import HardwareError
from partage.model.health import Xid

_MOST_XIDS = 1024
"""A broken GPU can raise the same XID for hours; only the newest events are kept."""


class EventQueue:
    """Events that were not taken yet. All methods belong to one asyncio loop."""

    def __init__(self) -> None:
        self._xids: list[Xid] = []
        self._changed = False
        self._waiting: set[asyncio.Future[None]] = set()

    def put(self, events: Events) -> None:
        """Add events; all waiting callers are woken."""
        self._xids = [*self._xids, *events.xids][-_MOST_XIDS:]
        self._changed |= events.changed
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, error: HardwareError) -> None:
        """Raise ``error`` in all callers that wait now; later callers are not affected."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(error)

    async def take(self, timeout_s: float) -> Events:
        """All events, at once if there are some; after timeout_s an empty Events.

        Raises the error passed to ``fail`` meanwhile. A cancelled caller loses no events.
        """
        if not self._xids and not self._changed:
            await self._wait(timeout_s)
        taken = Events(tuple(self._xids), self._changed)
        self._xids, self._changed = [], False
        return taken

    async def _wait(self, timeout_s: float) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return
        finally:
            self._waiting.discard(waiter)
