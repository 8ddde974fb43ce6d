"""A story in the terminal: scenes, the node as ``kubectl describe node`` shows it, what containers got."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.text import Text

from partage.answers.wording import NamedShare, product_word, shares_of
from partage.lab.stories.document import host_path
from partage.lab.stories.expectations import NodeSnapshot
from partage.lab.stories.model import Story, short_key
from partage.lab.stories.play import StoryEnding, StoryScene
from partage.lab.stories.sentences import share_lines
from partage.model.ids import ShareId
from partage.sim.kubelet.pods import ContainerStatus, PodStatus
from partage.text import count_of
from partage.values import Frozen, grouped

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
_GLUE, _ITEM_SPACES = "\u00a0", 2
_ENV_WIDTH = 26
_LABEL_WIDTH = 9
_REQUESTS_WIDTH, _COUNT_WIDTH = 20, 10
"""What a line of the node needs beside the name: requests and limits; a count."""


def title_lines(story: Story) -> list[Text]:
    """The story's title, its machine and its policy."""
    products = Counter(product_word(gpu.product) for gpu in story.machine.inventory)
    machine = " + ".join(f"{count} x {product}" for product, count in products.items())
    policy = Path(story.policy.name).name if story.policy else "none, every GPU exclusive"
    text = f"machine: {machine or 'no GPU'}; policy: {policy}"
    return [Text(story.title, style="bold"), Text(text, style="dim"), Text()]


def scene_lines(scene: StoryScene, width: int) -> list[Text]:
    """One scene: its lines, and below them details that do not fit."""
    if scene.verb == "say":
        return [Text(), *(Text(line, style="italic") for line in _wrapped(scene.text, width))]
    style = "yellow" if scene.verb == "fault" else _STYLES.get(scene.verb, "")
    line = Text.assemble(_mark(scene.good), " ", (scene.verb.ljust(_VERB_WIDTH), style))
    said = list(scene.details)
    rest: list[str] = []
    if scene.verb in ("run", "refused"):
        name = short_key(scene.text)
        if len(line) + len(name) > width:
            said.insert(0, name)
        elif len(said) == 1 and len(line) + max(len(name), _NAME_WIDTH) + 1 + len(said[0]) <= width:
            line.append(f"{name:<{_NAME_WIDTH}} ", style="bold").append(said.pop(0))
        else:
            line.append(name, style="bold")
    else:
        first, *rest = _items(scene.text, width)
        line.append(first)
        line.rstrip()
    detail_style = "red" if scene.good is False else "dim"
    wrapped = (part for detail in said for part in _indented(detail, _INDENT + 2, width))
    return [line, *map(Text, rest), *(Text(part, style=detail_style) for part in wrapped)]


def _items(text: str, width: int) -> list[str]:
    """Lines that break between the items of a list; the first is for the rest of the verb's line."""
    longest = max(map(len, _glued(text).split(" ")), default=0)
    if longest <= width - _INDENT:
        first, *more = _wrapped_items(text, width - _INDENT)
        return [first, *(" " * _INDENT + part for part in more)]
    indent = _narrow(_INDENT, longest, width)
    return ["", *(" " * indent + part for part in _wrapped_items(text, width - indent))]


def _indented(text: str, indent: int, width: int) -> list[str]:
    """Lines with that indent, or less where a word would be split else."""
    indent = _narrow(indent, max(map(len, text.split()), default=0), width)
    return [" " * indent + part for part in _wrapped(text, width - indent)]


def _narrow(indent: int, longest: int, width: int) -> int:
    return max(0, min(indent, width - longest))


def _wrapped(text: str, width: int) -> list[str]:
    """Lines that break between words only, if a word fits in a line."""
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _wrapped_items(text: str, width: int) -> list[str]:
    """Lines that break between items of a list, not inside short ones."""
    return [line.replace(_GLUE, " ") for line in _wrapped(_glued(text), width)] or [""]


def _glued(text: str) -> str:
    """The text with items such as ``2 nvidia.com/gpu`` as one word each."""
    items = text.split(", ")
    return ", ".join(item.replace(" ", _GLUE) if item.count(" ") <= _ITEM_SPACES else item for item in items)


def _mark(good: bool | None) -> Text:
    if good is None:
        return Text(" ")
    return Text("✓", style="bold green") if good else Text("✗", style="bold red")


# --- the node ----------------------------------------------------------------------------------


