"""HTTP servers that misbehave, each in its own way, and never by themselves stop."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
MORE = b"x" * 65536

Speak = Callable[[socket.socket, threading.Event], None]


def _then(beginning: bytes, again: bytes = b"", pause_s: float = 0.0) -> Speak:
    """Say the beginning, and then the same again and again; without ``again`` nothing, and do not hang up."""

    def speak(client: socket.socket, stop: threading.Event) -> None:
        client.sendall(beginning)
        while not stop.wait(pause_s or (0.0 if again else 60.0)):
            client.sendall(again)

    return speak


def and_end(content: bytes) -> Speak:
    return lambda client, _: client.sendall(content)


SERVERS: dict[str, Speak] = {
    "says nothing": _then(b""),
    "a byte now and then": _then(HEAD + b"Content-Length: 1000000\r\n\r\n", b" ", 0.02),
    "a byte of its head now and then": _then(b"", b"H", 0.02),
    "a chunk of length -5": and_end(CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n"),
    "a chunk of length -1": _then(CHUNKED + b"-1\r\n", MORE),
    "a chunk of 20 digits": _then(CHUNKED + b"F" * 20 + b"\r\n", MORE),
    "a chunk of 40 digits": _then(CHUNKED + b"F" * 40 + b"\r\n", MORE),
    "chunks without end": _then(CHUNKED, b"10000\r\n" + MORE + b"\r\n"),
    "chunks of a byte without end": _then(CHUNKED, b"1\r\nx\r\n" * 1000),
    "trailers without end": _then(CHUNKED + b"0\r\n", b"a: b\r\n" * 1000),
    "an absurd length": _then(HEAD + b"Content-Length: 99999999999999999999\r\n\r\n", MORE),
    "a negative length": _then(HEAD + b"Content-Length: -1\r\n\r\n", MORE),
    "two lengths": _then(HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", MORE),
    "a body without end": _then(HEAD + b"\r\n", MORE),
    "headers without end": _then(HEAD, b"a: b\r\n" * 1000),
    "a header without end": _then(HEAD + b"a: ", MORE),
    "continue without end": _then(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "less than it said": and_end(HEAD + b"Content-Length: 1000\r\n\r\n{}"),
    "no HTTP": and_end(b"220 smtp\r\n"),
    "nothing at all": and_end(b""),
}


@contextmanager
def misbehaving(speak: Speak) -> Iterator[str]:
    """Its URL."""
    stop = threading.Event()
    clients: list[threading.Thread] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(10)
            client.recv(65536)
            speak(client, stop)

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            clients.append(threading.Thread(target=serve, args=(client,), daemon=True))
            clients[-1].start()

    accepts = threading.Thread(target=accept, daemon=True)
    accepts.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        stop.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for thread in (accepts, *clients):
            thread.join(10)
