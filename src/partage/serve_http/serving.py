"""Where HTTP is served: its address taken and printed, and a service and its server that run until a signal
comes.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

import click

from partage.errors import InputError
from partage.serve_http.http import MOST_CLIENTS, HttpServer, Page
from partage.serve_http.http_access import HttpAccess

log = logging.getLogger(__name__)


def listen(address: str) -> socket.socket:
    """A listening socket. Raises InputError for an address that is wrong or in use."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InputError(
            f"--http {address!r} is not HOST:PORT", "for example 127.0.0.1:9400, or :0 for any port"
        )
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise InputError(f"cannot listen on {address}: {error.strerror or error}") from error


def say_url(host: str, port: int, scheme: str = "http") -> None:
    """Print where HTTP is served, one line on stdout."""
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        click.echo(url)
    except OSError as error:  # stdout is closed; the agent runs all the same
        log.warning("url cannot be printed", extra={"url": url, "reason": error.strerror})


def until_signal() -> asyncio.Event:
    """Set by SIGINT or SIGTERM, from this call on: who reads the printed URL may end the program at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


async def serve_while(
    work: Coroutine[Any, Any, object],
    http: str,
    pages: Mapping[str, Page],
    access: HttpAccess,
    posts: Collection[str] = (),
    *,
    most_clients: int = MOST_CLIENTS,
    linger_s: float = 0.0,
) -> None:
    """Serve pages at an address while the work is done. linger_s: how long it goes on after a signal, because
    others have not heard yet that it ends. Raises what the work raises, InputError for the address.
    """
    try:
        listening = listen(http)
    except BaseException:
        work.close()
        raise
    host, port = listening.getsockname()[:2]
    server = HttpServer(listening, pages, access, posts, most_clients=most_clients)
    stop = until_signal()
    say_url(host, port, access.scheme)
    run, signal = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({run, signal}, return_when=asyncio.FIRST_COMPLETED)
        if not run.done() and linger_s:
            await asyncio.wait({run}, timeout=linger_s)
        if run.done():
            run.result()
    finally:
        server.close()
        run.cancel()
        signal.cancel()
        await asyncio.wait({run, signal})
