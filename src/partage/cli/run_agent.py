"""The agent with signals, HTTP and the report file. Imported while the helper starts."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from partage.agent.kubelet_service import run
from partage.agent.log import LogOptions, configure
from partage.agent.options import AgentOptions
from partage.agent.parts import NoClaims
from partage.agent.status.status import AgentStatus
from partage.agent.supervision import wait_at_most
from partage.answers.process_start import lean_imports
from partage.edges.hardware.helper_client import RemoteHardware
from partage.edges.host.waiting import until_tick
from partage.kubernetes.agent.connection import ClusterConnection
from partage.serve_http.http_access import HttpAccess, HttpOptions, listen, say_url
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.agent.parts import ConnectClaims
    from partage.serve_http.http import HttpServer
    from partage.slurm.agent.options import SlurmOptions

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
    slurm: SlurmOptions | None,
    hardware_of: Callable[[], RemoteHardware],
    http: HttpAddress | None,
    logged: LogOptions,
) -> None:
    """Run the agent until SIGTERM or SIGINT. slurm: of a compute node of Slurm; None: there is a kubelet.

    Raises what ``run`` of ``agent.kubelet_service`` or ``slurm.agent.service`` does, and InputError for an
    address or files that cannot be used."""
    configure(logged)
    name = options.node_name if slurm is None else slurm.node
    listening = None if http is None else Listening.of(http, name)
    asyncio.run(_run(options, slurm, hardware_of, listening))


def _stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT. NVIDIA's config-manager sends SIGHUP after a change; the policy file is
    watched anyway."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    return stop


def _claims(options: AgentOptions) -> ConnectClaims:
    """The DRA driver, where it is wanted: nobody else pays for its modules."""
    if not options.dra:
        return NoClaims
    with lean_imports(tls=True):
        from partage.claims.agent.part import ClaimsOfNode

    return ClaimsOfNode


async def _run(
    options: AgentOptions,
    slurm: SlurmOptions | None,
    hardware_of: Callable[[], RemoteHardware],
    listening: Listening | None,
) -> None:
    hardware = hardware_of()
    hardware.start()
    stop = _stop_event()

    async def beside(status: AgentStatus) -> None:
        await _faces(status, options, hardware, listening, of_slurm=slurm is not None)

    try:
        if slurm is None:
            await run(
                options,
                hardware,
                stop=stop,
                beside=beside,
                connect=ClusterConnection,
                connect_claims=_claims(options),
            )
        else:
            from partage.slurm.agent import service

            await service.run(options, slurm, hardware, stop=stop, beside=beside)
    finally:
        await hardware.close()


async def _faces(
    status: AgentStatus,
    options: AgentOptions,
    hardware: RemoteHardware,
    listening: Listening | None,
    *,
    of_slurm: bool,
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
            http = await asyncio.to_thread(_http, listening, status, options, hardware, of_slurm=of_slurm)
        _freeze_imports()
        await _write_report_file(status, options)
    finally:
        if http is not None:
            http.close()


async def _first_registration(status: AgentStatus) -> None:
    for _ in range(round(_REGISTERS_WITHIN_S / _LOOK_EVERY_S)):
        states = status.endpoints()
        if any(state.registered for state in states) or not states:
            return
        await asyncio.sleep(_LOOK_EVERY_S)


def _http(
    listening: Listening,
    status: AgentStatus,
    options: AgentOptions,
    hardware: RemoteHardware,
    *,
    of_slurm: bool,
) -> HttpServer:
    with lean_imports():
        from partage.serve_http.agent_pages import agent_pages
        from partage.serve_http.http import HttpServer

        if of_slurm:
            from partage.slurm.agent.service import import_metrics
        else:
            from partage.serve_http.agent_pages import import_metrics
    pages = agent_pages(
        status,
        options.intervals,
        lambda: hardware.state,
        listening.node_name,
        options.dcgm_names,
        metrics_of=import_metrics,
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
