"""A scripted API server: real sockets, TLS and HTTP/1.1; each test says what it answers."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from partage.edges.kube.config import ClusterConfig, Material
from partage.edges.kube.connection import Backoff

PKI = Path(__file__).parent / "pki"
CA = Material(PKI / "ca.crt")


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def watches(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """hang: nothing is answered at all. drop: the connection ends without a word."""

    body: Any = None
    code: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    drop: bool = False
    hang: bool = False


class Stream:
    """The answer to a watch: what the test sends, as it sends it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.ended = asyncio.Event()

    async def send(self, kind: str, thing: Any) -> None:
        await self.raw(json.dumps({"type": kind, "object": thing}).encode() + b"\n")

    async def raw(self, line: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        await self._writer.drain()

    def end(self) -> None:
        """As a server whose time for the watch is over."""
        self._writer.write(b"0\r\n\r\n")
        self.ended.set()

    def drop(self) -> None:
        """As a server that dies."""
        self._writer.transport.abort()
        self.ended.set()


@dataclass
class ScriptedServer:
    """answer: what a request gets. streams: watches that were opened, for the test to take.

    opened: what a watch says first, before the test may take it. connections: those that are open, or about
    to be.
    """

    answer: Callable[[Request], Answer | Awaitable[Answer]] = lambda request: Answer({})
    requests: list[Request] = field(default_factory=list)
    streams: asyncio.Queue[Stream] = field(default_factory=asyncio.Queue)
    opened: Callable[[Request, Stream], Awaitable[None]] | None = None
    port: int = 0
    connections: set[asyncio.Task[None]] = field(default_factory=set)
    _listener: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def config(self, **more: Any) -> ClusterConfig:
        return ClusterConfig(**{"url": self.url, "ca": CA, **more})

    async def start(self) -> None:
        """Also after ``stop``, at the same port."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(PKI / "server.crt", PKI / "server.key")
        context.load_verify_locations(PKI / "ca.crt")
        context.verify_mode = ssl.CERT_OPTIONAL
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept, context)

    async def stop(self) -> None:
        """Returns when every connection has ended, also one that was about to begin.

        asyncio.start_server does not tell of a connection before its TLS is complete: one that was in
        that state when a test ended was reported as unclosed in a later test.
        """
        assert self._listener is not None
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        await asyncio.sleep(0)  # a task that is cancelled before it has begun would not close its socket
        for task in self.connections:
            task.cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(*self.connections, return_exceptions=True)

    def _accept(self, context: ssl.SSLContext) -> None:
        assert self._listener is not None
        try:
            peer, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it has gone already
            return
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as asyncio's servers do
        task = asyncio.create_task(self._serve(peer, context))
        self.connections.add(task)
        task.add_done_callback(self.connections.discard)

    async def _serve(self, peer: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, peer, ssl=context)
        except OSError:
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *rest = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in rest)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        place = urlsplit(target)
        request = Request(method, place.path, dict(parse_qsl(place.query)), headers, body)
        self.requests.append(request)
        found = self.answer(request)
        answer = found if isinstance(found, Answer) else await found
        if answer.hang:
            await asyncio.Event().wait()
        if answer.drop:
            return False
        if request.watches and answer.code == 200:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            stream = Stream(writer)
            if self.opened is not None:
                await self.opened(request, stream)
            self.streams.put_nowait(stream)
            await stream.ended.wait()
            return True
        content = b"" if answer.body is None else json.dumps(answer.body).encode()
        lines = "".join(f"{key}: {value}\r\n" for key, value in answer.headers.items())
        writer.write(
            f"HTTP/1.1 {answer.code} X\r\n{lines}Content-Length: {len(content)}\r\n\r\n".encode() + content
        )
        await writer.drain()
        return True


@asynccontextmanager
async def api_server() -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def quick() -> Backoff:
    """Pauses of 10 to 40 ms."""
    return Backoff(0.01, 0.04, lambda: 1.0)


def node(version: int, **labels: str) -> dict[str, Any]:
    """A Node named ``n1``, as JSON."""
    meta = {
        "name": "n1",
        "uid": "u1",
        "resourceVersion": str(version),
        "labels": labels,
        "managedFields": [{}],
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": {"images": []}}


def listed(version: int, **labels: str) -> Answer:
    return Answer(
        {
            "kind": "NodeList",
            "metadata": {"resourceVersion": str(version)},
            "items": [node(version, **labels)],
        }
    )


def status(code: int, reason: str = "", message: str = "", **more: Any) -> Answer:
    headers = {"Retry-After": str(more.pop("after"))} if "after" in more else {}
    return Answer(
        {"kind": "Status", "code": code, "reason": reason, "message": message, **more}, code, headers
    )
