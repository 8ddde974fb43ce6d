"""Who is at the other end of a unix socket, from the kernel (SO_PEERCRED)."""

from __future__ import annotations

import asyncio
import socket
import struct

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
