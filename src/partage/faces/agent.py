"""The agent with signals, HTTP and the report file. Imported while the helper starts."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from partage.agent.compose import run
from partage.agent.log import configure
from partage.agent.options import AgentOptions
from partage.agent.status.status import AgentStatus
from partage.edges.hardware.helper_client import RemoteHardware
from partage.edges.ticks import until_tick
from partage.errors import InputError
from partage.faces.lean_imports import lean_imports

if TYPE_CHECKING:
    from partage.faces.http import HttpFace

_REGISTERS_WITHIN_S, _LOOK_EVERY_S = 1.0, 0.05

log = logging.getLogger(__name__)


def serve(
    options: AgentOptions, hardware_of: Callable[[], RemoteHardware], http: str | None, log_level: str
) -> None:
    """Run the agent until SIGTERM or SIGINT. Raises what ``agent.compose.run`` does."""
    configure(log_level)
    listening = None if http is None else listen(http)
    asyncio.run(_run(options, hardware_of, listening))


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


async def _run(
    options: AgentOptions, hardware_of: Callable[[], RemoteHardware], listening: socket.socket | None
) -> None:
    hardware = hardware_of()
    hardware.start()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    # NVIDIA's config-manager sends SIGHUP after a change; the file is watched anyway.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: None)

    async def beside(status: AgentStatus) -> None:
        await _faces(status, options, hardware, listening)

    try:
        await run(options, hardware, stop=stop, beside=beside)
    finally:
        await hardware.close()


async def _faces(
    status: AgentStatus, options: AgentOptions, hardware: RemoteHardware, listening: socket.socket | None
) -> None:
    """HTTP and the report file, after the first registration, which must not wait for them."""
    status.helper_trouble = lambda: hardware.state.trouble
    if listening is not None:
        say_url(*listening.getsockname()[:2])
    await _first_registration(status)
    http = None
    try:
        if listening is not None:
            http = await asyncio.to_thread(_http, listening, status, options, hardware)
        _freeze_imports()
        await _write_report_file(status, options)
    finally:
        if http is not None:
            http.close()


def say_url(host: str, port: int) -> None:
    """Print where HTTP is served, one line on stdout."""
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        click.echo(url)
    except OSError as error:  # stdout is closed; the agent runs all the same
        log.warning("url cannot be printed", extra={"url": url, "reason": error.strerror})


async def _first_registration(status: AgentStatus) -> None:
    for _ in range(round(_REGISTERS_WITHIN_S / _LOOK_EVERY_S)):
        if any(state.registered for state in status.endpoints()):
            return
        await asyncio.sleep(_LOOK_EVERY_S)


def _http(
    listening: socket.socket, status: AgentStatus, options: AgentOptions, hardware: RemoteHardware
) -> HttpFace:
    with lean_imports():
        from partage.faces.http import HttpFace, agent_pages

    return HttpFace(listening, agent_pages(status, options.intervals, lambda: hardware.state))


def _freeze_imports() -> None:
    """Exclude all objects so far from garbage collection: a collection took 20 ms, in which no pod is
    served."""
    gc.collect()
    gc.freeze()
    gc.enable()


async def _write_report_file(status: AgentStatus, options: AgentOptions) -> None:
    """Write the report whenever it changes; log a warning if that fails."""
    from partage.faces.report import ReportFile

    file = ReportFile(status, options.intervals, options.report_file)
    trouble = ""
    while True:
        if file.is_outdated():
            problem = await asyncio.to_thread(file.renew)
            if problem and problem != trouble:
                log.warning("report cannot be written", extra={"reason": problem})
            trouble = problem
        await until_tick(options.intervals.report_s)
