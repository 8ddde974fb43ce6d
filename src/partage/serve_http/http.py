"""The HTTP server: pages by path, each answered by a thread of its own.

The thread holds no lock and asks the loop nothing, so it also answers while the loop hangs, which is when a
probe matters. h11 has the protocol, socketserver the threads: ``http.server`` takes 1.4 MiB more, because it
reads headers with a library for mail (docs/adr/0004). Imported after the agent has registered.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import select
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import h11
from msgspec import field

from partage import __version__
from partage.agent.log import Seldom
from partage.codec.values import encode_replacing
from partage.serve_http.http_access import CONTENT_SECURITY_POLICY, AskedBy, HttpAccess, HttpOptions
from partage.values import Frozen

Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""


class PageRequest(Frozen):
    """What a page is asked. query: the last value of each name. accept: the header ``Accept``. body: of a
    POST.
    """

    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    accept: str = ""
    body: bytes = b""


class Stream(Frozen):
    """An answer without an end: server-sent events, until the client goes, or the server stops.

    events: the data of each event, one line; empty: nothing new. It waits by itself, and asks whether the
    server still runs.
    """

    events: Callable[[Callable[[], bool]], Iterator[str]]


Page = Callable[[PageRequest], Answer | Stream]

_IDLE_CLIENT_S = 10.0
"""How long a client may send nothing, in seconds."""
MOST_CLIENTS = 32
"""Connections at a time. Probes and scrapers need a few; each takes a thread and a descriptor."""
MOST_STREAMS = 8
"""Live pages at a time: each keeps a connection."""
RESERVED_DESCRIPTORS = 64
"""So many descriptors are left for the kubelet, the helper and files, also if something else takes them."""
BODY_WITHIN_S = 30.0
"""How long a whole body may take, in seconds."""
_READ_BYTES = 1 << 16
MOST_BODY = 8 << 20
"""Bytes of a body."""
_SMALL_BODY = 1 << 20
MOST_LARGE_BODIES = 4
"""Bodies above _SMALL_BODY at a time: together they take no more than this process can spare."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 1.0
"""How long nobody is accepted when the system is exhausted."""
_STOP_WITHIN_S = 1.0
_CHALLENGE = ("WWW-Authenticate", 'Basic realm="partage: any name, the token as password"')

log = logging.getLogger(__name__)


