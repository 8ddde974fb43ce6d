"""The address of HTTP: taken, printed, and served until a signal comes."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket

import click

from partage.errors import InputError

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


async def interrupted() -> None:
    """Wait for SIGINT or SIGTERM."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
