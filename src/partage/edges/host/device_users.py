"""The question that is asked before something is ended which may have clients: who else uses this device?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from partage.model.ids import DeviceUuid

UsersOf = Callable[[DeviceUuid, Collection[int]], Awaitable[tuple[str, ...]]]
"""Asks who uses a GPU or MIG device besides processes with these pids: a name for each. Raises HardwareError
where that cannot be seen."""


async def nobody(device: DeviceUuid, without: Collection[int]) -> tuple[str, ...]:
    """A ``UsersOf`` for who knows that there are none."""
    del device, without
    return ()
