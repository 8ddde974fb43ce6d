"""Messages on the helper's socket: four bytes of length, big-endian, then one JSON object."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

_LENGTH = struct.Struct(">I")

MOST_REQUEST_BYTES = 64 * 1024
"""A request is a verb with few arguments."""

MOST_ANSWER_BYTES = 16 * 1024 * 1024


class FrameError(ValueError):
    """The peer does not use the protocol. Nothing more can be read from the connection."""


def pack(message: dict[str, Any]) -> bytes:
    """One message as bytes."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return _LENGTH.pack(len(body)) + body


async def read(reader: asyncio.StreamReader, most_bytes: int) -> dict[str, Any] | None:
    """The next message; None if the peer has closed the connection. Raises FrameError."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > most_bytes:
            raise FrameError(f"a message of {length} bytes was announced, {most_bytes} are allowed")
        body = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return unpack(body)


def unpack(body: bytes) -> dict[str, Any]:
    """One message. Raises FrameError."""
    try:
        message = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError("a message is not JSON") from error
    if not isinstance(message, dict):
        raise FrameError("a message is not an object")
    return message


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
