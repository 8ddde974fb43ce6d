"""The options of ``partage hardware``, read with getopt: argparse is 1 MiB of every node's memory."""

from __future__ import annotations

import getopt
from collections.abc import Callable, Sequence
from pathlib import Path

from partage.errors import InputError
from partage.model.mps import HomeChoice
from partage.values import Frozen

DEFAULT_SOCKET = Path("/run/partage/hardware.sock")
DEFAULT_RUN_DIR = Path("/run/partage")

DESCRIPTION = "Serve the node's GPUs on a unix socket, to root and to the user that runs it."
_SHOWS = "partage hardware --help shows how to use it"


class HardwareOptions(Frozen):
    """What a command line says; ``OPTIONS`` says what each of them means."""

    socket: Path = DEFAULT_SOCKET
    machine: str | None = None
    driver_root: Path = Path("/")
    driver_root_on_node: Path | None = None
    run_dir: Path = DEFAULT_RUN_DIR
    mps_daemons: HomeChoice = HomeChoice.AUTO
    allow_uid: tuple[int, ...] = ()
    allow_container: str | None = None
    container_logs: Path = Path("/var/log/containers")
    no_network: bool = False
    until_eof: bool = False
    help: bool = False


class Option(Frozen):
    """One option, for people. metavar: what stands for its value; empty: it takes none.

    read: the value of a text; raises ValueError.
    """

    name: str
    help: str
    metavar: str = ""
    read: Callable[[str], object] = str
    repeatable: bool = False

    @property
    def field(self) -> str:
        """Of ``HardwareOptions``."""
        return self.name.replace("-", "_")


OPTIONS = (
    Option("socket", f"path of the socket ({DEFAULT_SOCKET})", "PATH", Path),
    Option("machine", "use a simulated node instead of this one", "NAME|FILE"),
    Option("driver-root", "where the driver is installed (/)", "DIR", Path),
    Option(
        "driver-root-on-node",
        "where that is in the node's own file system, if this is a container (as --driver-root)",
        "DIR",
        Path,
    ),
    Option("run-dir", f"MPS daemons have their directories below it ({DEFAULT_RUN_DIR})", "DIR", Path),
    Option(
        "mps-daemons",
        "where MPS daemons live: in units of the node's systemd; with the pod, or in the node's cgroups "
        "where those can be written; auto: as units where systemd takes calls",
        "[auto|systemd|pod]",
        HomeChoice,
    ),
    Option("allow-uid", "another user id that may connect; repeatable", "UID", int, repeatable=True),
    Option(
        "allow-container",
        "serve only this container of pods whose names begin like this; needs the node's process ids",
        "NAMESPACE/POD*/CONTAINER",
    ),
    Option(
        "container-logs",
        "where the kubelet links containers' logs by container id, for --allow-container "
        "(/var/log/containers)",
        "DIR",
        Path,
    ),
    Option("no-network", "leave the network; only sockets with a path remain"),
    Option("until-eof", "exit when standard input is closed"),
    Option("help", "show this, and exit"),
)
_BY_NAME = {f"--{option.name}": option for option in OPTIONS} | {"-h": OPTIONS[-1]}


def parse(arguments: Sequence[str]) -> HardwareOptions:
    """What a command line says. Raises InputError."""
    names = [f"{declared.name}=" if declared.metavar else declared.name for declared in OPTIONS]
    try:
        found, rest = getopt.gnu_getopt(list(arguments), "h", names)
    except getopt.GetoptError as error:
        raise InputError(error.msg, _SHOWS) from error
    if rest:
        raise InputError(f"there is no argument {rest[0]!r}", _SHOWS)
    values: dict[str, object] = {}
    uids: list[object] = []
    for name, text in found:
        option = _BY_NAME[name]
        try:
            value = option.read(text) if option.metavar else True
        except ValueError as error:
            raise InputError(f"{name} takes {option.metavar}, not {text!r}", _SHOWS) from error
        if option.repeatable:
            uids.append(value)
            value = tuple(uids)
        values[option.field] = value
    return HardwareOptions(**values)  # type: ignore[arg-type]


def usage() -> str:
    """What ``--help`` shows."""
    rows = [(f"--{option.name} {option.metavar}".rstrip(), option.help) for option in OPTIONS]
    options = "".join(f"  {names}\n      {means}\n" for names, means in rows)
    return f"Usage: partage hardware [OPTIONS]\n\n{DESCRIPTION}\n\nOptions:\n{options}"
