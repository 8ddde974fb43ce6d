"""A service and its server, which run until a signal comes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from partage.serve_http.http import MOST_CLIENTS, HttpServer, Page
from partage.serve_http.http_access import HttpAccess, listen, say_url


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
