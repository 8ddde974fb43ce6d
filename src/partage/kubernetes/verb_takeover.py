"""``partage takeover`` and ``partage handback``: the place of NVIDIA's device plugin, under running pods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from msgspec.structs import replace

from partage.agent.options import KUBELET_DIR, STATE_DIR
from partage.answers import cluster_options, common_node, common_options, common_output
from partage.answers.process_start import lean_imports
from partage.answers.verb import path_option, verb
from partage.errors import ClusterError, InputError, PartageError, Unsatisfiable

if TYPE_CHECKING:
    from partage.edges.kube.config import ClusterConfig
    from partage.kubernetes.decide.takeover import Exchange, Ids
    from partage.kubernetes.plugin_exchange import AgentPlace
    from partage.kubernetes.takeover_document import ExchangeStepRow

Command = TypeVar("Command", bound=Callable[..., Any])
_LIMIT_S = 120.0
_OFF = "false"


def exchange_options(command: Command) -> Command:
    """The options of both verbs."""
    for option in reversed(
        (
            click.option(
                "--cluster",
                is_flag=True,
                help="Do the steps through the API server. Without it they are only printed.",
            ),
            cluster_options.kubeconfig_option("With --cluster: "),
            click.option("--node-name", metavar="NAME", envvar="NODE_NAME", default="", help="This node."),
            click.option(
                "--wait",
                "wait_s",
                type=click.FloatRange(0, 86400),
                metavar="SECONDS",
                help="Wait so long until the steps have been done, by hand or through --cluster (120 with "
                "--cluster), and check the result.",
            ),
            path_option(
                "--kubelet-dir",
                default=KUBELET_DIR,
                metavar="DIR",
                help=f"The kubelet's device-plugins directory ({KUBELET_DIR}).",
            ),
            common_options.run_dir_option,
            path_option(
                "--state-dir",
                default=STATE_DIR,
                metavar="DIR",
                help=f"State directory of the agent ({STATE_DIR}).",
            ),
            common_options.output_option("text", "json", "yaml"),
        )
    ):
        command = option(command)
    return command


class TakeoverRun:
    """One run of either verb."""

    def __init__(
        self,
        place: AgentPlace,
        exchange: Exchange,
        steps: Sequence[ExchangeStepRow],
        node: str,
        output: str,
    ) -> None:
        from partage.kubernetes.decide.takeover import problems_of

        self.place, self.exchange, self.node, self.output = place, exchange, node, output
        self.steps = list(steps)
        self.problems = problems_of(exchange)

    @property
    def kind(self) -> Literal["Takeover", "Handback"]:
        return "Takeover" if self.exchange.to == "Partage" else "Handback"

    @property
    def possible(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)

    def announce(self) -> None:
        """Print what was found and what is to be done."""
        common_output.print_problems(self.problems)
        if self.output != "text":
            return
        for name in self.exchange.resources:
            row = self.exchange.row(name)
            common_output.say(
                f"{name}: {row.listed} ids listed now, {row.held} held by {row.pods} pods; "
                f"{row.offered} offered by {self.exchange.to}"
            )
        if self.possible:
            for number, step in enumerate(self.steps, 1):
                common_output.say(f"{number}. {step.text}")
                if step.command:
                    common_output.say(f"   {step.command}")

    def finish(self, *, done: bool) -> int:
        """Print the answer; the exit code."""
        if done:
            self.steps = [replace(step, done=True) for step in self.steps]
        if self.output != "text":
            from partage.kubernetes.takeover_document import TakeoverDocument

            answer = TakeoverDocument(
                kind=self.kind,
                node=self.node,
                possible=self.possible,
                done=done,
                resources=tuple(map(self.exchange.row, self.exchange.resources)),
                problems=self.problems,
                steps=tuple(self.steps),
            )
            common_output.print_document(answer, self.output)
        elif done:
            common_output.say(f"done: the kubelet asks {self.exchange.to}, and lists every held id")
        return 0 if self.possible else Unsatisfiable.exit_code


def place_of(kubelet_dir: Path, run_dir: str | None, state_dir: Path) -> AgentPlace:
    """The directories that the options name."""
    with lean_imports():
        from partage.kubernetes.plugin_exchange import AgentPlace

    return AgentPlace(kubelet_dir, Path(run_dir or common_options.DEFAULT_RUN_DIR), state_dir)


def cluster_asked(cluster: bool, kubeconfig: str | None, node: str) -> ClusterConfig | None:
    """The cluster of ``--cluster``. Raises InputError."""
    if not cluster:
        return None
    if not node:
        raise InputError("--cluster needs the name of this node", "add --node-name NAME, or set NODE_NAME")
    return cluster_options.cluster_of(kubeconfig)


async def change(
    run: TakeoverRun, config: ClusterConfig | None, value: str | None, wait_s: float | None
) -> None:
    """Do the steps and wait. After a failure or Ctrl-C, the node gets its label back. Raises PartageError."""
    import asyncio

    from partage.kubernetes.plugin_exchange import (
        label_of,
        prepare,
        set_label,
        until_exchanged,
        until_given_way,
    )

    limit_s = _LIMIT_S if wait_s is None else wait_s
    before = None if config is None else await label_of(config, run.node)
    if run.exchange.to == "Partage":
        write_record(run, before)
    if config is not None and value == _OFF:
        await prepare(config)
    to_partage = run.exchange.to == "Partage"
    try:
        with nullcontext() if to_partage else run.place.asked_back():
            if not to_partage:
                await until_given_way(run.place, run.exchange, limit_s)
            if config is not None:
                await set_label(config, run.node, value)
            await until_exchanged(run.place, run.exchange, limit_s)
    except (PartageError, asyncio.CancelledError):
        if config is not None:
            await switch_back(config, run.node, before)
        raise


def write_record(run: TakeoverRun, label: str | None) -> None:
    """What NVIDIA's plugin lists, for the way back. label: of the node; ``false`` is left from a takeover
    that was cut off, and the one before counts. Raises InputError.
    """
    from partage.kubernetes.plugin_exchange import Record

    if label == _OFF:
        earlier = run.place.record()
        label = earlier.label if earlier is not None and earlier.label != _OFF else None
    listed = {
        name: run.exchange.listed.get(name, frozenset()) | frozenset(run.exchange.held.get(name, {}))
        for name in run.exchange.resources
    }
    run.place.write_record(Record(listed, label))


async def switch_back(config: ClusterConfig, node: str, before: str | None) -> None:
    """Give the node its label of before, or say how to."""
    from partage.kubernetes.plugin_exchange import LABEL, set_label

    try:
        await set_label(config, node, before)
    except ClusterError as error:
        value = f"--overwrite {LABEL}={before}" if before is not None else f"{LABEL}-"
        common_output.say(
            f"warning: the label of the node is not as before: {error.problems[0].message}\n"
            f"  kubectl label node {node} {value}",
            err=True,
        )
    else:
        common_output.say("warning: the node has its label of before again", err=True)


@verb("takeover")
@exchange_options
def command(
    *,
    cluster: bool,
    kubeconfig: str | None,
    node_name: str,
    wait_s: float | None,
    kubelet_dir: Path,
    run_dir: str | None,
    state_dir: Path,
    output: str,
) -> int:
    """Replace NVIDIA's device plugin by Partage, while pods run.

    Start the agent beside NVIDIA's plugin first, with the file of NVIDIA's plugin as its policy: it waits,
    and registers nothing. This verb, on the node or in the agent's container, compares the ids that the
    kubelet knows with those that the agent will offer, and prints the steps. With --cluster it does them: the
    node gets the label nvidia.com/gpu.deploy.device-plugin=false, NVIDIA's pod ends, the agent registers the
    same ids at once, and pods keep them. Clients of NVIDIA's MPS daemon do not survive that: they have to end
    before.

    Exit code 3: pods would lose their GPUs; 4: it was not done in time, and the label is as before; 5: the
    kubelet or the API server does not answer.
    """
    with lean_imports(tls=cluster):
        import asyncio

        from partage.kubernetes.plugin_exchange import plugin_sets, registered, takeover_of, takeover_steps

    place = place_of(kubelet_dir, run_dir, state_dir)
    exchange = takeover_of(place)
    config = cluster_asked(cluster, kubeconfig, node_name)
    sets = asyncio.run(plugin_sets(config)) if config else None
    run = TakeoverRun(place, exchange, takeover_steps(node_name, sets), node_name, output)
    offered = {name for name, ids in exchange.offered.items() if ids}
    if offered and offered <= registered(place.report()):
        common_output.say("nothing to do: the kubelet asks Partage for all its resources", err=True)
        return run.finish(done=True)
    run.announce()
    if not run.possible or (config is None and wait_s is None):
        return run.finish(done=False)
    asyncio.run(change(run, config, _OFF, wait_s))
    return run.finish(done=True)


def offered_by_nvidia(place: AgentPlace, policy: str | None, config: str | None) -> Ids:
    """What NVIDIA's plugin will list: as before the takeover, or by its file. Raises InputError."""
    if policy is None:
        record = place.record()
        if record is None:
            raise InputError(
                f"it is not known what NVIDIA's plugin offers: {place.state_dir} has no record of a takeover",
                "name the file of NVIDIA's plugin with --policy",
            )
        return record.listed
    from partage.kubernetes.decide.takeover import ids_of
    from partage.kubernetes.plugin_exchange import wanted_offer

    return ids_of(wanted_offer(place.report(), common_node.read_policy(policy, config).policy))
