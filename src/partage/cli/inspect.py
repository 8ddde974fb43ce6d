"""``partage inspect``: which pods hold how much GPU memory, where GPUs are shared by amounts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

import click
from msgspec.structs import replace

from partage.answers import common_options
from partage.answers.cluster_options import cluster_of, kubeconfig_option
from partage.answers.common_output import say
from partage.answers.lean_imports import lean_imports
from partage.answers.verb import verb
from partage.cli.memory import InspectedNode, memory_here, print_memory
from partage.errors import Rejected
from partage.text import shortened

if TYPE_CHECKING:
    from partage.edges.kube.config import ClusterConfig
    from partage.edges.kube.reading import ClusterReader

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
