"""The helper's side of its socket: a closed list of verbs, for peers that are permitted, and for nobody on
the network.

Each request has one answer with the same id. Requests of a connection run concurrently, so a long wait for
events blocks nothing. Invalid bytes end the connection they came from.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar, cast

from msgspec import Meta, Raw
from msgspec.structs import replace

from partage.codec.values import CodecError, decode, encode, from_error
from partage.edges.hardware import frames
from partage.edges.hardware.deadlines import CallDeadlines
from partage.edges.hardware.frames import peer_of
from partage.edges.hardware.port import DEADLINE_S, STEP_DEADLINE_S, Hardware, longer_s
from partage.edges.host.procfs import cgroups_of
from partage.errors import (
    DriverUnavailable,
    HardwareTimeout,
    InputError,
    NotPermitted,
    PartageError,
    Unsupported,
)
from partage.model.cgroup import Owner, parse_cgroup
from partage.model.driver_limit import LimitAt
from partage.model.ids import PodUid
from partage.model.mps import PipeTenants
from partage.model.paths import check_socket_path
from partage.model.step import Step

LONGEST_WAIT_S = 60.0
_PROC = Path("/proc")
_MOST_REQUESTS = 32

log = logging.getLogger(__name__)

T = TypeVar("T")
Verb = Callable[[Hardware, bytes], Awaitable[object]]
"""Answers a request of that kind; the second argument is the request's arguments as JSON."""

Wait = Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)]
"""The argument of the verb ``events``: for how many seconds to wait."""


async def _hello(hardware: Hardware, arguments: bytes) -> frames.Greeting:
    del hardware, arguments
    return frames.Greeting(frames.PROTOCOL, os.getpid())


def _query(ask: Callable[[Hardware], Awaitable[object]]) -> Verb:
    """A verb without arguments: one method of the port."""

    async def answer(hardware: Hardware, arguments: bytes) -> object:
        del arguments
        return await ask(hardware)

    return answer


async def _events(hardware: Hardware, arguments: bytes) -> object:
    return await hardware.events(_argument(Wait, arguments, "a time to wait"))


async def _perform(hardware: Hardware, arguments: bytes) -> object:
    return await hardware.perform(_step(arguments))


async def _left(hardware: Hardware, arguments: bytes) -> object:
    return await hardware.left_of(_argument(tuple[PodUid, ...], arguments, "UIDs of pods"))


async def _limits(hardware: Hardware, arguments: bytes) -> object:
    return await hardware.limits(_argument(tuple[LimitAt, ...], arguments, "containers and GPUs"))


def _step(arguments: bytes) -> Step:
    # mypy has no type for a union itself.
    return _argument(cast("type[Step]", Step), arguments, "a valid step")


def _extra_s(verb: str, arguments: bytes) -> float:
    """Seconds that a call may take beyond the usual ones."""
    match verb:
        case "events":
            return LONGEST_WAIT_S
        case "perform":
            return longer_s(_step(arguments))
        case _:
            return 0.0


def _argument(kind: type[T], arguments: bytes, what: str) -> T:
    """Raises InputError if it is something else."""
    try:
        return decode(kind, arguments)
    except CodecError as error:
        raise InputError(f"the argument is not {what}: {error}") from error


VERBS: Mapping[str, Verb] = {
    "hello": _hello,
    "observe": _query(lambda hardware: hardware.observe()),
    "conditions": _query(lambda hardware: hardware.conditions()),
    "events": _events,
    "perform": _perform,
    "uses": _query(lambda hardware: hardware.uses()),
    "processes": _query(lambda hardware: hardware.processes()),
    "left": _left,
    "samples": _query(lambda hardware: hardware.samples()),
    "time-slices": _query(lambda hardware: hardware.time_slices()),
    "daemons": _query(lambda hardware: hardware.daemons()),
    "limits": _limits,
    "tenants": _query(lambda hardware: hardware.tenants()),
}
"""All verbs of the helper."""


_APART = "left"
"""It has a thread of its own, and reads no driver: where it hangs, a new helper would hang, too."""


