"""The journal of an interrupted change: its GPUs, and when it can be ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from partage.model.ids import GpuUuid

log = logging.getLogger(__name__)


class UnfinishedChange(Struct):
    """An interrupted change. gpus: of the journal without an end; None: there is no such journal."""

    state_dir: Path
    gpus: frozenset[GpuUuid] | None = None

    def read(self) -> frozenset[GpuUuid]:
        """Read the journal of an earlier agent. Returns GPUs with a step that the driver may still carry
        out."""
        from partage.edges.files.journal import Unfinished, UnreadableJournal, read_journal

        last = read_journal(self.state_dir)
        if isinstance(last, UnreadableJournal):
            log.warning("journal cannot be used", extra={"reason": last.reason})
        if not isinstance(last, Unfinished):
            return frozenset()
        log.warning(
            "a change was interrupted", extra={"reason": f"{last}; planned again from what is there now"}
        )
        self.gpus = frozenset(last.header.before)
        return self.gpus if last.open else frozenset()

    async def conclude(self, settled: Collection[GpuUuid]) -> None:
        """End the journal once all its GPUs have the desired layout. settled: GPUs that have it."""
        if self.gpus is None or not self.gpus <= set(settled):
            return
        from partage.edges.files.journal import Journal

        try:
            await asyncio.to_thread(Journal(self.state_dir).conclude)
        except OSError as error:
            log.warning("journal cannot be ended", extra={"reason": error.strerror})
        self.gpus = None
