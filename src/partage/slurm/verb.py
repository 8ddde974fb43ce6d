"""``partage slurm``: the same policy for Slurm. ``config`` writes its files, ``check`` reads them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage.answers import common_node, common_options, common_output
from partage.answers.verb import Verb, path_option
from partage.errors import wrong_input
from partage.slurm.version import slurm_version_option, version_of

if TYPE_CHECKING:
    from partage.slurm.cluster import NodeSource
    from partage.slurm.model import SlurmVersion


_ELSEWHERE = {
    "check": ("partage.slurm.verb_check", "check_command"),
    "prolog": ("partage.slurm.verb_job", "prolog_command"),
    "epilog": ("partage.slurm.verb_job", "epilog_command"),
    "task-prolog": ("partage.slurm.verb_job", "task_prolog_command"),
}
"""Verbs in modules of their own, imported when they are called: three of them run for every job."""


class SlurmGroup(click.Group):
    """The verbs of ``partage slurm``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, name = _ELSEWHERE[cmd_name]
        found: click.Command = getattr(importlib.import_module(module), name)
        return found


@click.group(cls=SlurmGroup, name="slurm", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Write Slurm's GPU configuration from the policy, check it, and serve Slurm's jobs."""


@command.command(name="config", cls=Verb, short_help="Write gres.conf, slurm.conf lines and cgroup.conf.")
@common_options.policy_options
@common_options.machine_option
@slurm_version_option()
@click.option(
    "--node", metavar="NAME", help="The node's name in Slurm, or g[001-500]. Default: this host's name."
)
@click.option(
    "--node-settings",
    metavar="TEXT",
    default="",
    help="The rest of the node's line in slurm.conf: 'CPUs=64 RealMemory=1000000'.",
)
@click.option(
    "--cluster", metavar="FILE", help="Write for all nodes of this file; see docs/reference/slurm.md."
)
@click.option(
    "--types",
    type=click.Choice(["short", "model", "profile"]),
    default="short",
    show_default=True,
    help="What GPUs are called: h100 and h100_1g.10gb; h100_sxm5_80gb; h100 and 1g.10gb.",
)
@path_option("--output", metavar="DIR", help="Write the files there. Default: stdout.")
def config_command(
    *,
    policy: str | None,
    config: str | None,
    machine: str | None,
    slurm_version: str | None,
    node: str | None,
    node_settings: str,
    cluster: str | None,
    types: str,
    output: Path | None,
) -> int:
    """Write Slurm's GPU configuration: gres.conf, lines of slurm.conf, cgroup.conf.

    A GPU or MIG device is gpu:TYPE. A GPU shared by MPS has 100 units of mps, one percent each. A time-sliced
    GPU has one shard for each replica. The same input gives the same files.

    Exit code 2: the policy or an option is wrong; 3: this version of Slurm cannot do it, and why.
    """
    from partage.slurm.cluster import make_config
    from partage.slurm.decide.type_names import TypeNames
    from partage.slurm.text.conf_writer import MARK, config_files

    if cluster is not None and any(option is not None for option in (policy, config, machine, node)):
        raise click.UsageError("--cluster names machines, policies and nodes itself")
    sources, named = (
        _cluster(cluster)
        if cluster is not None
        else ((_one_node(policy, config, machine, node, node_settings),), None)
    )
    version = named if slurm_version is None and named else version_of(slurm_version)
    written = make_config(sources, version, TypeNames(types))
    common_output.print_problems(written.warnings)
    files = config_files(written.config)
    if output is None:
        for name, text in files.items():
            common_output.say(f"# ---- {name}")
            common_output.say_lines(f"{text}\n")
        return 0
    from partage.edges.files.generated import write_generated
    from partage.slurm.host import devices_file

    if cluster is None:  # the UUIDs of a node are its own
        files[devices_file.DEVICES_FILE] = devices_file.devices_text(written.devices[0])
    changed = write_generated(output, files, MARK, devices_file.MARK)
    for name in files:
        common_output.say(f"{output / name}: {'written' if name in changed else 'unchanged'}", err=True)
    return 0


def _cluster(file: str) -> tuple[tuple[NodeSource, ...], SlurmVersion | None]:
    from partage.slurm.cluster import read_cluster

    cluster_file = read_cluster(file)
    common_output.print_problems(cluster_file.warnings)
    return cluster_file.sources, cluster_file.slurm


def _one_node(
    policy: str | None, config: str | None, machine: str | None, node: str | None, settings: str
) -> NodeSource:
    import socket

    from partage.slurm.cluster import NodeSource, checked_settings
    from partage.slurm.text.hostlist import node_names

    if node is None and machine is not None:
        raise click.UsageError("--machine needs --node: the name that the node has in Slurm")
    loaded = common_node.read_policy(policy, config)
    common_output.print_problems(loaded.warnings)
    inventory = common_node.need_driver(common_node.observe(machine))
    try:
        rest = checked_settings(settings)
    except ValueError as error:
        raise wrong_input("--node-settings", str(error)) from error
    name = socket.gethostname().partition(".")[0] if node is None else node
    try:
        names = node_names(name)
    except ValueError as error:
        raise wrong_input("--node", str(error)) from error
    return NodeSource(names, inventory, loaded.policy, rest)