class HelperServer:
    """Serves one hardware port on one socket."""

    def __init__(
        self,
        hardware: Hardware,
        *,
        allowed_uids: frozenset[int] = frozenset(),
        why_not_allowed: Callable[[int], str] = lambda _: "",
        deadline_s: float = DEADLINE_S,
        step_deadline_s: float = STEP_DEADLINE_S,
        cold_s: Callable[[], Awaitable[float]] | None = None,
    ) -> None:
        """allowed_uids: users that may connect besides root and the user of this process.

        why_not_allowed: given the pid of a process of such a user, why it may not connect all the same;
        empty if it may. Called once for each connection.
        cold_s: asked at every greeting: how much longer than usual calls may take (``NvmlHardware.cold_s``).
        """
        self._hardware = hardware
        self._allowed_uids = allowed_uids
        self._why_not_allowed = why_not_allowed
        self._deadlines = CallDeadlines(deadline_s, step_deadline_s)
        self._ask_cold_s = cold_s
        self._cold_s = 0.0
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._peers: dict[asyncio.Task[None], Owner] = {}
        self._end: asyncio.Future[bool] | None = None

    async def run(self, path: Path, stop: asyncio.Event) -> bool:
        """Serve until ``stop`` is set. False if a driver call hangs: the process must be replaced.

        Raises InputError if it cannot listen at ``path``. Bugs are raised too.
        """
        self._end = asyncio.get_running_loop().create_future()
        listener, identity = listen(path, open_to_all=bool(self._allowed_uids))
        server = await asyncio.start_unix_server(self._connected, sock=listener)
        stopping = asyncio.create_task(stop.wait(), name="helper-stop")
        try:
            await asyncio.wait((stopping, self._end), return_when=asyncio.FIRST_COMPLETED)
            return self._end.result() if self._end.done() else True
        finally:
            stopping.cancel()
            server.close()
            await self._hang_up()
            _remove(path, identity)

    async def _hang_up(self) -> None:
        """Close all connections and wait for their ends."""
        for writer in self._connections.values():
            writer.close()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def permits(self, uid: int) -> bool:
        """Whether a user may use this helper."""
        return uid in (0, os.geteuid()) or uid in self._allowed_uids

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        requests: set[asyncio.Task[None]] = set()
        try:
            if self._welcome(writer):
                self._peers[task] = parse_cgroup(cgroups_of(_PROC, peer_of(writer).pid))
                await self._converse(reader, writer, requests)
        except frames.FrameError as error:
            log.warning("invalid request from peer", extra={"reason": str(error)})
        finally:
            writer.close()
            await _cancelled(requests)
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            del self._connections[task]
            self._peers.pop(task, None)

    def _welcome(self, writer: asyncio.StreamWriter) -> bool:
        peer = peer_of(writer)
        reason, hint = f"user {peer.uid} may not use this helper", "see --allow-uid"
        if self.permits(peer.uid):
            reason, hint = self._why_not_allowed(peer.pid), "see --allow-container"
        if not reason:
            return True
        log.warning("peer refused", extra={"uid": peer.uid, "pid": peer.pid, "reason": reason})
        writer.write(
            frames.pack_message(frames.HelperAnswer(None, error=from_error(NotPermitted(reason, hint))))
        )
        return False

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: set[asyncio.Task[None]]
    ) -> None:
        while (
            request := await frames.read_message(reader, frames.HelperRequest, frames.MOST_REQUEST_BYTES)
        ) is not None:
            if len(requests) >= _MOST_REQUESTS:
                busy = DriverUnavailable("too many requests at the same time")
                writer.write(_refusal(request.id, busy))
                continue
            task = asyncio.create_task(self._serve(request, writer), name=f"helper-{request.verb[:20]}")
            requests.add(task)
            task.add_done_callback(requests.discard)
            task.add_done_callback(self._settled)

    async def _serve(self, request: frames.HelperRequest, writer: asyncio.StreamWriter) -> None:
        hangs = False
        try:
            result = Raw(encode(await self._call(request.verb, request.arguments)))
            answer = frames.pack_message(frames.HelperAnswer(request.id, result))
        except PartageError as error:
            hangs = isinstance(error, HardwareTimeout) and request.verb != _APART
            answer = _refusal(request.id, error)
        with contextlib.suppress(ConnectionError):
            writer.write(answer)
            await writer.drain()
        if hangs and self._end is not None and not self._end.done():
            self._end.set_result(False)

    async def _call(self, verb: str, arguments: bytes) -> object:
        function = VERBS.get(verb)
        if function is None:
            raise Unsupported(f"the helper has no verb {verb[:40]!r}")
        async with self._deadlines.within(verb, _extra_s(verb, arguments) + self._cold_s):
            result = await function(self._hardware, arguments)
        if isinstance(result, PipeTenants):  # the agent has the run directory mounted, too
            return result.without(self._peers.values())
        return await self._with_cold_s(result) if isinstance(result, frames.Greeting) else result

    async def _with_cold_s(self, greeting: frames.Greeting) -> frames.Greeting:
        if self._ask_cold_s is not None:
            self._cold_s = await self._ask_cold_s()
        return replace(greeting, cold_s=self._cold_s)

    def _settled(self, task: asyncio.Task[None]) -> None:
        """An unexpected exception ends the helper."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._end is not None and not self._end.done():
            self._end.set_exception(error)


def listen(path: Path, *, open_to_all: bool) -> tuple[socket.socket, int]:
    """A listening socket in place of an existing file at ``path``, and the inode of its file. Raises
    InputError.

    The newest helper takes the path, because an older one may hang. open_to_all: every user may connect,
    and the credentials of the peer decide; else only the owner.
    """
    check_socket_path(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    mask = os.umask(0o111 if open_to_all else 0o177)
    try:
        path.unlink(missing_ok=True)
        listener.bind(os.fspath(path))
        listener.listen()
        return listener, path.stat().st_ino
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen at {path}: {error.strerror}", "choose another path with --socket"
        ) from error
    finally:
        os.umask(mask)


def _refusal(number: int, error: PartageError) -> bytes:
    return frames.pack_message(frames.HelperAnswer(number, error=from_error(error)))


async def _cancelled(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel and wait. A copy of the set is used, because tasks leave the set when they end."""
    for task in tuple(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _remove(path: Path, identity: int) -> None:
    """Remove the own socket, but not one that a newer helper has created there."""
    with contextlib.suppress(OSError):
        if path.stat().st_ino == identity:
            path.unlink()


_CLONE_NEWNET = 0x40000000


def leave_network() -> None:
    """Move this process to a network namespace of its own, which has no device that is up.

    Unix sockets with a path still work. Processes that it starts later are in that namespace, too; its
    other threads are not, so this is called before there are any. Raises NotPermitted (it needs
    CAP_SYS_ADMIN).
    """
    import ctypes  # not at the top: most helpers keep the network, and need no ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        reason = os.strerror(ctypes.get_errno())
        raise NotPermitted(f"the network cannot be left: {reason}", "run it as root, or without --no-network")
