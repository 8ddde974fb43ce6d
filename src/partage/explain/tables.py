"""``partage explain`` as sentences and tables: node, GPU, why not, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from partage.answers.render.tables import plain_table
from partage.explain.decide.amounts import Unit
from partage.explain.document import (
    ExplainedGpuRow,
    ExplainedNodeRow,
    ExplainedPodRow,
    ExplainedShareRow,
    ReasonRow,
)
from partage.text import count_of, listed, numbers
from partage.units import format_bytes

MOST_NODES = 20
"""Groups of like nodes in the table. ``-o json`` has all."""

_MOST_REMARKS = 2
"""About nodes, where the pod fits: most are of GPUs that it does not need."""

_FREE = "nothing: it has room"


def pod_lines(pod: ExplainedPodRow, *, everything: bool = False) -> Iterator[RenderableType]:
    """What is known about one pod. everything: each node and GPU, also of a pod that fits."""
    asks = [f"{Unit(ask.resource).text(ask.amount)} ({ask.container})" for ask in pod.asks]
    asks += [f"{' or '.join(ask.asks)} (claim {ask.claim}, request {ask.request})" for ask in pod.claims]
    asks_for = f"{pod.name} asks for {listed(asks, 8) or 'no GPU'}"
    if pod.fits and not pod.runs and not pod.standing and not everything:
        yield Text(f"{asks_for}, and fits on {_where(pod)}.", style="bold")
        yield from _former(pod)
        yield from _gives(pod)
        yield from _doubts(pod, most=_MOST_REMARKS)
        return
    yield Text(f"{asks_for}.", style="bold")
    yield from _former(pod)
    if pod.standing:
        yield Text(pod.standing)
    if pod.runs or (pod.standing and not pod.nodes):
        if pod.holds:
            yield Text()
            yield from share_lines(pod.holds)
        return
    yield Text(_outcome(pod))
    yield from _gives(pod)
    if pod.nodes:
        yield Text()
        groups = _alike(pod.nodes)
        yield _table(groups[:MOST_NODES])
        if left := sum(map(len, groups[MOST_NODES:])):
            yield Text(f"and {count_of(left, 'node')} more, which are further away; -o json has all")
    yield from _next_steps(pod)
    yield from _doubts(pod)


def _former(pod: ExplainedPodRow) -> Iterator[Text]:
    """What it was before, in the words of its own system."""
    if (former := pod.former) is None:
        return
    yield Text(f"It was written for {former.system}: {former.asked or 'no GPU'}.")
    if former.becomes:
        now = "It became" if former.rewritten else "partage admission makes of it"
        yield Text(f"{now} a claim for {' and one for '.join(former.becomes)}.")
    if former.guarantee:
        yield Text(f"Guaranteed: {former.guarantee}.")
    yield from (Text(f"! {warning}", style="yellow") for warning in former.warnings)


def _gives(pod: ExplainedPodRow) -> Iterator[Text]:
    """What its claims would get of the first node that it fits."""
    node = next((node for node in pod.nodes if node.fits), None)
    for given in () if node is None else node.gives:
        promised = f"; guarantee: {given.guarantee}" if given.guarantee else ""
        yield Text(f"Claim {given.claim}, request {given.request}: {given.text}{promised}.")


def _doubts(pod: ExplainedPodRow, most: int | None = None) -> Iterator[Text]:
    """What the answer does not cover. most: so many remarks about nodes; None: all."""
    remarks = list(_remarks(pod.nodes))
    yield from (Text(f"! {line}", style="yellow") for line in remarks[:most])
    if most is not None and len(remarks) > most:
        more = count_of(len(remarks) - most, "more remark")
        yield Text(f"! {more} about nodes: -o wide", style="yellow")
    yield from (Text(f"! not looked at: {line}", style="yellow") for line in pod.not_judged)
    if pod.not_judged:
        yield Text("  What the scheduler says of it: kubectl describe pod", style="yellow")


def share_lines(rows: Sequence[ExplainedShareRow]) -> Iterator[RenderableType]:
    """Shares: who holds them, since when, what is guaranteed, and the next step."""
    several = len({row.node for row in rows}) > 1
    columns = ("Node",) if several else ()
    table = plain_table("", *columns, "GPU", "Resource", "Share", "How it stands", "Guarantee", "Next step")
    for row in rows:
        cells = (row.node,) if several else ()
        gpu = str(row.gpu) + (f" {row.profile}" if row.profile else "")
        memory = "" if row.memory_bytes is None else f", {format_bytes(row.memory_bytes)}"
        share = f"{count_of(len(row.shares), 'share')}{memory}"
        style = {"held": "", "free": "green"}.get(row.state, "yellow")
        table.add_row(
            *(*cells, gpu, row.resource or "-", share, row.standing, str(row.guarantee or "?"), row.next),
            style=style,
        )
    yield table
    yield Text()
    for why in dict.fromkeys(f"{row.guarantee or '?'}: {row.why_guarantee}" for row in rows):
        yield Text(why, style="dim")


def _outcome(pod: ExplainedPodRow) -> str:
    fitting = [node.name for node in pod.nodes if node.fits]
    if not pod.nodes:
        return "No node is known."
    if fitting:
        return f"It fits on {_where(pod)}."
    where = "this node" if len(pod.nodes) == 1 else f"any of {len(pod.nodes)} nodes"
    return f"It does not fit on {where} now."


def _where(pod: ExplainedPodRow) -> str:
    """The nodes on which a pod fits."""
    fitting = [node.name for node in pod.nodes if node.fits]
    some = len(fitting) < len(pod.nodes)
    return listed(fitting, 8) + (f", {len(fitting)} of {count_of(len(pod.nodes), 'node')}" if some else "")


def _alike(nodes: Sequence[ExplainedNodeRow]) -> list[list[ExplainedNodeRow]]:
    """Nodes of which the same is said, GPU by GPU, together; in the order of the first of each."""
    groups: dict[object, list[ExplainedNodeRow]] = {}
    for node in nodes:
        key = _why(node), _what(node), tuple(_gpu_lines(node.gpus))
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def _table(groups: Sequence[Sequence[ExplainedNodeRow]]) -> Table:
    table = plain_table("", "Node", "GPU", "Why not", "What to do")
    for nodes in groups:
        node, names = nodes[0], listed([row.name for row in nodes], 3)
        style = "green" if node.fits else ""
        table.add_row(names, "-", _why(node), _what(node), style=style)
        for gpus, why, what in _gpu_lines(node.gpus):
            table.add_row("", gpus, why, what, style="dim")
    return table


def _why(node: ExplainedNodeRow) -> str:
    if node.reason is None:
        return "nothing: the pod fits here"
    refused = "; the scheduler may still send the pod here, and the node refuses it"
    return node.reason.text + (refused if node.refused_at_node else "")


def _what(node: ExplainedNodeRow) -> str:
    if node.fits:
        return ""
    if not node.changes:
        return (
            "use another node, or another policy here: partage plan --policy FILE shows what one would offer"
        )
    steps = _steps([change.text for change in node.changes])
    return steps if node.enough else f"{steps}; that alone is not enough"


def _steps(texts: Sequence[str]) -> str:
    """``1. ...; 2. ...``; one step without its number."""
    if len(texts) == 1:
        return texts[0]
    return "; ".join(f"{number}. {text}" for number, text in enumerate(texts, 1))


def _gpu_lines(gpus: Iterable[ExplainedGpuRow]) -> Iterator[tuple[str, str, str]]:
    """GPUs of which the same is said in one line."""
    alike: dict[tuple[str, str], list[int]] = {}
    for gpu in gpus:
        why = _FREE if gpu.reason is None else _without_name(gpu.reason, gpu.index)
        what = "" if gpu.change is None else gpu.change.text
        alike.setdefault((why, what), []).append(gpu.index)
    for (why, what), indexes in alike.items():
        yield numbers(indexes), why, what


def _without_name(reason: ReasonRow, index: int) -> str:
    """The column before it names the GPU."""
    return reason.text.removeprefix(f"GPU {index} ")


def _next_steps(pod: ExplainedPodRow) -> Iterator[Text]:
    """The next step, and what could be done instead, of the nearest node."""
    if pod.former is not None and pod.former.homes:
        yield Text()
        yield Text(f"What would make a home for it: {'; '.join(pod.former.homes)}.", style="bold")
    if pod.fits or not pod.nodes or not pod.nodes[0].changes:
        return
    nearest = pod.nodes[0]
    where = "" if len(pod.nodes) == 1 else f" ({nearest.name})"
    yield Text()
    if nearest.enough:
        yield Text(
            f"Smallest change{where}: {_steps([change.text for change in nearest.changes])}.", style="bold"
        )
    else:
        yield Text(f"First step{where}: {nearest.changes[0].text}.", style="bold")
    for way in nearest.others:
        yield Text(f"Or: {_steps([row.text for row in way])}.")
    if nearest.more:
        yield Text("What else blocks it there: " + "; ".join(row.text for row in nearest.more) + ".")


def _remarks(nodes: Iterable[ExplainedNodeRow]) -> Iterator[str]:
    said: dict[str, list[str]] = {}
    for node in nodes:
        for remark in node.remarks:
            said.setdefault(remark, []).append(node.name)
        if node.assumed:
            line = (
                f"not known here, and taken to be so: the node has {listed(node.assumed, 6)} "
                "(--node-labels says the labels of the node, --cluster asks)"
            )
            said.setdefault(line, []).append(node.name)
    for remark, names in said.items():
        yield f"{listed(names, 3)}: {remark}"