def describe_node(now: NodeSnapshot, width: int) -> Text:
    """Capacity, allocatable and allocated resources, in kubectl's layout as far as there is room."""
    lines = ["Capacity:", *_amounts(now.capacity, width), "Allocatable:", *_amounts(now.allocatable, width)]
    asked: Counter[str] = Counter()
    for status in now.pods:
        if status.holds:
            asked.update(status.pod.totals)
    names = list(now.allocatable)
    wide = max([len(name) for name in names], default=8)
    lines.append("Allocated resources:")
    if wide + _REQUESTS_WIDTH > width:
        lines += _amounts({name: asked[name] for name in names}, width)
    else:
        lines += [f"  {'Resource':<{wide}}  Requests  Limits", f"  {'--------':<{wide}}  --------  ------"]
        lines += [f"  {name:<{wide}}  {asked[name]:<8}  {asked[name]}" for name in names]
    return Text("\n".join(lines))


def _amounts(amounts: Mapping[str, int], width: int) -> list[str]:
    wide = max([len(name) for name in amounts], default=0)
    if wide + _COUNT_WIDTH > width:
        return [line for name, count in amounts.items() for line in (f"  {name}:", f"    {count}")]
    return [f"  {name + ':':<{wide + 1}}  {count}" for name, count in amounts.items()]


# --- containers --------------------------------------------------------------------------------


def container_lines(ending: StoryEnding, width: int) -> Iterator[Text]:
    """What the containers got. Of those that hold the same resources, only the first is listed in full.

    A value for which there is no room stands below its name, whole: people copy it.
    """
    for line in _container_lines(ending):
        yield from _below(line, width)


def _below(line: _Granted | Text, width: int) -> Iterator[Text]:
    if isinstance(line, Text):
        yield from _folded(line, width)
        return
    label = Text(f"  {line.label:<{_LABEL_WIDTH - 2}}", style="dim")
    joined = f"{line.name:<{_ENV_WIDTH}} {line.value}" if line.value else line.name
    if _LABEL_WIDTH + len(joined) <= width:
        yield label + Text(joined)
        return
    yield label + Text(line.name)
    yield from map(Text, _indented(line.value, 4, width))


def _folded(line: Text, width: int) -> list[Text]:
    if len(line) <= width:
        return [line]
    parts = _wrapped(line.plain, width)
    return [Text(part, style="bold cyan" if number == 0 else "") for number, part in enumerate(parts)]


class _Granted(Frozen):
    """One thing that a container got. label: what kind of thing."""

    label: str
    name: str
    value: str = ""


def _container_lines(ending: StoryEnding) -> Iterator[Text | _Granted]:
    report = ending.snapshot.report
    shares = shares_of(report.offer) if report else {}
    kinds = grouped(
        (tuple(sorted(container.ids)), (status, container))
        for status in ending.snapshot.pods
        for container in (status.containers if status.holds else ())
        if container.ids
    )
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
) -> Iterator[Text | _Granted]:
    where = "; ".join(share_lines(container, shares))
    yield Text.assemble((short_key(status.pod.key), "bold cyan"), f", container {container.name}: {where}")
    for name, value in sorted(container.env.items()):
        yield _Granted("env", name, value)
    for mount in container.mounts:
        yield _Granted("mount", mount.container_path, f"from {host_path(mount.host_path, run_dir)}")
    for node in container.devices:
        yield _Granted("device", node.container_path, node.permissions)
    for name in container.cdi_devices:
        yield _Granted("cdi", name)


def _by_share(
    alike: Sequence[tuple[PodStatus, ContainerStatus]], shares: dict[ShareId, NamedShare]
) -> Iterator[_Granted]:
    for status, container in alike:
        key = short_key(status.pod.key)
        name = f"{key} ({container.name})" if len(status.containers) > 1 else key
        yield _Granted("alike", name, "; ".join(share_lines(container, shares)))


def verdict(ending: StoryEnding) -> Text:
    """The result in one line."""
    judged = [scene for scene in ending.scenes if scene.good is not None]
    failed = [scene for scene in judged if not scene.good]
    for protocol_error in ending.protocol_errors:
        return Text(f"✗ the agent broke the kubelet's protocol: {protocol_error}", style="bold red")
    if failed:
        text = f"✗ {len(failed)} of {count_of(len(judged), 'expectation')} not met"
        return Text(text, style="bold red")
    return Text(f"✓ {count_of(len(judged), 'expectation')}, all met", style="bold green")
