"""``partage record``: write a node, or the pods of a cluster, to files, to be simulated elsewhere.

A node becomes a machine for the simulation: with what Partage has set on it, besides the inventory.
"""

from __future__ import annotations

import datetime as dt
import sys

import click

from partage.admission.options import GPU_MEM_UNITS, gpu_mem_unit_option
from partage.answers import cluster_options, common_node, common_options, common_output, completion
from partage.answers.verb import verb
from partage.edges.hardware.port import Hardware
from partage.model.gpu import NoDriver
from partage.model.mps import DaemonPhase, DaemonSpec, DaemonState
from partage.model.strategy import Interval
from partage.sim.node.machine import Machine


async def observed_machine(hardware: Hardware) -> Machine:
    """The machine. Daemons that do not serve are left out, and so are time slices of a real GPU that could
    not be read. Raises HardwareError.
    """
    inventory = await hardware.observe()
    if isinstance(inventory.driver, NoDriver):
        return Machine("", inventory)
    slices: dict[int, Interval | None] = {}
    for time_slice in await hardware.time_slices():
        gpu = inventory.gpu(time_slice.gpu)
        keeps_its_own = time_slice.interval is None and inventory.simulated and gpu and not gpu.mig_enabled
        if gpu and (keeps_its_own or time_slice.interval not in (None, Interval.DEFAULT)):
            slices[gpu.index] = time_slice.interval
    daemons = [_spec(daemon) for daemon in await hardware.daemons()]
    return Machine("", inventory, time_slices=slices, daemons=tuple(filter(None, daemons)))


def _spec(daemon: DaemonState) -> DaemonSpec | None:
    if daemon.gpu is None or daemon.phase not in (DaemonPhase.SERVING, DaemonPhase.FAULT):
        return None
    limits = daemon.limits
    return DaemonSpec(
        daemon.gpu,
        daemon.device,
        limits.memory_bytes,
        limits.threads_percent,
        daemon.multi_user,
        limits.namespaces,
        limits.slots,
    )


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
    help="Write to this file; - is standard output (the default). With --cluster: to this folder.",
)
@click.option(
    "-o",
    "--output",
    metavar="[json|yaml]",
    callback=_format,
    help="Output format. Default: as the file's name ends, else json.",
)
@click.option(
    "--cluster",
    is_flag=True,
    help="In place of this node: pods and nodes of a cluster, PODS.csv and NODES.csv in the folder of --to.",
)
@cluster_options.kubeconfig_option("With --cluster: ")
@click.option(
    "--keep-names",
    is_flag=True,
    help="With --cluster: write names and namespaces, in place of numbers.",
)
@gpu_mem_unit_option
def command(
    *,
    machine: str | None,
    to: str | None,
    output: str | None,
    cluster: bool,
    kubeconfig: str | None,
    keep_names: bool,
    gpu_mem_unit: str,
) -> None:
    """Write this node to a machine file for the simulation, or a cluster's pods to a trace.

    The file can be used with --machine on any computer. It has UUIDs, PCI addresses and serial numbers, time
    slices and Partage's MPS daemons, but no process that runs on the GPUs. With --machine the simulated node
    is written, as a start for your own file.

    With --cluster: what simulate --trace PODS.csv --nodes NODES.csv reads. Nodes with GPUs, and how much of
    them and of CPU and memory the pods ask for, in Partage's words, those of NVIDIA's device plugin, of
    claims, or of HAMi, Volcano, KAI, ACK, nos and GKE; when they came, were placed and ended; on which node
    they are. Names, namespaces, labels and images are not written. Nothing in the cluster is changed. What
    is left out is said on stderr.

    Exit code 2: wrong input; 3: no node has GPUs; 5: the cluster does not answer.
    """
    if cluster:
        if machine is not None or output is not None:
            raise click.UsageError("--cluster goes without --machine and --output")
        if to is None or to == "-":
            raise click.UsageError("--cluster needs --to FOLDER")
        from partage.whatif.verb_record import record_cluster

        record_cluster(to, kubeconfig, GPU_MEM_UNITS[gpu_mem_unit], keep_names=keep_names)
        return
    if keep_names:
        raise click.UsageError("--keep-names goes with --cluster")
    _record_node(machine, to, output)


def _record_node(machine: str | None, to: str | None, output: str | None) -> None:
    from msgspec.structs import replace

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
