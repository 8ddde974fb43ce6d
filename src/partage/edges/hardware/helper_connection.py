"""One connection of the agent to the helper's socket, and the requests on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from msgspec import Raw

from partage.codec.values import CodecError, decode, encode, to_error
from partage.edges.hardware import frames
from partage.edges.hardware.frames import peer_of
from partage.errors import DriverUnavailable, HardwareError, HardwareTimeout, NotPermitted


class HelperConnection:
    """One connection to a helper. When it ends, all waiting requests fail at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._next_id = 1
        self._reading = asyncio.create_task(self._read(), name="hardware-answers")
        self.helper_pid: int | None = None
        self.cold_s = 0.0

    @classmethod
    async def open(cls, path: Path, deadline_s: float) -> HelperConnection:
        """Connect and exchange greetings.

        Raises OSError if nothing listens, NotPermitted if one side does not trust the other,
        DriverUnavailable if the helper uses another protocol, HardwareTimeout.
        """
        reader, writer = await asyncio.open_unix_connection(os.fspath(path))
        connection = cls(reader, writer)
        try:
            await connection._greet(deadline_s)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return not self._reading.done()

    async def request(self, verb: str, deadline_s: float | None, arguments: object = None) -> bytes:
        """The helper's answer, as JSON. deadline_s None: no deadline here, the caller has one.

        Raises the helper's error, HardwareTimeout, or the reason why the connection ended.
        """
        if not self.is_open:
            raise _connection_ended()
        number, self._next_id = self._next_id, self._next_id + 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(
                frames.pack_message(frames.HelperRequest(number, verb, Raw(encode(arguments))))
            )
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError as error:
            raise HardwareTimeout(f"the helper did not answer {verb} within {deadline_s:g} s") from error
        finally:
            self._waiting.pop(number, None)

    async def ended(self) -> HardwareError:
        """Wait until the connection ends; returns the reason."""
        return await asyncio.shield(self._reading)

    async def close(self) -> None:
        """Idempotent."""
        self._reading.cancel()
        self._writer.close()
        await asyncio.gather(self._reading, return_exceptions=True)
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _greet(self, deadline_s: float) -> None:
        uid = peer_of(self._writer).uid
        if uid not in (0, os.geteuid()):
            raise NotPermitted(
                f"the socket is served by user {uid}, neither root nor the user of this process"
            )
        answer = await self.request("hello", deadline_s)
        try:
            hello = decode(frames.Greeting, answer, strict=False)
        except CodecError:
            hello = frames.Greeting(0, 0)
        if hello.protocol != frames.PROTOCOL:
            raise DriverUnavailable("the helper has another version of Partage", "restart the helper")
        self.helper_pid, self.cold_s = hello.pid, hello.cold_s

    async def _read(self) -> HardwareError:
        """Give each answer to the request that waits for it, until the connection ends."""
        reason: HardwareError = _connection_ended()
        try:
            while (answer := await self._next_answer()) is not None:
                self._deliver(answer)
        except (frames.FrameError, CodecError) as error:
            reason = DriverUnavailable(f"the helper's answer cannot be read: {error}")
        except HardwareError as error:
            reason = error
        finally:
            for waiter in self._waiting.values():
                if not waiter.done():
                    waiter.set_exception(reason)
        return reason

    async def _next_answer(self) -> frames.HelperAnswer | None:
        return await frames.read_message(self._reader, frames.HelperAnswer, frames.MOST_ANSWER_BYTES)

    def _deliver(self, answer: frames.HelperAnswer) -> None:
        error = None if answer.error is None else to_error(answer.error)
        if answer.id is None and isinstance(error, HardwareError):
            raise error  # the helper refuses this connection
        waiter = None if answer.id is None else self._waiting.get(answer.id)
        if waiter is None or waiter.done():
            return  # the request was cancelled or timed out
        if error is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(answer.result)


def _connection_ended() -> HardwareError:
    return DriverUnavailable("the helper process has ended")
