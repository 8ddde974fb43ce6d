"""One connection of the agent to the helper's socket, and the requests on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

from partage.edges.hardware import frames
from partage.edges.hardware.codec import CodecError, Json, decode_error
from partage.edges.hardware.helper_server import PROTOCOL, peer_uid
from partage.errors import DriverUnavailable, HardwareError, HardwareTimeout, NotPermitted


class HelperConnection:
    """One connection to a helper. When it ends, all waiting requests fail at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self._next_id = 1
        self._reading = asyncio.create_task(self._read(), name="hardware-answers")
        self.helper_pid: int | None = None

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

    async def request(self, verb: str, deadline_s: float | None, **arguments: Json) -> Json:
        """The helper's answer. deadline_s None: no deadline here, the caller has one.

        Raises the helper's error, HardwareTimeout, or the reason why the connection ended.
        """
        if not self.is_open:
            raise _ended()
        number, self._next_id = self._next_id, self._next_id + 1
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(frames.pack({"id": number, "verb": verb, **arguments}))
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
        uid = peer_uid(self._writer)
        if uid not in (0, os.geteuid()):
            raise NotPermitted(
                f"the socket is served by user {uid}, neither root nor the user of this process"
            )
        hello: Any = await self.request("hello", deadline_s)
        if not isinstance(hello, dict) or hello.get("protocol") != PROTOCOL:
            raise DriverUnavailable("the helper has another version of Partage", "restart the helper")
        self.helper_pid = hello.get("pid")

    async def _read(self) -> HardwareError:
        """Give each answer to the request that waits for it, until the connection ends."""
        reason: HardwareError = _ended()
        try:
            while (answer := await frames.read(self._reader, frames.MOST_ANSWER_BYTES)) is not None:
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

    def _deliver(self, answer: dict[str, Any]) -> None:
        error = decode_error(answer["error"]) if "error" in answer else None
        number = answer.get("id")
        if number is None and isinstance(error, HardwareError):
            raise error  # the helper refuses this connection
        waiter = self._waiting.get(number) if type(number) is int else None
        if waiter is None or waiter.done():
            return  # the request was cancelled or timed out
        if error is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(answer.get("result"))


def _ended() -> HardwareError:
    return DriverUnavailable("the helper process has ended")
