"""The journal of a change that was cut off: which GPUs it concerns, and when it is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

log = logging.getLogger(__name__)


class UnfinishedChange(Struct):
    """gpus: of the journal in the state directory that has no end; None: it has one."""

    state_dir: Path
    gpus: frozenset[str] | None = None

    def read(self) -> frozenset[str]:
        """Look whether an agent before us was cut off. Returns GPUs with a step that may still go on."""
        from partage.edges.files.journal import Unfinished, UnreadableJournal, read_journal

        last = read_journal(self.state_dir)
        if isinstance(last, UnreadableJournal):
            log.warning("journal cannot be used", extra={"reason": last.reason})
        if not isinstance(last, Unfinished):
            return frozenset()
        log.warning("a change was cut off", extra={"reason": f"{last}; planned again from what is there now"})
        self.gpus = frozenset(last.header.before)
        return self.gpus if last.open else frozenset()

    async def conclude(self, laid_out: Collection[str]) -> None:
        """End the journal once all its GPUs have the layout that is wanted. laid_out: GPUs that do."""
        if self.gpus is None or not self.gpus <= set(laid_out):
            return
        from partage.edges.files.journal import Journal

        try:
            await asyncio.to_thread(Journal(self.state_dir).conclude)
        except OSError as error:
            log.warning("journal cannot be ended", extra={"reason": error.strerror})
        self.gpus = None
