"""HTTP/1.1 requests and their answers on one connection: h11 has the protocol, asyncio socket and TLS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import h11
from msgspec import field

from partage import __version__
from partage.values import Frozen

if TYPE_CHECKING:
    import ssl

ProtocolError = h11.ProtocolError
"""The peer, or its connection, did not keep to HTTP."""

LIMIT_BYTES = 64 << 20
"""Of one answer, and of one line of a watch."""

_READ_BYTES = 1 << 16
_KEEP_ALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""A peer that has vanished without a word is noticed within a minute, also by a watch that says nothing."""


class HttpRequest(Frozen):
    """What is asked. path: below that of the server. content: JSON, media_type says in which role."""

    method: str
    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    media_type: str = ""


def is_http_url(text: str) -> bool:
    """Whether it is an http or https URL with a host."""
    try:
        place = urlsplit(text)
        return place.scheme in {"http", "https"} and bool(place.hostname) and place.port != 0
    except ValueError:
        return False


async def connect(url: str, tls: ssl.SSLContext | None, server_name: str = "") -> HttpExchange:
    """Connect to a server. server_name: the name in its certificate, if it is another than in the URL.

    Raises OSError.
    """
    place = urlsplit(url)
    host, port = place.hostname or "", place.port or (80 if tls is None else 443)
    name = None if tls is None else server_name or host
    reader, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=name)
    keeps: socket.socket = writer.get_extra_info("socket")
    keeps.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        keeps.setsockopt(socket.IPPROTO_TCP, option, value)
    return HttpExchange(place.netloc.rpartition("@")[2], place.path.rstrip("/"), reader, writer)


async def answer_of(
    url: str,
    asked: HttpRequest,
    token: str = "",
    tls: ssl.SSLContext | None = None,
    *,
    within_s: float,
    limit_bytes: int,
) -> tuple[int, bytes]:
    """Status and content of the whole answer of a server that may be slow, broken or hostile. tls: for https,
    in place of the authorities of this host.

    within_s: for all of it, from the look-up of the name to the last byte. Raises OSError (TimeoutError) or
    ProtocolError.
    """
    secured = None
    if urlsplit(url).scheme == "https":
        import ssl  # 5 MiB, only where it is asked for

        secured = tls or ssl.create_default_context()
    try:
        async with asyncio.timeout(within_s):
            exchange = await connect(url, secured)
            try:
                await exchange.send(asked, token)
                return exchange.code, await exchange.content(limit_bytes)
            finally:
                exchange.close()
    except TimeoutError as error:
        raise TimeoutError(f"no whole answer in {within_s:g} s") from error
    except UnicodeError as error:  # of a host's name
        raise OSError(str(error)) from error


class HttpExchange:
    """A connection with one request, or with one after the other. Every method raises OSError or
    ProtocolError if it ends too early.

    code, retry_after: of the answer. idle_s: how long nothing may come; None: no limit. keep: ask the server
    to keep the connection after an answer.
    """

    def __init__(
        self, host: str, prefix: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._host, self._prefix, self._reader, self._writer = host, prefix, reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self.code = 0
        self.retry_after = ""
        self.idle_s: float | None = None
        self.keep = False

    async def send(self, asked: HttpRequest, token: str) -> None:
        """Send the request; wait for the beginning of its answer."""
        headers = [
            ("Host", self._host),
            ("User-Agent", f"partage/{__version__}"),
            ("Accept", "application/json"),
            ("Connection", "keep-alive" if self.keep else "close"),
        ]
        content = asked.content or b""
        if asked.content is not None:
            headers += [("Content-Type", asked.media_type), ("Content-Length", str(len(content)))]
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
        query = f"?{urlencode(asked.parameters)}" if asked.parameters else ""
        target = f"{self._prefix}{asked.path}{query}"
        events = [h11.Request(method=asked.method, target=target, headers=headers), h11.Data(content)]
        for event in (*events, h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()
        answer = await self._next()
        while isinstance(answer, h11.InformationalResponse):
            answer = await self._next()
        if not isinstance(answer, h11.Response):
            raise h11.RemoteProtocolError("the connection ended without an answer")
        self.code = answer.status_code
        after = dict(answer.headers).get(b"retry-after", b"")  # h11 writes all keys in lower case
        self.retry_after = after.decode("ascii", "replace")

    async def content(self, limit_bytes: int = LIMIT_BYTES) -> bytes:
        """The whole answer; ProtocolError where it is longer."""
        parts, size = [], 0
        async for part in self._parts():
            parts.append(part)
            size += len(part)
            if size > limit_bytes:
                raise h11.RemoteProtocolError(f"an answer of more than {limit_bytes} bytes")
        return b"".join(parts)

    async def lines(self) -> AsyncIterator[bytes]:
        """The answer line by line, as it comes."""
        rest = b""
        async for part in self._parts():
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line
            if len(rest) > LIMIT_BYTES:
                raise h11.RemoteProtocolError(f"a line of more than {LIMIT_BYTES} bytes")

    def again(self) -> bool:
        """Whether another request can be sent: the answer was read, and both keep the connection."""
        if self._reader.at_eof() or self._writer.transport.is_closing():
            return False
        if not (self._http.our_state is self._http.their_state is h11.DONE):
            return False
        self._http.start_next_cycle()
        return True

    def close(self) -> None:
        """End the connection, whatever its state."""
        self._writer.transport.abort()

    async def _parts(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(self.idle_s):
                self._http.receive_data(await self._reader.read(_READ_BYTES))
        return event
