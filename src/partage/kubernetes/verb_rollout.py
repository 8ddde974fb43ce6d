"""``partage rollout``: how a policy reaches the nodes of a cluster, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from partage.answers import common_options, common_output
from partage.answers.cluster_options import cluster_of, kubeconfig_option
from partage.answers.process_start import lean_imports
from partage.answers.verb import verb

if TYPE_CHECKING:
    from partage.kubernetes.rollout import RolloutDocument, RolloutNodeRow, RolloutView


@verb("rollout")
@click.argument("action", type=click.Choice(["status", "pause", "resume"]), default="status")
@click.option(
    "-n", "--namespace", metavar="NAME", default="partage", show_default=True, help="Where Partage is."
)
@click.option(
    "--name",
    metavar="CONFIGMAP",
    default="partage-rollout",
    show_default=True,
    help="The ConfigMap with the settings of the rollout.",
)
@kubeconfig_option()
@click.option("-w", "--watch", is_flag=True, help="Print every change, until it is done or has stopped.")
@common_options.output_option("table", "json", "yaml")
def command(
    *, action: str, namespace: str, name: str, kubeconfig: str | None, watch: bool, output: str
) -> int:
    """Show how a policy reaches the nodes of a cluster, pause that, or resume it.

    status: each node with the revision of the policy in force, and of the one that it wants. pause: no
    further node begins; those that change finish. resume: end the pause; nodes that have failed, or whose
    agent has gone while they changed, no longer hold up the others.

    Exit code of status: 0: every node has what it wants; 1: not yet. 3: the chart has no rollout, or pauses
    it; 5: the API server does not answer, or does not permit it.
    """
    if watch and action != "status":
        raise click.UsageError("--watch goes with status")
    with lean_imports(tls=True):
        import asyncio

        from partage.edges.kube.leases import RolloutPlace
        from partage.kubernetes.rollout import RolloutView

    view = RolloutView(cluster_of(kubeconfig), RolloutPlace(namespace, name))
    found = asyncio.run(_found(view, action, _Printer(output), watch=watch))
    return 0 if found.done or action != "status" else 1


async def _found(view: RolloutView, action: str, printer: _Printer, *, watch: bool) -> RolloutDocument:
    """Do it, and print the answer. Raises PartageError."""
    from partage.errors import Absent, Unsatisfiable

    try:
        if watch:
            return await view.follow(printer.print)
        if action == "pause":
            found = await view.pause()
        elif action == "resume":
            found = await view.resume(lambda text: common_output.say(text, err=True))
        else:
            found = await view.look()
    except Absent as error:
        raise Unsatisfiable(
            f"this cluster has no rollout there: {error}",
            "set rollout.maxChanging in the values of the chart; --namespace and --name say where it is",
        ) from error
    printer.print(found)
    return found


class _Printer:
    """Prints a rollout; the first time all of it, then what has changed."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._last: dict[str, RolloutNodeRow] | None = None

    def print(self, rollout: RolloutDocument) -> None:
        if self._output != "table":
            common_output.print_document(rollout, self._output)
            return
        from partage.kubernetes.rollout_table import node_line, rollout_lines, rollout_table

        rows = {row.name: row for row in rollout.nodes}
        if self._last is None:
            console = common_output.console()
            console.print(rollout_table(rollout))
            self._say(rollout_lines(rollout))
        else:
            self._say(node_line(row) for name, row in rows.items() if self._last.get(name) != row)
            if rollout.done or rollout.stopped:
                self._say(rollout_lines(rollout))
        for name in rollout.freed:
            common_output.say(f"freed: {name}")
        self._last = rows

    def _say(self, lines: Iterable[str]) -> None:
        for line in lines:
            common_output.say(line)
