"""Stops daemons and leftover servers, and waits until they have ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable
from typing import ParamSpec

from partage.edges.mps.processes import ProcessTable
from partage.edges.mps.record import DaemonIdentity
from partage.errors import DaemonError, NotPermitted

P = ParamSpec("P")

_LOOK_EVERY_S = 0.02
_KILLED_S = 5.0
"""Seconds for the kernel to end a killed process; a process in a driver call can take longer."""


async def wait_until(condition: Callable[[], Awaitable[object]], limit_s: float) -> bool:
    """Wait until a condition holds; False if it did not in time. It is checked at least once."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while not await condition():
        if loop.time() >= end_s:
            return False
        await asyncio.sleep(_LOOK_EVERY_S)
    return True


def in_thread(
    check: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> Callable[[], Awaitable[object]]:
    """A condition that is checked in a thread, for ``wait_until``."""
    return lambda: asyncio.to_thread(check, *args, **kwargs)


async def wait_until_gone(processes: ProcessTable, identity: DaemonIdentity, limit_s: float) -> bool:
    """Whether a process ends in time."""
    return await wait_until(in_thread(lambda: not processes.lives(identity)), limit_s)


async def kill(processes: ProcessTable, identity: DaemonIdentity, grace_s: float) -> None:
    """SIGTERM, and SIGKILL after grace_s. Raises NotPermitted; DaemonError if it does not end."""
    for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILLED_S)):
        try:
            await asyncio.to_thread(processes.signal, identity, number)
        except PermissionError as error:
            raise NotPermitted(f"process {identity.pid} may not be ended: {error}") from error
        if await wait_until_gone(processes, identity, limit_s):
            return
    raise DaemonError(
        f"process {identity.pid} of an MPS daemon does not end, though it was killed",
        "a driver call holds it; dmesg may say which GPU is in trouble",
    )


async def kill_all(processes: ProcessTable, ended: Iterable[DaemonIdentity], grace_s: float) -> None:
    """End these processes, concurrently."""
    await asyncio.gather(*(kill(processes, identity, grace_s) for identity in ended))
