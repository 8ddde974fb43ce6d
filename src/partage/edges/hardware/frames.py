"""The helper's socket: who is at its other end, by the kernel (SO_PEERCRED), and messages: four bytes of
length, big-endian, then one JSON object.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TypeVar

from msgspec import Raw

from partage.codec.values import CodecError, WrittenError, decode, encode
from partage.values import Frozen

_UCRED = struct.Struct("3i")


class Peer(Frozen):
    """The process that connected, and its user.

    pid: as this process sees it; 0 if it is in a pid namespace that cannot be seen from here.
    """

    pid: int
    uid: int


def peer_of(writer: asyncio.StreamWriter) -> Peer:
    """The process at the other end."""
    connection: socket.socket = writer.get_extra_info("socket")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(credentials)
    return Peer(int(pid), int(uid))


T = TypeVar("T")

_LENGTH = struct.Struct(">I")
_NULL = Raw(b"null")

PROTOCOL = 7
"""Agent and helper may have different versions during an upgrade; both sides check this number."""

MOST_REQUEST_BYTES = 64 * 1024
"""A request is a verb with few arguments."""

MOST_ANSWER_BYTES = 16 * 1024 * 1024


class FrameError(ValueError):
    """The peer does not use the protocol. Nothing more can be read from the connection."""


class HelperRequest(Frozen, omit_defaults=True, forbid_unknown_fields=True):
    """What the agent asks. arguments: JSON, read by the verb."""

    id: int
    verb: str
    arguments: Raw = _NULL


class HelperAnswer(Frozen, omit_defaults=True, forbid_unknown_fields=True):
    """What the helper answers. id: of the request; None if the connection is refused. result: JSON."""

    id: int | None
    result: Raw = _NULL
    error: WrittenError | None = None


class Greeting(Frozen):
    """The result of the verb ``hello``. cold_s: how much longer than usual a call may take."""

    protocol: int
    pid: int
    cold_s: float = 0.0


def pack_message(message: object) -> bytes:
    """One message as bytes."""
    body = encode(message)
    return _LENGTH.pack(len(body)) + body


async def read_message(reader: asyncio.StreamReader, kind: type[T], most_bytes: int) -> T | None:
    """The next message; None if the peer has closed the connection. Raises FrameError."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > most_bytes:
            raise FrameError(f"a message of {length} bytes was announced, {most_bytes} are allowed")
        body = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return unpack_message(kind, body)


def unpack_message(kind: type[T], body: bytes) -> T:
    """One message. Raises FrameError."""
    try:
        return decode(kind, body, strict=False)
    except CodecError as error:
        raise FrameError(f"a message cannot be read: {error}") from error
