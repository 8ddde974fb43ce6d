"""``partage simulate``: play a story of pods against the agent, or a trace of pods on a fleet."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage.answers import common_options, common_output, completion
from partage.answers.verb import verb
from partage.serve_http.options import http_option, http_options, http_protection

if TYPE_CHECKING:
    from collections.abc import Callable

    from partage.answers.render.terminal import Console
    from partage.lab.stories.model import Story
    from partage.lab.stories.play import Beside, StoryEnding, StoryScene

FALSE = 1


@verb("simulate")
@click.argument("story", metavar="[STORY]", required=False, shell_complete=completion.files)
@common_options.machine_option
@common_options.policy_option(
    "Default: the policy of the story; with --trace, every GPU exclusive. With --trace it may be given "
    "several times.",
    multiple=True,
)
@common_options.config_option
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed for the order in which the kubelet lists free devices; with --trace, for the choice among "
    "equally good nodes.",
)
@click.option(
    "--trace",
    metavar="FILE",
    shell_complete=completion.files,
    help="Instead of a story: a trace of pods, CSV with name, cpu_milli, memory_mib, num_gpu, gpu_milli and "
    "times, or JSON of requests with times. Shows which pods start, wait, or fit nowhere on a fleet.",
)
@click.option(
    "--fleet",
    "--nodes",
    metavar="FILE",
    shell_complete=completion.files,
    help="With --trace: the nodes, CSV with sn, cpu_milli, memory_mib, gpu, model.",
)
@click.option(
    "--machines",
    multiple=True,
    metavar="NAME|FILE",
    shell_complete=completion.machines,
    help="With --trace, in place of --fleet: nodes by name, 125*8xh100-sxm5-80gb; commas join several. CPU "
    "and memory of such nodes do not limit pods.",
)
@click.option(
    "--gpu-model",
    "gpu_models",
    multiple=True,
    metavar="NAME=MODEL",
    help="With --fleet: which GPU a model name of that file is, V100M16=v100-sxm2-16gb.",
)
@click.option(
    "--placement",
    "placements",
    multiple=True,
    type=click.Choice(["ssp", "ssp-exact", "fgd", "bestfit", "stock", "today"]),
    help="With --trace and --nodes: how much of the GPUs pods get if their nodes are chosen so. More pods "
    "come than fit, and none ends. ssp: kube-scheduler with Partage's extender; stock: without; today: the "
    "same, from where the pods of a recorded cluster are. May be given several times.",
)
@click.option(
    "--load",
    type=click.IntRange(1, 1000),
    default=130,
    show_default=True,
    help="With --placement: pods come until they have asked for so many percent of all GPUs.",
)
@click.option(
    "--plot", metavar="FILE", help="With --trace: also draw GPUs in use and waiting pods: .png or .svg."
)
@http_option("Serve the page of the simulated node while the story is played; port 0: any free port.")
@click.option("--serve", is_flag=True, help="Keep serving after the end of the story, until Ctrl-C.")
@http_protection
@click.option("-v", "--verbose", is_flag=True, help="Also print the agent's log on stderr.")
@common_options.output_option("table", "json", "yaml")
def command(  # noqa: PLR0917 - click calls it by keyword
    story: str | None,
    machine: str | None,
    policy: tuple[str, ...],
    config: str | None,
    seed: int,
    trace: str | None,
    fleet: str | None,
    machines: tuple[str, ...],
    gpu_models: tuple[str, ...],
    placements: tuple[str, ...],
    load: int,
    plot: str | None,
    http: str | None,
    serve: bool,
    verbose: bool,
    output: str,
) -> int:
    """Play a story of pods against the agent on a simulated node, or a trace of pods on a fleet.

    STORY is a YAML file (docs/reference/stories.md): which machine, which policy, which pods come and go,
    what breaks, and what is expected. The agent is the one that runs on real nodes; it talks to an embedded
    kubelet over real sockets. --machine, --policy, --config and --node-labels override
    those of the story.

    With --trace in place of STORY: what happens to the pods of a trace on the nodes of --fleet or --machines
    under each --policy: which start at once, wait, or fit nowhere, and how much of the GPUs is used. Pods go
    where the default rules of kube-scheduler send them, and get the shares that the agent there would give.
    With --placement in place of --policy: how much of the GPUs is given away at most, for each way to choose
    nodes.

    Exit code 0: every expectation was met; 1: one was not; 2: story, trace or policy is wrong; 3: impossible.
    """
    if trace is None:
        if story is None:
            raise click.UsageError("a STORY is needed, or --trace FILE")
        if fleet or machines or gpu_models or plot or placements:
            raise click.UsageError("--fleet, --machines, --gpu-model, --placement and --plot go with --trace")
        if len(policy) > 1:
            raise click.UsageError("a story is played with one --policy; several go with --trace")
        _log(verbose=verbose)
        read = _read_story(story, machine, policy[0] if policy else None, config)
        return _story(read, seed, _beside(http, stay=serve), output)
    if story is not None or machine is not None or http is not None or serve:
        raise click.UsageError("--trace goes without STORY, --machine, --http and --serve")
    from partage.whatif.verb import TraceOptions, print_trace

    options = TraceOptions(
        trace=trace,
        fleet=fleet,
        machines=machines,
        gpu_models=gpu_models,
        policies=policy,
        config=config,
        placements=placements,
        load=load,
        seed=seed,
        plot=plot,
        output=output,
    )
    return print_trace(options)


def _read_story(story: str, machine: str | None, policy: str | None, config: str | None) -> Story:
    from partage.lab.stories.read import read_story

    labels = common_options.node_labels()
    return read_story(Path(story), machine=machine, policy=policy, config=config, labels=labels)


def _beside(http: str | None, *, stay: bool) -> Beside | None:
    """The page of the node. stay: it goes on after the story."""
    if http is None and not stay:
        return None
    from partage.cli.story_page import story_page

    return story_page(http or "127.0.0.1:0", http_options(), stay=stay)


def _story(story: Story, seed: int, beside: Beside | None, output: str) -> int:
    if output == "table":
        return 0 if _print_play(story, seed, beside).good else FALSE
    from partage.lab.stories.document import simulation_document

    ending = _play(story, seed, lambda _: None, beside)
    common_output.print_document(simulation_document(story, ending), output)
    return 0 if ending.good else FALSE


def _log(*, verbose: bool) -> None:
    if verbose:
        from partage.agent import log

        log.configure()
    else:
        logging.getLogger("partage").addHandler(logging.NullHandler())
        logging.getLogger("partage").propagate = False


def _play(
    story: Story, seed: int, on_scene: Callable[[StoryScene], None], beside: Beside | None
) -> StoryEnding:
    from partage.lab.stories.play import alone, play

    return asyncio.run(play(story, seed=seed, on_scene=on_scene, beside=beside or alone))


def _print_play(story: Story, seed: int, beside: Beside | None) -> StoryEnding:
    """Scenes as they happen, then the node as it stands."""
    from partage.lab.stories.tables import scene_lines, title_lines

    console = common_output.console()
    for line in title_lines(story):
        console.print(line)

    def show(scene: StoryScene) -> None:
        for line in scene_lines(scene, console.drawing_width):
            console.print(line)

    ending = _play(story, seed, show, beside)
    _print_ending(ending, console)
    return ending


def _print_ending(ending: StoryEnding, console: Console) -> None:
    from partage.answers.render.cards import HeldOnNode, cards_of
    from partage.answers.render.picture import legend, picture
    from partage.edges.files.catalogue import geometry_of
    from partage.lab.stories.document import holders_of, standings_of, troubles_of, withdrawn_of
    from partage.lab.stories.tables import container_lines, describe_node, verdict

    report = ending.snapshot.report
    offer = report.offer if report else {}
    use = HeldOnNode(holders_of(ending), troubles_of(ending), withdrawn_of(ending), standings_of(ending))
    cards = cards_of(ending.inventory, offer, use, geometry_of)
    console.print()
    console.print(picture(cards, console.drawing_width))
    console.print(legend(cards))
    console.print()
    console.print(describe_node(ending.snapshot, console.drawing_width))
    for line in container_lines(ending, console.drawing_width):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(verdict(ending))
