"""``partage simulate``: play a story of pods against the agent, on a simulated node."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage.faces.cli import common, completion

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from partage.lab.stories.model import Story
    from partage.lab.stories.play import StoryEnding, StoryScene

FALSE = 1


@click.command(name="simulate")
@click.argument("story", metavar="STORY", shell_complete=completion.files)
@common.machine_option
@common.policy_option("Default: the policy of the story.")
@common.config_option
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed for the order in which the kubelet lists free devices.",
)
@click.option("-v", "--verbose", is_flag=True, help="Also print the agent's log on stderr.")
@common.output_option("table", "json", "yaml")
def command(  # noqa: PLR0917 - click calls it by keyword
    story: str,
    machine: str | None,
    policy: str | None,
    config: str | None,
    seed: int,
    verbose: bool,
    output: str,
) -> int:
    """Play a story of pods against the agent, on a simulated node.

    STORY is a YAML file (docs/reference/stories.md): which machine, which policy, which pods come and go,
    what breaks, and what is expected. The agent is the one that runs on real nodes; it talks to an embedded
    kubelet over real sockets. --machine, --policy, --config and --node-labels override
    those of the story.

    Exit code 0: every expectation was met; 1: one was not; 2: story or policy is wrong; 3: impossible.
    """
    from partage.lab.stories.read import read_story

    labels = common.node_labels()
    read = read_story(Path(story), machine=machine, policy=policy, config=config, labels=labels)
    _log(verbose=verbose)
    ending = _print_play(read, seed) if output == "table" else _play(read, seed, lambda _: None)
    if output != "table":
        from partage.faces.documents.simulation import simulation_document

        common.print_document(simulation_document(read, ending), output)
    return 0 if ending.good else FALSE


def _log(*, verbose: bool) -> None:
    if verbose:
        from partage.agent import log

        log.configure()
    else:
        logging.getLogger("partage").addHandler(logging.NullHandler())
        logging.getLogger("partage").propagate = False


def _play(story: Story, seed: int, on_scene: Callable[[StoryScene], None]) -> StoryEnding:
    from partage.lab.stories.play import play

    return asyncio.run(play(story, seed=seed, on_scene=on_scene))


def _print_play(story: Story, seed: int) -> StoryEnding:
    """Scenes as they happen, then the node as it stands."""
    from partage.faces.render.stories import scene_lines, title_lines

    console = common.console()
    for line in title_lines(story):
        console.print(line)

    def show(scene: StoryScene) -> None:
        for line in scene_lines(scene, console.width):
            console.print(line)

    ending = _play(story, seed, show)
    _print_ending(ending, console)
    return ending


def _print_ending(ending: StoryEnding, console: Console) -> None:
    from partage.edges.files.catalogue import geometry_of
    from partage.faces.documents.simulation import holders_of, standings_of, troubles_of, withdrawn_of
    from partage.faces.render.cards import NodeUse, cards_of
    from partage.faces.render.picture import legend, picture
    from partage.faces.render.stories import container_lines, describe_node, verdict

    report = ending.snapshot.report
    offer = report.offer if report else {}
    use = NodeUse(holders_of(ending), troubles_of(ending), withdrawn_of(ending), standings_of(ending))
    cards = cards_of(ending.inventory, offer, use, geometry_of)
    console.print()
    console.print(picture(cards, console.width))
    console.print(legend(cards))
    console.print()
    console.print(describe_node(ending.snapshot, console.width))
    for line in container_lines(ending, console.width):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(verdict(ending))
