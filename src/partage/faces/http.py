"""``/metrics``, ``/healthz``, ``/livez`` and ``/report.json``: the last report, read by a thread of its own.

The thread holds no lock and asks the loop nothing, so it also answers while the loop hangs, which is when a
probe matters. Imported after the agent has registered: ``http.server`` costs 30 ms.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from partage import __version__
from partage.agent.options import Intervals
from partage.agent.status.readiness import Readiness, readiness_of, stall_reason
from partage.agent.status.status import AgentStatus
from partage.codec.values import encode_replacing
from partage.edges.hardware.supervisor import HelperState
from partage.faces.report import health_document, report_document

Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""

Page = Callable[[], Answer]

_IDLE_CLIENT_S = 10.0
"""How long a client may send nothing, in seconds."""
MOST_CLIENTS = 32
"""Connections at a time. Probes and scrapers need a few; each takes a thread and a descriptor."""
RESERVED_DESCRIPTORS = 64
"""So many descriptors are left for the kubelet, the helper and files, also if something else takes them."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 1.0
"""How long nobody is accepted when the system is exhausted."""
_STOP_WITHIN_S = 1.0

log = logging.getLogger(__name__)


def json_answer(document: object, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """A JSON document."""
    return status, "application/json; charset=utf-8", encode_replacing(document) + b"\n"


class _Server(ThreadingHTTPServer):
    """Takes over a socket that is already bound, so that a bad address is known before anything starts."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, pages: Mapping[str, Page]) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.pages = pages
        self.closing = threading.Event()
        self._room = threading.Condition()
        self._clients: dict[socket.socket, None] = {}  # the one that was silent for longest is the first
        most_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._reserved_from = max(most_descriptors - RESERVED_DESCRIPTORS, most_descriptors // 2)

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next client. Without a descriptor for it, it would be announced again and again: a pause."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self.closing.wait(_PAUSE_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401, ARG002 - the base class's
        """Make room for the client: one that has been silent for longer is cut off. False: there is no
        room."""
        with self._room:
            if len(self._clients) >= MOST_CLIENTS:
                with contextlib.suppress(OSError):
                    next(iter(self._clients)).shutdown(socket.SHUT_RDWR)  # its thread ends, and says so
                self._room.wait_for(lambda: len(self._clients) < MOST_CLIENTS, _PAUSE_S)
            room = len(self._clients) < MOST_CLIENTS and request.fileno() < self._reserved_from
            if room:
                self._clients[request] = None
            return room

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
        """A client that hangs up is not worth a traceback; a page that fails is a bug."""
        if not isinstance(sys.exception(), OSError):
            log.exception("a page failed", extra={"client": str(client_address)})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = f"partage/{__version__}"
    sys_version = ""
    timeout = _IDLE_CLIENT_S
    server: _Server

    def do_GET(self) -> None:
        """Answer, with the body."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer, without it."""
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        self.server.active(self.connection)
        status, content_type, body = self._page()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _page(self) -> Answer:
        path = self.path.partition("?")[0]
        page = self.server.pages.get(path)
        if page is not None:
            return page()
        paths = {"error": f"there is no {path[:200]}", "paths": sorted(self.server.pages)}
        return json_answer(paths, HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Probes and scrapes are not news."""


class HttpFace:
    """Serves pages on a listening socket, on a daemon thread, until it is closed."""

    def __init__(self, listening: socket.socket, pages: Mapping[str, Page]) -> None:
        self._listening = listening
        self._server = _Server(listening, pages)
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


def agent_pages(
    status: AgentStatus, intervals: Intervals, helper: Callable[[], HelperState] | None
) -> dict[str, Page]:
    """What the agent serves. helper: None where the hardware is in the agent's own process."""
    metrics: list[Callable[[], bytes]] = []

    def metrics_page() -> Answer:
        if not metrics:
            from partage.agent.status.metrics import (
                metrics_writer,  # at the first scrape: not every node is scraped
            )

            metrics.append(metrics_writer(status, intervals, helper))
        return HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", metrics[0]()

    def report_page() -> Answer:
        report = status.report
        if report is None:
            return json_answer({"error": "no report yet"}, HTTPStatus.SERVICE_UNAVAILABLE)
        return json_answer(report_document(report, status, readiness_of(status, intervals)))

    def health_page() -> Answer:
        readiness = readiness_of(status, intervals)
        return json_answer(health_document(readiness), _status(well=not readiness.not_well))

    def life_page() -> Answer:
        reason = stall_reason(status, intervals)
        readiness = Readiness((reason,) if reason else (), ())
        return json_answer(health_document(readiness), _status(well=reason is None))

    return {
        "/metrics": metrics_page,
        "/report.json": report_page,
        "/healthz": health_page,
        "/livez": life_page,
    }


def _status(*, well: bool) -> HTTPStatus:
    return HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
