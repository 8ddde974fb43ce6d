"""What GPUs and containers do, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from partage.answers.render.tables import plain_table
from partage.answers.wording import UNKNOWN, WHEN_SAMPLED, degrees, part, watts
from partage.model.ids import GpuUuid
from partage.units import format_bytes

if TYPE_CHECKING:
    from partage.answers.documents.report import ReportDocument
    from partage.answers.documents.use import HourRow, UseRow


def use_tables(report: ReportDocument) -> Iterator[RenderableType]:
    """The use of each GPU and of each container where it is known; where it is not, since when."""
    use = report.use
    if use is None:
        return
    index_of = {gpu.uuid: str(gpu.index) for gpu in report.gpus}
    if not use.gpus:
        text = f"Use of the GPUs: not sampled since {use.sampled_at or use.began_at}. {WHEN_SAMPLED}"
        yield Text(text, style="dim")
        return
    table = plain_table(
        f"Use of the GPUs, sampled {use.sampled_at}",
        "GPU", "Utilisation", "Memory used", "Temperature", "Power", "Last hour",
        right=("GPU", "Utilisation"),
    )  # fmt: skip
    for row in use.gpus:
        used = UNKNOWN if row.memory_used_bytes is None else format_bytes(row.memory_used_bytes)
        table.add_row(
            index_of.get(row.gpu, "?"),
            part(row.utilisation),
            used,
            degrees(row.temperature_c),
            watts(row.power_w),
            _hour_text(use.hour.get(row.gpu)),
        )
    yield table
    if use.containers:
        yield Text()
        yield _containers(use, index_of)


def _containers(use: UseRow, index_of: Mapping[GpuUuid, str]) -> RenderableType:
    columns = ("GPU", "Container", "Memory used", "Peak", "Utilisation")
    table = plain_table("Use by containers", *columns, right=("GPU", "Utilisation"))
    for container in use.containers:
        sizes = (
            UNKNOWN if size is None else format_bytes(size)
            for size in (container.used_bytes, container.peak_bytes)
        )
        name = f"{container.namespace}/{container.pod}/{container.container}"
        table.add_row(index_of.get(container.gpu, "?"), name, *sizes, part(container.utilisation))
    return table


def _hour_text(hour: HourRow | None) -> str:
    """The range of the utilisation in words; empty where it is not known."""
    known: Sequence[float] = [] if hour is None else [busy for busy in hour.utilisation if busy is not None]
    return f"{part(min(known))} to {part(max(known))}" if known else ""
