"""The answer of ``/history.json``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast

from msgspec import Raw

from partage.answers.documents.document import Document
from partage.model.usage_day import UsageDay


class HistoryDocument(Document, kw_only=True):
    """What the agent has kept of the use of GPUs. days: the oldest first."""

    kind: Literal["History"] = "History"
    days: tuple[UsageDay, ...]


def history_document(files: Iterable[Raw]) -> HistoryDocument:
    """files: the days as they are on the disk. To take them apart would cost the agent memory."""
    return HistoryDocument(days=cast("tuple[UsageDay, ...]", tuple(files)))
