"""``partage cordon``: nobody gets another share of a GPU; and ``partage uncordon``, its opposite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from partage.agent.options import STATE_DIR
from partage.answers import common_node, common_options
from partage.answers.cluster_options import cluster_of, kubeconfig_option
from partage.answers.common_output import say
from partage.answers.process_start import lean_imports
from partage.answers.verb import verb
from partage.errors import Conflict, InputError

if TYPE_CHECKING:
    from partage.edges.kube.config import ClusterConfig
    from partage.model.gpu import Inventory

_TRIES = 5
"""How often the Node is read and written if someone else writes it meanwhile."""

Change = Callable[[frozenset[str], frozenset[str]], frozenset[str]]
"""From the names that are there and those that were given to the new ones."""


class WhichNode(TypedDict):
    """The options of both verbs: of which node the GPUs are."""

    node: str | None
    kubeconfig: str | None
    machine: str | None
    state_dir: Path | None


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Arguments and options of both verbs."""
    for option in reversed(
        [
            click.argument("gpus", nargs=-1, required=True, metavar="GPU..."),
            click.option("--node", metavar="NAME", help="A node of the cluster, in place of this one."),
            kubeconfig_option("With --node: "),
            common_options.machine_option,
            common_options.state_dir_option,
        ]
    ):
        command = option(command)
    return command


@verb("cordon")
@_options
def command(gpus: tuple[str, ...], **where: Unpack[WhichNode]) -> None:
    """Keep new containers off GPUs, named by NVML index or UUID. Containers that hold shares keep them.

    Within a second the agent offers no free share of these GPUs any more, until partage uncordon. A restart
    or a reboot does not end that. A new policy is carried out on them as on all others.

    With --node: for a node of the cluster, by its annotation partage.dev/cordoned.
    """
    names = _change_names(lambda there, given: there | given, gpus, **where)
    say(f"cordoned: {', '.join(sorted(names))}")


@verb("uncordon")
@_options
def uncordon(gpus: tuple[str, ...], **where: Unpack[WhichNode]) -> None:
    """Let new containers use cordoned GPUs again, named by NVML index or UUID.

    GPUs that were cordoned with --node need --node here, too; the others are uncordoned on their node.
    """
    names = _change_names(lambda there, given: there - given, gpus, **where)
    say(f"still cordoned: {', '.join(sorted(names))}" if names else "no GPU is cordoned")


def _change_names(
    change: Change,
    gpus: tuple[str, ...],
    *,
    node: str | None,
    kubeconfig: str | None,
    machine: str | None,
    state_dir: Path | None,
) -> frozenset[str]:
    """The names of cordoned GPUs after it."""
    if node is not None:
        if machine is not None or state_dir is not None:
            raise click.UsageError(
                "--node is a node of the cluster; --machine and --state-dir are of this one"
            )
        with lean_imports(tls=True):
            import asyncio

        config = cluster_of(kubeconfig)
        return asyncio.run(_on_node(change, frozenset(map(_name, gpus)), node, config))
    from partage.edges.files.node_notes import BY_HAND, read_names, write_names
    from partage.plan.serve.cordon import names_in

    path = (common_options.state_directory(state_dir, machine) or STATE_DIR) / BY_HAND
    if machine is not None and state_dir is None:
        raise click.UsageError("a simulated node has no state directory: name that of its agent, --state-dir")
    inventory = common_node.observe(machine)
    names = change(names_in(read_names(path)), frozenset(_uuid(_name(gpu), inventory) for gpu in gpus))
    write_names(path, names)
    return names


def _name(text: str) -> str:
    """A UUID or an index, so that nothing else gets into files and annotations. Raises InputError."""
    if text.isascii() and text.isdigit() and len(text) < 5:
        return str(int(text))
    if text.startswith("GPU-") and text.isascii() and text.replace("-", "").isalnum() and len(text) < 64:
        return text
    several = text.replace(",", "").isdecimal()
    hint = "several are named with blanks between them: 0 1" if several else "partage show lists them"
    raise InputError(f"{text[:60]!r} is neither the NVML index of a GPU (3) nor a UUID (GPU-...)", hint)


def _uuid(name: str, inventory: Inventory) -> str:
    """An index may be another GPU's after a reboot. A UUID may be of a GPU that is not there now."""
    if name.startswith("GPU-"):
        return next((str(gpu.uuid) for gpu in inventory if gpu.uuid.lower() == name.lower()), name)
    found = [str(gpu.uuid) for gpu in inventory if str(gpu.index) == name]
    if not found:
        raise InputError(
            f"this node has no GPU {name}",
            f"it has {len(inventory.gpus)}, counted from 0" if inventory.gpus else "it has none",
        )
    return found[0]


async def _on_node(change: Change, given: frozenset[str], name: str, config: ClusterConfig) -> frozenset[str]:
    from partage.edges.kube.cluster import ApiCluster
    from partage.plan.serve.cordon import CORDONED, names_in

    cluster = ApiCluster(config)
    for left in reversed(range(_TRIES)):
        node = await cluster.node(name)
        names = change(names_in(node.annotations.get(CORDONED, "")), given)
        try:
            await cluster.annotate_node(node, {CORDONED: ",".join(sorted(names)) or None})
        except Conflict:  # the agent or the kubelet has just written something
            if not left:
                raise
        else:
            break
    return names
