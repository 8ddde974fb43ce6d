"""Waiting for moments at which other timers are due too: a processor that sleeps is woken once for all."""

from __future__ import annotations

import asyncio


async def until_tick(period_s: float, event: asyncio.Event | None = None, *, least_s: float = 0.0) -> None:
    """Wait until the loop's clock is a multiple of period_s, but least_s or more, or until the event is
    set.
    """
    due_s = ((asyncio.get_running_loop().time() + least_s) // period_s + 1) * period_s
    try:
        async with asyncio.timeout_at(due_s):
            await (event or asyncio.Event()).wait()
    except TimeoutError:
        pass
