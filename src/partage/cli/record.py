"""``partage record``: write a node to a machine file, so that it can be simulated elsewhere."""

from __future__ import annotations

import datetime as dt
import sys

import click

from partage.answers import common_node, common_options, common_output, completion
from partage.answers.verb import verb

FORMATS = ("json", "yaml")


def _format(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del ctx, parameter
    if value not in (None, *FORMATS):
        raise click.BadParameter(f"{value!r} is no format (json, yaml); to write a file: --to {value}")
    return value


@verb("record")
@common_options.machine_option
@common_options.driver_root_option
@click.option(
    "--to",
    metavar="FILE",
    shell_complete=completion.files,
    help="Write to this file; - is standard output (the default).",
)
@click.option(
    "-o",
    "--output",
    metavar="[json|yaml]",
    callback=_format,
    help="Output format. Default: as the file's name ends, else json.",
)
def command(machine: str | None, to: str | None, output: str | None) -> None:
    """Write this node to a machine file for the simulation.

    The file can be used with --machine on any computer. It has UUIDs, PCI addresses and serial numbers, time
    slices and Partage's MPS daemons, but no process that runs on the GPUs. With --machine the simulated node
    is written, as a start for your own file.
    """
    from msgspec.structs import replace

    from partage.cli.observed_machine import observed_machine
    from partage.errors import NotPermitted
    from partage.plan.offer.caveats import mig_hidden
    from partage.sim.node.files.machine_writer import is_yaml_name, machine_text
    from partage.text import count_of

    found = common_node.ask(observed_machine, machine)
    inventory = common_node.need_driver(found.inventory)
    if hidden := mig_hidden(inventory):
        raise NotPermitted(f"the node cannot be recorded: {hidden[0].lower()}{hidden[1:]}", "run it as root")
    recorded = "" if inventory.simulated else dt.datetime.now(dt.UTC).date().isoformat()
    as_yaml = output == "yaml" or (output is None and is_yaml_name(to))
    text = machine_text(replace(found, recorded=recorded), as_yaml=as_yaml)
    if to is None or to == "-":
        sys.stdout.write(text)
    else:
        common_output.write_file(to, text)
        common_output.say(f"{to}: a machine with {count_of(len(inventory.gpus), 'GPU')}", err=True)
