"""``partage explain job`` as sentences and tables: node, GPU, why not, what to do."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from partage.answers.render.tables import plain_table
from partage.explain.document import JobExplanationDocument
from partage.text import count_of, numbers
from partage.units import format_bytes
from partage.values import grouped

_MOST_NODES = 20
"""Nodes in the table. ``-o json`` has all."""


def job_lines(job: JobExplanationDocument) -> Iterator[RenderableType]:
    """Everything about one job."""
    who = f" of {job.user}" if job.user else ""
    asks = f" asks for {job.asks}" if job.asks else " names no GPUs"
    yield Text(f"Job {job.job}{who} in partition {job.partition or '?'}{asks}.", style="bold")
    words = {
        "waits": "It waits: ",
        "never": "It will not start as it is: ",
        "refused": "It was started, and does not run: ",
    }
    since = f", since {job.since}" if job.since and job.standing == "runs" else ""
    text = f"{words.get(job.standing, '')}{job.why}{since}."
    yield Text(text[:1].upper() + text[1:])
    if job.slurm_says:
        yield Text(f"Slurm says: {job.slurm_says}.", style="dim")
    if job.nodes:
        yield Text()
        yield _nodes(job)
        if len(job.nodes) > _MOST_NODES:
            yield Text(f"and {count_of(len(job.nodes) - _MOST_NODES, 'node')} more; -o json has all")
    if job.holds:
        yield Text()
        yield _holds(job)
    if job.standing != "runs":
        yield Text()
        yield Text(f"What to do: {job.todo}.", style="bold")


def _nodes(job: JobExplanationDocument) -> Table:
    table = plain_table("", "Node", "GPU", "Why not", "What to do")
    for node in job.nodes[:_MOST_NODES]:
        why = node.why or "nothing: its GPUs would do"
        table.add_row(node.name, "-", why, node.todo)
        alike = grouped(((gpu.why or "nothing: it has room", gpu.todo), gpu.index) for gpu in node.gpus)
        for (reason, todo), indexes in alike.items():
            table.add_row("", numbers(indexes), reason, todo, style="dim")
    return table


def _holds(job: JobExplanationDocument) -> Table:
    table = plain_table("", "Node", "GPU", "Holds", "Memory", "Guarantee", "Why")
    for row in job.holds:
        index = "?" if row.index is None else str(row.index)
        device = f" ({row.device})" if row.device and row.device != index else ""
        memory = "" if row.memory_bytes is None else format_bytes(row.memory_bytes)
        table.add_row(row.node, index + device, row.gres, memory, str(row.guarantee or "?"), row.why)
    return table
