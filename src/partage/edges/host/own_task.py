"""Work in a task, or a program, of its own.

What cancels a task of its own does not cancel what waits for it. A task that was cancelled once stays so
until somebody calls ``uncancel()``. In Python 3.11.0 to 3.11.2 (Debian 12) each ``asyncio.timeout`` of such a
task ends with CancelledError instead of TimeoutError, and a TaskGroup takes CancelledError for a good end
(gh-102780). grpclib ends a call, at its deadline or with its connection, by cancelling the task that waits
for it, and never takes that back: so no such call runs in a task that goes on, and none has grpclib's own
deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

_Answer = TypeVar("_Answer")


class TaskEnded(Exception):
    """A task returned, or was cancelled, and nobody had asked it to end."""


async def unending(name: str, work: Coroutine[Any, Any, object]) -> NoReturn:
    """Do work that must not end. Raises what it raises, TaskEnded if it ends in any other way.

    To cancel its task by mistake neither ends this one, nor makes a TaskGroup believe that all is well.
    """
    task = asyncio.create_task(work, name=name)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()  # what went wrong while it ended
        raise
    if task.cancelled():
        raise TaskEnded(f"{name} was cancelled")
    task.result()
    raise TaskEnded(f"{name} returned")


async def bounded(call: Coroutine[Any, Any, _Answer], limit_s: float) -> _Answer:
    """The answer of a call. Raises TimeoutError, and what the call raises.

    Also where this task is being cancelled, and has something to do before it ends.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task}, timeout=limit_s)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        if task.cancel():
            task.add_done_callback(_forget)


def _forget(task: asyncio.Future[Any]) -> None:
    """How a call ends that nobody waits for does not matter."""
    if not task.cancelled():
        task.exception()


async def end_group(process: Process) -> None:
    """Kill it and all processes that it started, if it still runs. It has a session of its own
    (``start_new_session``).
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
