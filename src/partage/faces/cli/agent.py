"""``partage agent``: run the node.

The helper is started before the rest of the agent is imported; HTTP is imported after the first registration.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage.agent import log
from partage.agent.settings import KUBELET_DIR, RUN_DIR, STATE_DIR, Settings
from partage.edges.hardware.remote import RemoteHardware
from partage.errors import InputError
from partage.faces.cli.common import machine_option, policy_options
from partage.faces.cli.hardware import helper_argv

if TYPE_CHECKING:
    from partage.agent.board import Board
    from partage.faces.http import HttpFace

_REGISTERS_WITHIN_S, _LOOK_EVERY_S = 1.0, 0.05
_LEVELS = ("debug", "info", "warning", "error")


def _directory(
    option: str, default: Path | None, text: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    shown = f" ({default})" if default is not None else ""
    return click.option(
        option, type=click.Path(path_type=Path), default=default, metavar="PATH", help=text + shown
    )


@click.command("agent", short_help="Run the node.")
@policy_options
@machine_option
@_directory("--kubelet-dir", KUBELET_DIR, "The kubelet's device-plugins directory")
@_directory(
    "--pod-resources", None, "The kubelet's PodResources socket (<kubelet-dir>/../pod-resources/kubelet.sock)"
)
@_directory("--state-dir", STATE_DIR, "Survives a reboot: last good policy, what GPUs serve, health")
@_directory("--run-dir", RUN_DIR, "Does not: the helper's socket, the report")
@_directory("--cdi-dir", Path("/var/run/cdi"), "Where the container runtime looks for CDI specs")
@_directory("--driver-root", None, "Where the driver is installed; overrules the policy")
@_directory("--hardware-socket", None, "A helper that somebody else runs, in place of one of our own")
@click.option(
    "--http", metavar="HOST:PORT", help="Serve /metrics, /healthz, /livez and /report.json; port 0: any."
)
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True)
def command(
    *,
    policy: str | None,
    config: str | None,
    machine: str | None,
    kubelet_dir: Path,
    pod_resources: Path | None,
    state_dir: Path,
    run_dir: Path,
    cdi_dir: Path,
    driver_root: Path | None,
    hardware_socket: Path | None,
    http: str | None,
    log_level: str,
) -> None:
    """Run the node: offer its GPUs to the kubelet, as the policy says.

    The policy file is read again when its content changes. Runs until SIGTERM or SIGINT.
    """
    log.configure(log_level)
    if policy == "-":
        raise InputError("the agent watches its policy, and standard input cannot be watched", "name a file")
    settings = Settings(
        kubelet_dir=kubelet_dir.absolute(),
        pod_resources=(pod_resources or kubelet_dir.parent / "pod-resources" / "kubelet.sock").absolute(),
        state_dir=state_dir.absolute(),
        run_dir=run_dir.absolute(),
        cdi_dir=cdi_dir.absolute(),
        policy=Path(policy) if policy is not None else None,
        config=config,
        environ=os.environ,
        driver_root=str(driver_root) if driver_root is not None else None,
    )
    listening = None if http is None else listen(http)
    hardware = _hardware(settings, machine, hardware_socket)
    asyncio.run(_run(settings, hardware, listening))


def listen(address: str) -> socket.socket:
    """A listening socket. Raises InputError for an address that is none, or is taken."""
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


def _hardware(settings: Settings, machine: str | None, hardware_socket: Path | None) -> RemoteHardware:
    """The helper: ours, which is started with the first question, or somebody else's."""
    if hardware_socket is not None:
        if machine is not None:
            raise InputError("--machine and --hardware-socket exclude each other")
        return RemoteHardware(hardware_socket.absolute())
    path = settings.run_dir / "hardware.sock"
    try:
        settings.run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make --run-dir {settings.run_dir}: {error.strerror}") from error
    argv = helper_argv(path, machine=machine, driver_root=settings.driver_root or "/")
    return RemoteHardware(path, argv)


async def _run(settings: Settings, hardware: RemoteHardware, listening: socket.socket | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    hardware.start()
    await asyncio.sleep(0)  # the helper begins here, and imports what it needs while we do
    from partage.agent.compose import run

    async def beside(board: Board) -> None:
        await _faces(board, settings, hardware, listening)

    try:
        await run(settings, hardware, stop=stop, beside=beside)
    finally:
        await hardware.close()


async def _faces(
    board: Board, settings: Settings, hardware: RemoteHardware, listening: socket.socket | None
) -> None:
    """HTTP and the report file, once the kubelet knows us: it shall not wait for them."""
    if listening is not None:
        host, port = listening.getsockname()[:2]
        click.echo(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    await _first_registration(board)
    http: HttpFace | None = None
    try:
        if listening is not None:
            http = await asyncio.to_thread(_serve, listening, board, settings, hardware)
        await _keep_report_file(board, settings)
    finally:
        if http is not None:
            http.close()


async def _first_registration(board: Board) -> None:
    for _ in range(round(_REGISTERS_WITHIN_S / _LOOK_EVERY_S)):
        if any(state.registered for state in board.endpoints()):
            return
        await asyncio.sleep(_LOOK_EVERY_S)


def _serve(listening: socket.socket, board: Board, settings: Settings, hardware: RemoteHardware) -> HttpFace:
    from partage.faces.http import HttpFace, agent_pages

    return HttpFace(listening, agent_pages(board, settings.intervals, lambda: hardware.state))


async def _keep_report_file(board: Board, settings: Settings) -> None:
    """Write the report when it says something new, for ever. Where it cannot be, a warning says so."""
    import logging

    from partage.faces.report import ReportFile

    file = ReportFile(board, settings.intervals, settings.report_file)
    trouble = ""
    while True:
        problem = await asyncio.to_thread(file.renew)
        if problem and problem != trouble:
            logging.getLogger(__name__).warning("report cannot be written", extra={"reason": problem})
        trouble = problem
        await asyncio.sleep(settings.intervals.report_s)
