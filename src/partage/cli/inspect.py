"""``partage inspect`` and ``show --memory``: which pods hold how much GPU memory, where GPUs are shared by
amounts, in the shape of ``kubectl inspect gpushare``. Text only.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import click
from msgspec import field
from msgspec.structs import replace

from partage.answers import common_node, common_options
from partage.answers.cluster_options import cluster_of, kubeconfig_option
from partage.answers.common_output import say, say_lines
from partage.answers.process_start import lean_imports
from partage.answers.verb import verb
from partage.errors import Rejected
from partage.plan.cluster.gpu_memory import DeviceUnits, NodeMemory, node_memory
from partage.text import printable, shortened
from partage.units import GIB, MIB
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.edges.kube.config import ClusterConfig
    from partage.edges.kube.reading import ClusterReader


_NONE = "no GPU is shared by amounts of memory here: a policy with mps: {unit: 1Gi} does that"


def memory_here(machine: str | None, run_dir: str | None) -> list[InspectedNode]:
    """This node, as its agent reports it; empty if no GPU is shared by amounts. Raises DaemonError."""
    from partage.errors import DaemonError

    report = common_node.agent_report(machine, run_dir)
    if report is None:
        raise DaemonError(
            "no agent runs here, and only an agent knows who holds what",
            "run it on a node with an agent; in a cluster: partage inspect NODE",
        )
    memory = node_memory(
        report.offer, ((row.resource, row.id, row.holders, row.claim) for row in report.held)
    )
    return [InspectedNode(socket.gethostname(), "", memory)] if memory.devices else []


def print_memory(nodes: Sequence[InspectedNode], *, details: bool = False) -> None:
    """The table of ``kubectl inspect gpushare``; details: the pods, too. Raises Unsatisfiable for no node."""
    from partage.errors import Unsatisfiable

    if not nodes:
        raise Unsatisfiable(_NONE)
    text = detailed(nodes) if details else summary(nodes)
    say_lines(f"{text}\n")


_UNNAMED = "(not named yet)"


class InspectedNode(Frozen):
    """One node. address: empty if it is not known. former: what pods that were written for other systems ask
    for in the words of these, by namespace and name: ``HAMi: main nvidia.com/gpumem=3000``.
    """

    name: str
    address: str
    memory: NodeMemory
    former: Mapping[tuple[str, str], str] = field(default_factory=dict)


def summary(nodes: Sequence[InspectedNode]) -> str:
    """One line for each node, and the sum. A column for each index up to the highest, as gpushare has it: 0/0
    where a node has no such GPU, or does not share it so.
    """
    unit_bytes = _unit(nodes)
    columns = range(1 + max((device.index for node in nodes for device in node.memory.devices), default=-1))
    heads = (f"GPU{index}(Allocated/Total)" for index in columns)
    head = ["NAME", "IPADDRESS", *heads, f"GPU Memory({_word(unit_bytes)})"]
    rows = [
        [
            node.name,
            node.address or "-",
            *(_share(_of_gpu(node.memory.devices, index), unit_bytes) for index in columns),
            _share(node.memory.devices, unit_bytes),
        ]
        for node in nodes
    ]
    every = [device for node in nodes for device in node.memory.devices]
    return "\n".join(
        [
            *_columns([head, *rows]),
            "-" * 64,
            *_total("Allocated/Total GPU Memory In Cluster:", every, unit_bytes),
        ]
    )


def _of_gpu(devices: Sequence[DeviceUnits], index: int) -> list[DeviceUnits]:
    """The GPU, or its MIG devices."""
    return [device for device in devices if device.index == index]


def detailed(nodes: Sequence[InspectedNode]) -> str:
    """A table of pods for each node, and the sum."""
    unit_bytes = _unit(nodes)
    parts: list[str] = []
    for node in nodes:
        parts += _of_node(node, unit_bytes)
    every = [device for node in nodes for device in node.memory.devices]
    return "\n".join([*parts, *_total("Allocated/Total GPU Memory In Cluster:", every, unit_bytes)])


def _of_node(node: InspectedNode, unit_bytes: int) -> Iterator[str]:
    devices = node.memory.devices
    yield f"NAME:       {printable(node.name)}"
    yield f"IPADDRESS:  {printable(node.address or '-')}"
    yield ""
    gpus = sorted({device.index for device in devices})
    former = [node.former.get((pod.namespace, pod.name), "") for pod in node.memory.pods]
    also = any(former)  # else in the shape of kubectl inspect gpushare
    rows = [["NAME", "NAMESPACE", *(f"GPU{index}(Allocated)" for index in gpus), *["WRITTEN FOR"] * also]]
    for pod, words in zip(node.memory.pods, former, strict=True):
        held = dict.fromkeys(gpus, 0)
        for units, device in zip(pod.units, devices, strict=True):
            held[device.index] += units * device.unit_bytes
        amounts = (_amount(held_bytes, unit_bytes) for held_bytes in held.values())
        rows.append([pod.name or _UNNAMED, pod.namespace or "-", *amounts, *[words or "-"] * also])
    yield from _columns(rows)
    if node.memory.more:
        yield f"and {node.memory.more} more pods"
    used, total = _sums(devices)
    yield f"Allocated :  {_amount(used, unit_bytes)} ({_percent(used, total)})"
    yield f"Total :      {_amount(total, unit_bytes)}"
    yield "-" * 64


def _unit(nodes: Sequence[InspectedNode]) -> int:
    """GiB if every unit is a multiple of it, else MiB."""
    sizes = {device.unit_bytes for node in nodes for device in node.memory.devices}
    return GIB if all(size % GIB == 0 for size in sizes) else MIB


def _word(unit_bytes: int) -> str:
    return "GiB" if unit_bytes == GIB else "MiB"


def _share(devices: Sequence[DeviceUnits], unit_bytes: int) -> str:
    used, total = _sums(devices)
    return f"{_amount(used, unit_bytes)}/{_amount(total, unit_bytes)}"


def _sums(devices: Sequence[DeviceUnits]) -> tuple[int, int]:
    """Bytes used and in all."""
    return sum(device.used * device.unit_bytes for device in devices), sum(
        device.total * device.unit_bytes for device in devices
    )


def _amount(amount_bytes: int, unit_bytes: int) -> str:
    return str(amount_bytes // unit_bytes)


def _percent(used: int, total: int) -> str:
    return f"{100 * used // total if total else 0}%"


def _total(words: str, devices: Sequence[DeviceUnits], unit_bytes: int) -> Iterator[str]:
    used, total = _sums(devices)
    yield words
    yield f"{_amount(used, unit_bytes)}/{_amount(total, unit_bytes)} ({_percent(used, total)})"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    shown = [list(map(printable, row)) for row in rows]
    widths = [max(len(row[at]) for row in shown) for at in range(len(shown[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]


_LONGEST = 120
"""Characters of what a pod asked for."""


@verb("inspect")
@click.argument("node", required=False, metavar="[NODE]")
@click.option("-d", "--details", is_flag=True, help="The pods, too, and what each of them holds.")
@click.option("--cluster", is_flag=True, help="All nodes of the cluster, in place of this one.")
@kubeconfig_option("With NODE or --cluster: ")
@common_options.machine_option
@common_options.run_dir_option
def command(
    *,
    node: str | None,
    details: bool,
    cluster: bool,
    kubeconfig: str | None,
    machine: str | None,
    run_dir: str | None,
) -> None:
    """Show GPU memory that is shared by amounts, as kubectl inspect gpushare does: used and total of each
    GPU, with -d also the pods.

    This node, as its agent reports it. With NODE or --cluster: nodes of the cluster, as their agents wrote it
    on the Node (partage.dev/gpu-memory). There, -d also says for which other system a pod was written, and
    what it asked for in the words of that system (partage.dev/translated).

    Exit code 3: no GPU is shared by amounts; 5: the cluster cannot be asked.
    """
    if node is not None or cluster:
        with lean_imports(tls=True):
            import asyncio

        nodes = asyncio.run(_in_cluster(cluster_of(kubeconfig), node, details=details))
    else:
        nodes = memory_here(machine, run_dir)
    print_memory(nodes, details=details)


async def _in_cluster(config: ClusterConfig, name: str | None, *, details: bool) -> list[InspectedNode]:
    from partage.edges.kube.cluster import ApiCluster
    from partage.edges.kube.reading import ClusterReader
    from partage.plan.cluster.gpu_memory import GPU_MEMORY, read_memory

    cluster = ApiCluster(config)
    nodes = await cluster.nodes() if name is None else (await cluster.node(name),)
    read = ((node, read_memory(node.annotations.get(GPU_MEMORY, ""))) for node in nodes)
    seen = [InspectedNode(node.name, node.address, memory) for node, memory in read if memory is not None]
    if not details or not seen:
        return seen
    former = await _former(ClusterReader(cluster.connection))
    return [replace(node, former=former) for node in seen]


async def _former(reader: ClusterReader) -> dict[tuple[str, str], str]:
    """What pods of other systems ask for in their own words; nothing for who may not list pods."""
    from partage.admission.decide.pod import TRANSLATED

    try:
        pods = await reader.pods()
    except Rejected as error:
        say(f"which pods were written for other systems is not known: {error}", err=True)
        return {}
    found = {}
    for pod in pods:
        metadata = pod["metadata"]
        if words := (metadata.get("annotations") or {}).get(TRANSLATED):
            found[metadata.get("namespace", ""), metadata["name"]] = shortened(str(words), _LONGEST)
    return found


def kubectl() -> NoReturn:
    """``kubectl inspect gpushare``: all nodes of the cluster. Entry point ``kubectl-inspect_gpushare``."""
    from partage.cli.main import run

    words = sys.argv[1:]
    sys.exit(run(["inspect", "--cluster", *words]))
