"""The agent with signals, HTTP and the report file. Imported while the helper starts."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, NamedTuple

from partage.agent.compose import run
from partage.agent.log import LogOptions, configure
from partage.agent.options import AgentOptions
from partage.agent.status.status import AgentStatus
from partage.agent.waiting import wait_at_most
from partage.answers.lean_imports import lean_imports
from partage.edges.hardware.helper_client import RemoteHardware
from partage.edges.host.ticks import until_tick
from partage.kubernetes.agent.connection import ClusterConnection
from partage.serve_http.http_access import HttpAccess, HttpOptions
from partage.serve_http.listen import listen, say_url
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.serve_http.http import HttpServer
    from partage.slurm.agent.options import SlurmOptions
    from partage.slurm.agent.status import SlurmStatus

_REGISTERS_WITHIN_S, _LOOK_EVERY_S = 1.0, 0.05

log = logging.getLogger(__name__)


class HttpAddress(Frozen):
    """The address of HTTP, ``HOST:PORT``, and who may read it."""

    address: str
    protection: HttpOptions


class Listening(NamedTuple):
    """The address, taken; who may read; the name of the node, for the title of the page."""

    socket: socket.socket
    access: HttpAccess
    node_name: str

    @classmethod
    def of(cls, http: HttpAddress, node_name: str) -> Listening:
        """Check the files, take the address. Raises InputError."""
        names = frozenset(name for name in (node_name, socket.gethostname()) if name)
        access = HttpAccess(http.protection, names)
        taken = listen(http.address)
        if http.protection.open and not taken.getsockname()[0].startswith(("127.", "::1")):
            log.warning(
                "http is open to everyone who reaches it, with names of pods",
                extra={"address": http.address, "hint": "--http-token-file, or --http-client-ca"},
            )
        return cls(taken, access, node_name)


def serve(
    options: AgentOptions,
    hardware_of: Callable[[], RemoteHardware],
    http: HttpAddress | None,
    logged: LogOptions,
) -> None:
    """Run the agent until SIGTERM or SIGINT. Raises what ``agent.compose.run`` does, and InputError for an
    address or files that cannot be used."""
    configure(logged)
    listening = None if http is None else Listening.of(http, options.node_name)
    asyncio.run(_run(options, hardware_of, listening))


def serve_slurm(
    options: AgentOptions,
    slurm: SlurmOptions,
    hardware_of: Callable[[], RemoteHardware],
    http: HttpAddress | None,
    logged: LogOptions,
) -> None:
    """Keep Slurm and the GPUs of this node the same until SIGTERM or SIGINT. Raises what
    ``agent.slurm.service.run`` does, and InputError for an address or files that cannot be used."""
    from partage.slurm.agent import service

    configure(logged)
    listening = None if http is None else Listening.of(http, slurm.node)

    async def run_it() -> None:
        hardware = hardware_of()
        hardware.start()

        def server(status: SlurmStatus) -> Coroutine[None, None, None]:
            assert listening is not None
            return _slurm_face(status, hardware, listening)

        try:
            await service.run(
                options, slurm, hardware, stop=_stop_event(), beside=server if listening else None
            )
        finally:
            await hardware.close()

    asyncio.run(run_it())


async def _slurm_face(status: SlurmStatus, hardware: RemoteHardware, listening: Listening) -> None:
    """HTTP of a compute node, until cancelled."""

    def opened() -> HttpServer:
        with lean_imports():
            from partage.serve_http.http import HttpServer
            from partage.slurm.pages import slurm_pages

        return HttpServer(listening.socket, slurm_pages(status, lambda: hardware.state), listening.access)

    host, port = listening.socket.getsockname()[:2]
    say_url(host, port, listening.access.scheme)
    http = await asyncio.to_thread(opened)
    try:
        await asyncio.Event().wait()
    finally:
        http.close()


def _stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT. NVIDIA's config-manager sends SIGHUP after a change; the policy file is
    watched anyway."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    return stop


async def _run(
    options: AgentOptions, hardware_of: Callable[[], RemoteHardware], listening: Listening | None
) -> None:
    hardware = hardware_of()
    hardware.start()
    stop = _stop_event()

    async def beside(status: AgentStatus) -> None:
        await _faces(status, options, hardware, listening)

    try:
        await run(options, hardware, stop=stop, beside=beside, connect=ClusterConnection)
    finally:
        await hardware.close()


async def _faces(
    status: AgentStatus, options: AgentOptions, hardware: RemoteHardware, listening: Listening | None
) -> None:
    """HTTP and the report file, after the first registration, which must not wait for them."""
    status.helper_trouble = lambda: hardware.state.trouble
    if listening is not None:
        host, port = listening.socket.getsockname()[:2]
        say_url(host, port, listening.access.scheme)
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


async def _first_registration(status: AgentStatus) -> None:
    for _ in range(round(_REGISTERS_WITHIN_S / _LOOK_EVERY_S)):
        if any(state.registered for state in status.endpoints()):
            return
        await asyncio.sleep(_LOOK_EVERY_S)


def _http(
    listening: Listening, status: AgentStatus, options: AgentOptions, hardware: RemoteHardware
) -> HttpServer:
    with lean_imports():
        from partage.serve_http.agent_pages import agent_pages
        from partage.serve_http.http import HttpServer

    pages = agent_pages(
        status, options.intervals, lambda: hardware.state, listening.node_name, options.dcgm_names
    )
    return HttpServer(listening.socket, pages, listening.access)


def _freeze_imports() -> None:
    """Exclude all objects so far from garbage collection: a collection took 20 ms, in which no pod is
    served."""
    gc.collect()
    gc.freeze()
    gc.enable()


async def _write_report_file(status: AgentStatus, options: AgentOptions) -> None:
    """Write the report whenever it changes; log a warning if that fails."""
    from partage.answers.report import ReportFile

    file = ReportFile(status, options.intervals, options.report_file)
    trouble = ""
    while True:
        if file.is_outdated():
            problem = await asyncio.to_thread(file.renew)
            if problem and problem != trouble:
                log.warning("report cannot be written", extra={"reason": problem})
            trouble = problem
            await until_tick(options.intervals.report_s)
            continue
        # What the kubelet has not accepted is a reason after some seconds, without another report.
        await wait_at_most(status.news, None if status.all_accepted else options.intervals.report_s)
