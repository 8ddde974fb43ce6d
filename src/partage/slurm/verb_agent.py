"""The options of ``partage agent --slurm``."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from partage.answers.verb import path_option
from partage.errors import InputError, Problem
from partage.slurm.version import slurm_bin_option, slurm_version_option

if TYPE_CHECKING:
    from partage.slurm.agent.options import SlurmOptions

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--slurm", is_flag=True, help="This is a compute node of Slurm, and there is no kubelet."),
    click.option(
        "--slurm-node", metavar="NAME", help="With --slurm: the node's name there (this host's name)."
    ),
    click.option(
        "--slurm-writes",
        type=click.Choice(["own", "shared", "nothing"]),
        help="With --slurm: own: the gres.conf of this node alone (default); shared: NODE.gres.conf and "
        "NODE.slurm.conf in a directory of all nodes; nothing: you write them.",
    ),
    path_option(
        "--slurm-dir",
        metavar="DIR",
        help="With --slurm: where these files are (/etc/slurm).",
    ),
    path_option(
        "--slurm-devices",
        help="With --slurm: what the prolog reads (/etc/partage/slurm/devices.json).",
    ),
    click.option(
        "--slurm-settings",
        metavar="TEXT",
        help="With --slurm-writes shared: the rest of the node's line, 'CPUs=64 RealMemory=1000000'.",
    ),
    click.option(
        "--slurm-types",
        type=click.Choice(["short", "model", "profile"]),
        help="With --slurm: what GPUs are called, as in 'slurm config --types' (short).",
    ),
    slurm_version_option("With --slurm: of the cluster (what scontrol says)."),
    slurm_bin_option("With --slurm: the directory of scontrol and squeue."),
    click.option(
        "--slurmd-restart",
        metavar="COMMAND",
        help="With --slurm: how slurmd is restarted ('systemctl restart slurmd').",
    ),
)


def slurm_agent_options(command: Command) -> Command:
    """``--slurm`` and the options that belong to it."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def slurm_options(given: Mapping[str, Any], *, slurm: bool) -> SlurmOptions | None:
    """The options; None without ``--slurm``. Raises InputError, also where a file that is to be
    written is somebody else's; Unsatisfiable where there is no scontrol."""
    if not slurm:
        if used := [name for name, value in given.items() if value is not None]:
            raise click.UsageError(f"--{used[0].replace('_', '-')} needs --slurm")
        return None
    from partage.slurm.agent import options as defaults
    from partage.slurm.agent.node_files import check_own
    from partage.slurm.decide.node_files import Writes
    from partage.slurm.decide.type_names import TypeNames
    from partage.slurm.host.control import SlurmControl
    from partage.slurm.model import SlurmVersion

    programs = given["slurm_bin"]
    said = given["slurm_version"]
    try:
        version = SlurmVersion.parse(said) if said else SlurmControl(programs).version()
        settings = _settings(given["slurm_settings"])
    except ValueError as error:
        raise InputError([Problem("", "--slurm-version or --slurm-settings", "error", str(error))]) from error
    writes = Writes(given["slurm_writes"] or Writes.OWN)
    if settings and writes is not Writes.SHARED:
        raise click.UsageError("--slurm-settings needs --slurm-writes shared")
    chosen = defaults.SlurmOptions(
        node=_node_name(given["slurm_node"]),
        version=version,
        directory=(given["slurm_dir"] or defaults.CONF_DIR).absolute(),
        devices=(given["slurm_devices"] or defaults.DEVICES).absolute(),
        writes=writes,
        settings=settings,
        types=TypeNames(given["slurm_types"] or TypeNames.SHORT),
        programs=programs,
        restart=tuple(shlex.split(given["slurmd_restart"] or "")) or defaults.RESTART,
    )
    check_own(chosen)
    return chosen


def _node_name(given: str | None) -> str:
    """It stands in Slurm's files, and names two of them."""
    from partage.slurm.text.hostlist import node_names

    text = socket.gethostname().partition(".")[0] if given is None else given
    try:
        (name,) = node_names(text)
    except ValueError as error:
        raise InputError(
            [Problem("", "--slurm-node", "error", f"{text[:40]!r} is not the name of a node")]
        ) from error
    return name


def _settings(text: str | None) -> str:
    if text is None:
        return ""
    from partage.slurm.cluster import checked_settings  # with all that reads cluster files

    return checked_settings(text)
