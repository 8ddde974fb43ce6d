"""A gRPC call to the kubelet: its deadline, and its failures as errors of Partage."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from h2.exceptions import H2Error

from partage.edges.kubelet.messages import MessageTooLong
from partage.errors import ClusterError, Rejected, Unreachable

_Answer = TypeVar("_Answer")

_PASSING = {
    Status.CANCELLED,
    Status.DEADLINE_EXCEEDED,
    Status.RESOURCE_EXHAUSTED,
    Status.ABORTED,
    Status.UNAVAILABLE,
}
"""Temporary statuses: the same call may succeed later."""


async def bounded(call: Coroutine[Any, Any, _Answer], limit_s: float) -> _Answer:
    """The answer of a call, which runs in a task of its own. Raises TimeoutError, and what the call raises.

    grpclib ends a call, at its deadline or with its connection, by cancelling the task that waits for it, and
    never takes that back. In Python 3.11.0 to 3.11.2 each later ``asyncio.timeout`` of such a task raises
    CancelledError, and a TaskGroup takes that for a normal end (gh-102780): so no call runs in a task that
    goes on, and none has grpclib's own deadline.
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


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Translate what a call can raise. what: the peer, "the kubelet at /var/...".

    Raises Unreachable if no valid answer came, Rejected if the answer was a refusal.
    """
    try:
        yield
    except GRPCError as error:
        raise _translated(what, error) from error
    except TimeoutError as error:
        raise Unreachable(f"{what} did not answer in time") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unreachable(f"{what} is not there: no such socket") from error
    except OSError as error:
        raise Unreachable(f"{what} is unreachable: {error.strerror or error}") from error
    except (StreamTerminatedError, ProtocolError, H2Error) as error:
        raise Unreachable(f"{what} broke off the call: {error}") from error
    except AttributeError as error:
        # grpclib raises this if the connection is lost before its first use.
        if error.name != "_transport":
            raise
        raise Unreachable(f"{what} hung up at once") from error
    except (DecodeError, MessageTooLong, AssertionError, NotImplementedError) as error:
        # grpclib raises the last two for a truncated message and for compression.
        raise Unreachable(f"{what} sent what cannot be read: {error}") from error


def _translated(what: str, error: GRPCError) -> ClusterError:
    kind = Unreachable if error.status in _PASSING else Rejected
    return kind(f"{what} answered {error.status.name}: {error.message or 'no reason given'}")
