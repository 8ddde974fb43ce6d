"""Waiting for an event with a limit."""

from __future__ import annotations

import asyncio


async def wait_at_most(event: asyncio.Event, longest_s: float | None) -> bool:
    """Wait until the event is set, at most longest_s seconds (None: no limit). Returns whether it is set."""
    try:
        async with asyncio.timeout(longest_s):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()
