"""A story in the terminal: scenes, the node as ``kubectl describe node`` shows it, what containers got."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.text import Text

from partage.faces.documents.simulation import host_path
from partage.faces.wording import product_word
from partage.lab.share_names import NamedShare, shares_of
from partage.lab.stories.model import Story, short_key
from partage.lab.stories.play import StoryEnding, StoryScene
from partage.lab.stories.sentences import share_lines
from partage.lab.stories.unmet_expectations import NodeSnapshot
from partage.model.ids import ShareId
from partage.sim.kubelet.pod import ContainerStatus, PodStatus
from partage.text import count_of

_STYLES = {
    "ready": "green",
    "run": "cyan",
    "refused": "yellow",
    "end": "bright_black",
    "policy": "magenta",
    "restart": "magenta",
}
_VERB_WIDTH = 9
_INDENT = _VERB_WIDTH + 2
_NAME_WIDTH = 24
_GLUE = "\u00a0"
_ENV_WIDTH = 26


def title_lines(story: Story) -> list[Text]:
    """The story's title, its machine and its policy."""
    products = Counter(product_word(gpu.product) for gpu in story.machine.inventory)
    machine = " + ".join(f"{count} x {product}" for product, count in products.items())
    policy = Path(story.policy.name).name if story.policy else "none, every GPU exclusive"
    said = f"machine: {machine or 'no GPU'}; policy: {policy}"
    return [Text(story.title, style="bold"), Text(said, style="dim"), Text()]


def scene_lines(scene: StoryScene, width: int) -> list[Text]:
    """One scene: its lines, and below them details that do not fit."""
    if scene.verb == "say":
        return [Text(), *(Text(line, style="italic") for line in textwrap.wrap(scene.text, width))]
    style = "yellow" if scene.verb == "fault" else _STYLES.get(scene.verb, "")
    line = Text.assemble(_mark(scene.good), " ", (scene.verb.ljust(_VERB_WIDTH), style))
    said = list(scene.details)
    if scene.verb in ("run", "refused"):
        line.append(f"{short_key(scene.text):<{_NAME_WIDTH}} ", style="bold")
        if len(said) == 1 and len(line) + len(said[0]) <= width:
            line.append(said.pop(0))
        text: list[str] = []
    else:
        first, *text = _wrapped_items(scene.text, width - _INDENT)
        line.append(first)
    more = [Text(" " * _INDENT + part) for part in text]
    detail_style = "red" if scene.good is False else "dim"
    wrapped = (part for detail in said for part in textwrap.wrap(detail, width - _INDENT - 2))
    return [line, *more, *(Text(" " * (_INDENT + 2) + part, style=detail_style) for part in wrapped)]


def _wrapped_items(text: str, width: int) -> list[str]:
    """Lines that break between items of a list, not inside them."""
    glued = text.replace(" ", _GLUE).replace("," + _GLUE, ", ")
    return [line.replace(_GLUE, " ") for line in textwrap.wrap(glued, width)] or [""]


def _mark(good: bool | None) -> Text:
    if good is None:
        return Text(" ")
    return Text("✓", style="bold green") if good else Text("✗", style="bold red")


# --- the node ----------------------------------------------------------------------------------


def describe_node(now: NodeSnapshot) -> Text:
    """Capacity, allocatable and allocated resources, in kubectl's layout."""
    lines = ["Capacity:", *_amounts(now.capacity), "Allocatable:", *_amounts(now.allocatable)]
    asked: Counter[str] = Counter()
    for status in now.pods:
        if status.holds:
            asked.update(status.pod.requests())
    names = list(now.allocatable)
    wide = max([len(name) for name in names], default=8)
    lines += ["Allocated resources:", f"  {'Resource':<{wide}}  Requests  Limits"]
    lines.append(f"  {'--------':<{wide}}  --------  ------")
    lines += [f"  {name:<{wide}}  {asked[name]:<8}  {asked[name]}" for name in names]
    return Text("\n".join(lines))


def _amounts(amounts: Mapping[str, int]) -> list[str]:
    wide = max([len(name) for name in amounts], default=0)
    return [f"  {name + ':':<{wide + 1}}  {count}" for name, count in amounts.items()]


# --- containers --------------------------------------------------------------------------------


def container_lines(ending: StoryEnding) -> Iterator[Text]:
    """What the containers got. Of those that hold the same resources, only the first is listed in full."""
    report = ending.snapshot.report
    shares = shares_of(report.offer) if report else {}
    kinds: dict[tuple[str, ...], list[tuple[PodStatus, ContainerStatus]]] = {}
    for status in ending.snapshot.pods:
        for container in status.containers if status.holds else ():
            if container.ids:
                kinds.setdefault(tuple(sorted(container.ids)), []).append((status, container))
    if kinds:
        yield Text()
        yield Text("What each container got", style="bold")
    for alike in kinds.values():
        yield Text()
        yield from _in_full(*alike[0], shares, ending.run_dir)
        if len(alike) > 1:
            yield from _by_share(alike[1:], shares)


def _in_full(
    status: PodStatus, container: ContainerStatus, shares: dict[ShareId, NamedShare], run_dir: str
) -> Iterator[Text]:
    where = "; ".join(share_lines(container, shares))
    yield Text.assemble((short_key(status.pod.key), "bold cyan"), f", container {container.name}: {where}")
    for name, value in sorted(container.env.items()):
        yield Text.assemble(("  env    ", "dim"), f"{name:<{_ENV_WIDTH}} {value}")
    for mount in container.mounts:
        host = host_path(mount.host_path, run_dir)
        yield Text.assemble(("  mount  ", "dim"), f"{mount.container_path:<{_ENV_WIDTH}} from {host}")
    for node in container.devices:
        yield Text.assemble(("  device ", "dim"), f"{node.container_path:<{_ENV_WIDTH}} {node.permissions}")
    for name in container.cdi_devices:
        yield Text.assemble(("  cdi    ", "dim"), name)


def _by_share(
    alike: Sequence[tuple[PodStatus, ContainerStatus]], shares: dict[ShareId, NamedShare]
) -> Iterator[Text]:
    for status, container in alike:
        key = short_key(status.pod.key)
        name = f"{key} ({container.name})" if len(status.containers) > 1 else key
        yield Text.assemble(
            ("  alike  ", "dim"), f"{name:<{_ENV_WIDTH}} {'; '.join(share_lines(container, shares))}"
        )


def verdict(ending: StoryEnding) -> Text:
    """The result in one line."""
    judged = [scene for scene in ending.scenes if scene.good is not None]
    failed = [scene for scene in judged if not scene.good]
    for protocol_error in ending.protocol_errors:
        return Text(f"✗ the agent broke the kubelet's protocol: {protocol_error}", style="bold red")
    if failed:
        said = f"✗ {len(failed)} of {count_of(len(judged), 'expectation')} not met"
        return Text(said, style="bold red")
    return Text(f"✓ {count_of(len(judged), 'expectation')}, all met", style="bold green")
