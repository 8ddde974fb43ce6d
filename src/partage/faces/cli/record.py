"""``partage record``: write a node to a machine file, so that it can be simulated elsewhere."""

from __future__ import annotations

import datetime as dt

import click

from partage.faces.cli import common


@click.command(name="record")
@common.machine_option
@click.option("-o", "--output", metavar="FILE", help="Output file (default: standard output).")
def command(machine: str | None, output: str | None) -> None:
    """Write this node to a machine file for the simulation.

    The file can be used with --machine on any computer. It has UUIDs and PCI addresses, but nothing about
    what runs on the GPUs. With --machine the simulated node is written, as a start for your own file.
    """
    from partage.sim.node.files.machine_writer import is_yaml_name, machine_text
    from partage.text import count_of

    inventory = common.need_driver(common.observe(machine))
    recorded = "" if inventory.simulated else dt.datetime.now(dt.UTC).date().isoformat()
    text = machine_text(inventory, recorded, as_yaml=is_yaml_name(output))
    if output is None or output == "-":
        click.echo(text, nl=False)
    else:
        common.write_file(output, text)
        click.echo(f"{output}: a machine with {count_of(len(inventory.gpus), 'GPU')}", err=True)