def json_answer(document: object, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """A JSON document."""
    return status, "application/json; charset=utf-8", encode_replacing(document) + b"\n"


def ready_answer(waits_for: Sequence[str]) -> Answer:
    """Whether a service can answer. waits_for: why not yet, sentences."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if waits_for else HTTPStatus.OK
    return json_answer({"ready": not waits_for, "waitsFor": waits_for}, status)


def alive_answer(*, alive: bool) -> Answer:
    """Whether a service turns."""
    return json_answer({"alive": alive}, HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE)


class _BoundServer(socketserver.ThreadingTCPServer):
    """Takes over a socket that is already bound, so that a bad address is known before anything starts."""

    daemon_threads = True

    def __init__(
        self,
        listening: socket.socket,
        pages: Mapping[str, Page],
        access: HttpAccess,
        posts: Collection[str],
        *,
        most_clients: int,
        body_within_s: float,
    ) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.posts, self.body_within_s = posts, body_within_s
        self.large_bodies = threading.BoundedSemaphore(MOST_LARGE_BODIES)
        self.socket.close()
        self.socket = listening
        self.pages = pages
        self.access = access
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        self.closing = threading.Event()
        self._failures, self._failed_tls = Seldom(), Seldom()
        self._room = threading.Condition()
        self._most_clients = most_clients
        self._clients: dict[socket.socket, None] = {}  # the one that was silent for longest is the first
        self._answered: set[socket.socket] = set()  # their answers are being made: they are not cut off
        most_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._reserved_from = max(most_descriptors - RESERVED_DESCRIPTORS, most_descriptors // 2)

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next client. Without a descriptor for it, it would be announced again and again: a pause."""
        try:
            client, address = super().get_request()
            try:
                return self._secured(client, address)
            except OSError:
                client.close()
                raise
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self.closing.wait(_PAUSE_S)
            raise

    def _secured(self, client: socket.socket, address: Any) -> tuple[socket.socket, Any]:  # noqa: ANN401
        """With TLS, where there is TLS. Its handshake is in the client's own thread."""
        tls = self.access.tls()
        if tls is not None:
            client = tls.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
        return client, address

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401, ARG002 - the base class's
        """Make room for the client: one that has been silent for longer is cut off. False: there is no
        room."""
        with self._room:
            if self._full:
                silent = next((client for client in self._clients if client not in self._answered), None)
                if silent is not None:
                    with contextlib.suppress(OSError):
                        # Its thread ends, and says so. Not SSLSocket's own, which takes TLS from under it.
                        socket.socket.shutdown(silent, socket.SHUT_RDWR)
                self._room.wait_for(lambda: not self._full, _PAUSE_S)
            room = not self._full and request.fileno() < self._reserved_from
            if room:
                self._clients[request] = None
            return room

    @property
    def _full(self) -> bool:
        return len(self._clients) >= self._most_clients

    @contextlib.contextmanager
    def answering(self, request: socket.socket) -> Iterator[None]:
        """The client waits for an answer that is being made."""
        with self._room:
            self._answered.add(request)
        try:
            yield
        finally:
            with self._room:
                self._answered.discard(request)

    def active(self, request: socket.socket) -> None:
        """The client has sent a request."""
        with self._room:
            self._clients.pop(request, None)
            self._clients[request] = None

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - the base class's
        """Close the connection."""
        super().shutdown_request(request)
        with self._room:
            self._clients.pop(request, None)
            self._room.notify()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the base class's
        """A client that hangs up is not worth a word, TLS that fails is worth one; a page that fails is a
        bug. A client can bring each of them about as often as it likes.
        """
        error = sys.exception()
        is_bug = not isinstance(error, OSError)
        of_tls = self.access.scheme == "https" and not isinstance(error, ConnectionError | TimeoutError)
        if not (is_bug or of_tls):
            return
        left_out = (self._failures if is_bug else self._failed_tls).left_out()
        if left_out is None:
            return
        extra = {"client": str(client_address), "left_out": left_out or None}
        if is_bug:
            log.exception("a page failed", extra=extra)
        else:
            log.warning("tls with a client failed", extra={**extra, "reason": str(error)})


class _Handler(socketserver.BaseRequestHandler):
    """One client, whose requests come one after the other."""

    server: _BoundServer

    def setup(self) -> None:
        """The handshake of TLS, in the client's own thread. Raises OSError."""
        self.request.settimeout(_IDLE_CLIENT_S)
        self._http = h11.Connection(h11.SERVER)
        self._certified = False
        if self.server.access.scheme == "https":
            self.request.do_handshake()
            # Later, when the connection has ended, it cannot be asked for any more.
            self._certified = bool(self.request.getpeercert())

    def handle(self) -> None:
        """Answer until the client goes, or has to. Raises OSError."""
        try:
            while (asked := self._next()) is not None:
                self.server.active(self.request)
                self._answer(asked)
                if self._http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                    return
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            self._send(*json_answer({"error": str(error)}, HTTPStatus(error.error_status_hint)), last=True)

    def _next(self) -> h11.Request | None:
        """The next request; None if there is none any more. Raises RemoteProtocolError."""
        self._is_head = False
        while not isinstance(event := self._http.next_event(), h11.Request):
            content = self.request.recv(_READ_BYTES)
            if not content:
                return None
            self._http.receive_data(content)
        return event

    def _answer(self, asked: h11.Request) -> None:
        self._is_head = asked.method == b"HEAD"
        headers: dict[bytes, list[str]] = {}
        for name, value in asked.headers:  # h11 writes all names in lower case
            headers.setdefault(name, []).append(value.decode("latin-1"))
        path, _, query = asked.target.decode("latin-1").partition("?")
        posted = asked.method == b"POST" and path in self.server.posts
        refused = self.server.access.refusal(self._asked_by(path, headers, posted=posted))
        if refused is not None:
            malformed = refused.status is HTTPStatus.BAD_REQUEST  # where the next request begins is not known
            more = [_CHALLENGE] if refused.challenge else []
            self._send(*json_answer({"error": refused.reason}, refused.status), *more, last=malformed)
        elif posted:
            self._answer_post(path, query, headers)
        elif asked.method not in (b"GET", b"HEAD"):
            told = {"error": f"nothing here can be asked with {asked.method.decode()[:20]}"}
            self._send(*json_answer(told, HTTPStatus.NOT_IMPLEMENTED), last=True)
        else:
            self._http.next_event()  # the end of the request, which has no body
            answer = self._page(path, query, headers)
            if isinstance(answer, Stream):
                self._stream(answer)
            else:
                self._send(*answer)

    def _answer_post(self, path: str, query: str, headers: Mapping[bytes, Sequence[str]]) -> None:
        length = int(_one(headers, b"content-length") or MOST_BODY)  # h11 has seen to it that it is a number
        large = length > _SMALL_BODY
        if length > MOST_BODY:
            told = {"error": f"a body has at most {MOST_BODY >> 20} MiB"}
            self._send(*json_answer(told, HTTPStatus.REQUEST_ENTITY_TOO_LARGE), last=True)
        elif large and not self.server.large_bodies.acquire(timeout=_PAUSE_S):
            told = {"error": "too many large bodies at a time"}
            self._send(*json_answer(told, HTTPStatus.SERVICE_UNAVAILABLE), last=True)
        else:
            try:
                body = self._body()
                if body is None:
                    told = {"error": f"a body has at most {MOST_BODY >> 20} MiB"}
                    self._send(*json_answer(told, HTTPStatus.REQUEST_ENTITY_TOO_LARGE), last=True)
                    return
                with self.server.answering(self.request):
                    answer = self._page(path, query, headers, body)
                assert not isinstance(answer, Stream), "no page that takes a body has no end"
                self._send(*answer)
            finally:
                if large:
                    self.server.large_bodies.release()

    def _body(self) -> bytes | None:
        """The whole body; None: it is too long. Raises RemoteProtocolError, OSError."""
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            self.request.sendall(self._http.send(go_on) or b"")
        body = bytearray()
        until_s = time.monotonic() + self.server.body_within_s
        while not isinstance(event := self._http.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > MOST_BODY:
                    return None
            else:
                if time.monotonic() > until_s:
                    raise TimeoutError("the body did not come in time")
                # h11 tells that the connection has ended too early.
                self._http.receive_data(self.request.recv(_READ_BYTES))
        return bytes(body)

    def _send(
        self,
        status: HTTPStatus,
        content_type: str,
        body: bytes,
        *more: tuple[str, str],
        last: bool = False,
    ) -> None:
        """A whole answer. last: of this connection."""
        headers = [*_headers(content_type), *more, ("Content-Length", str(len(body)))]
        begun = self._begin(status, headers, last=last)
        content = b"" if self._is_head else self._http.send(h11.Data(body)) or b""
        self.request.sendall(begun + content + (self._http.send(h11.EndOfMessage()) or b""))

    def _begin(self, status: HTTPStatus, headers: list[tuple[str, str]], *, last: bool) -> bytes:
        closing = [("Connection", "close")] if last else []
        answer = h11.Response(status_code=status, reason=status.phrase, headers=[*headers, *closing])
        return self._http.send(answer) or b""

    def _stream(self, stream: Stream) -> None:
        """Send events until the client goes, or the server stops."""
        if not self.server.streams.acquire(blocking=False):
            told = {"error": "too many live pages are open"}
            self._send(*json_answer(told, HTTPStatus.SERVICE_UNAVAILABLE), last=True)
            return
        try:
            self.request.sendall(self._begin(HTTPStatus.OK, _headers("text/event-stream"), last=True))
            for data in () if self._is_head else stream.events(self._goes_on):
                self.server.active(self.request)
                event = f"data: {data}\n\n".encode() if data else b":\n\n"
                self.request.sendall(self._http.send(h11.Data(event)) or b"")
            self.request.sendall(self._http.send(h11.EndOfMessage()) or b"")
        finally:
            self.server.streams.release()

    def _goes_on(self) -> bool:
        """Whether the server runs and the client is there. A page that was left makes room for the next one
        at once, and not when the next event cannot be written.
        """
        poll = select.poll()
        poll.register(self.request, select.POLLRDHUP)
        return not self.server.closing.is_set() and not poll.poll(0)

    def _asked_by(self, path: str, headers: Mapping[bytes, Sequence[str]], *, posted: bool) -> AskedBy:
        """What decides whether it is answered. h11 has refused what is no header, and a second Host."""
        malformed = ""
        if len(headers.get(b"authorization", ())) > 1:  # a proxy may take another one than this server
            malformed = "a request has one Authorization"
        elif posted:
            pass
        elif b"transfer-encoding" in headers or headers.get(b"content-length", ["0"]) != ["0"]:
            malformed = "nothing here takes a body"
        return AskedBy(
            path=path,
            host=_one(headers, b"host"),
            authorization=_one(headers, b"authorization"),
            malformed=malformed,
            certified=self._certified,
        )

    def _page(
        self, path: str, query: str, headers: Mapping[bytes, Sequence[str]], body: bytes = b""
    ) -> Answer | Stream:
        page = self.server.pages.get(path)
        if page is not None:
            asked = dict(parse_qsl(query, keep_blank_values=True))
            return page(PageRequest(path, asked, _one(headers, b"accept"), body))
        paths = {"error": f"there is no {path[:200]}", "paths": sorted(self.server.pages)}
        return json_answer(paths, HTTPStatus.NOT_FOUND)


def _one(headers: Mapping[bytes, Sequence[str]], name: bytes) -> str:
    return next(iter(headers.get(name, ())), "")


def _headers(content_type: str) -> list[tuple[str, str]]:
    headers = [
        ("Server", f"partage/{__version__}"),
        ("Date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())),
        ("Content-Type", content_type),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    if content_type.startswith("text/html"):
        headers += [("Content-Security-Policy", CONTENT_SECURITY_POLICY), ("Referrer-Policy", "no-referrer")]
    return headers


class HttpServer:
    """Serves pages on a listening socket, on a daemon thread, until it is closed. posts: paths of those pages
    that take a POST, with a body of at most ``MOST_BODY``. most_clients: connections at a time.
    body_within_s: how long a whole body may take.
    """

    def __init__(
        self,
        listening: socket.socket,
        pages: Mapping[str, Page],
        access: HttpAccess | None = None,
        posts: Collection[str] = (),
        *,
        most_clients: int = MOST_CLIENTS,
        body_within_s: float = BODY_WITHIN_S,
    ) -> None:
        self._listening = listening
        access = access or HttpAccess(HttpOptions())
        self._server = _BoundServer(
            listening, pages, access, posts, most_clients=most_clients, body_within_s=body_within_s
        )
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # Not serve_forever, which wakes up regularly to check whether to stop. This waits for a client.
        while not self._server.closing.is_set():
            self._server.handle_request()

    def close(self) -> None:
        """Stop listening. Requests under way end with the process."""
        self._server.closing.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread up
        self._thread.join(_STOP_WITHIN_S)
        self._server.server_close()
