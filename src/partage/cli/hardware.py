"""``partage hardware``: the agent's privileged helper, one GPU driver behind one socket.

The agent starts it as ``python -m partage.cli.hardware``, which imports neither click nor TLS: a
helper that was killed during a hanging driver call must be back quickly, and importing click takes
30 ms. This is the only verb that reads its options itself (``hardware_options``); its errors look like those
of the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from partage.text import printable

if TYPE_CHECKING:
    import asyncio

    import click

    from partage.cli.hardware_options import HardwareOptions
    from partage.edges.hardware.port import Hardware
    from partage.edges.mps.keeper import MpsKeeper
    from partage.errors import PartageError

_HUNG = 4


def helper_argv(
    socket_path: str | Path,
    *,
    machine: str | None = None,
    driver_root: str | Path = "/",
    run_dir: str | Path = "/run/partage",
) -> list[str]:
    """The command line with which the agent starts its helper.

    The helper ends with its standard input. ``-P``: nothing is imported from the directory it starts in.
    """
    simulated = ["--machine", machine] if machine is not None else []
    where = ["--driver-root", str(driver_root), "--run-dir", str(run_dir)]
    options = ["--socket", str(socket_path), *where, "--until-eof"]
    return [sys.executable, "-P", "-m", "partage.cli.hardware", *options, *simulated]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the helper, and end the process with its exit code.

    At once: a thread may wait for events in the driver, which must not be unloaded below it, and the end of
    the interpreter takes 50 ms.
    """
    from partage.cli.hardware_options import parse, usage
    from partage.errors import InputError

    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
    except InputError as error:
        _say(error)
        sys.exit(error.exit_code)
    if options.help:
        sys.stdout.write(usage())
        sys.exit()
    os._exit(_run(options))


def _run(options: HardwareOptions) -> int:
    import asyncio

    from partage.agent import log
    from partage.answers.process_start import umask_of_a_service
    from partage.errors import PartageError

    umask_of_a_service()
    log.configure()
    try:
        if options.no_network:
            from partage.edges.hardware.helper_server import leave_network

            leave_network()
        runner = asyncio.Runner()
        os._exit(runner.run(_serve(options)))  # the loop is not closed: nobody waits for its threads
    except PartageError as error:
        _say(error)
        return error.exit_code


def _say(error: PartageError) -> None:
    for problem in error.problems:
        sys.stderr.write(f"{printable(f'{problem.severity}: {problem}')}\n")


async def _serve(options: HardwareOptions) -> int:
    import asyncio
    import signal

    from partage.edges.hardware.helper_server import HelperServer

    why_not_allowed = _peer_check(options)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.until_eof:
        _stop_at_end_of_input(loop, stop)
    hardware = _hardware(options)
    cold_s = getattr(hardware, "cold_s", None)  # a simulated node has no GPU that could be cold
    server = HelperServer(
        hardware,
        allowed_uids=frozenset(options.allow_uid),
        why_not_allowed=why_not_allowed,
        cold_s=cold_s,
    )
    if not await server.run(options.socket, stop):
        return _HUNG  # the thread that hangs in the driver cannot be closed, only left
    await hardware.close()
    return 0


def _peer_check(options: HardwareOptions) -> Callable[[int], str]:
    """Why a peer's process is refused, as ``--allow-container`` says. Raises InputError for a wrong value."""
    if options.allow_container is None:
        return lambda _: ""
    from functools import partial

    from partage.edges.kubelet.container_names import parse_allowed_container, why_not_allowed

    allowed = parse_allowed_container(options.allow_container)
    return partial(why_not_allowed, allowed, proc=Path("/proc"), logs=options.container_logs)


def _hardware(options: HardwareOptions) -> Hardware:
    """The real or the simulated node; only one of them is imported."""
    from functools import partial

    if options.machine is not None:
        from partage.sim.node.files.load import load_machine
        from partage.sim.node.hardware import SimulatedHardware

        real_left = None
        if options.allow_container:  # its pods are real
            from partage.edges.hardware.left_processes import left_of

            real_left = partial(left_of, Path("/proc"))
        return SimulatedHardware(load_machine(options.machine), real_left=real_left)
    from partage.answers.unknown_models import lacks_geometry
    from partage.edges.hardware.driver_pause import read_pause
    from partage.edges.hardware.nvml import NvmlHardware
    from partage.edges.mps.lazy_keeper import KeeperOnDemand

    keeper = KeeperOnDemand(options.run_dir, lambda: _keeper(options))
    paused = partial(read_pause, options.run_dir)
    return NvmlHardware(options.driver_root, keeper=keeper, lacks_geometry=lacks_geometry, paused=paused)


def _keeper(options: HardwareOptions) -> MpsKeeper:
    from partage.answers.process_start import lean_imports

    with lean_imports():
        from partage.edges.mps.home import DaemonHost
        from partage.edges.mps.keeper import MpsKeeper

    host = DaemonHost(choice=options.mps_daemons)
    on_node = options.driver_root_on_node
    return MpsKeeper(options.run_dir, options.driver_root, driver_on_node=on_node, host=host)


def _stop_at_end_of_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop when the parent process has ended: the kernel closes its end of the pipe."""

    def readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop.set()

    try:
        loop.add_reader(0, readable)
    except PermissionError:
        stop.set()  # /dev/null and files cannot be polled: they are at their end


def __getattr__(name: str) -> click.Command:
    """``command``, for ``partage hardware``: made when asked for, so that the module stands without click."""
    if name != "command":
        raise AttributeError(name)
    import click

    @click.command("hardware", add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        from partage.answers.process_start import lean_imports

        with lean_imports():
            main(arguments)

    return command


if __name__ == "__main__":
    from partage.answers.process_start import lean_imports

    with lean_imports():
        main()
