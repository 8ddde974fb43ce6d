"""Which GPUs are cordoned: by a file in the state directory, and by the annotation of the own Node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field

from partage.agent.options import Intervals
from partage.edges.files.node_notes import BY_HAND, BY_NODE, read_names, write_names
from partage.edges.host.waiting import DirectoryChanges
from partage.errors import InputError
from partage.model.gpu import Gpu
from partage.model.ids import GpuUuid
from partage.plan.serve.cordon import CORDONED, cordoned_gpus, names_in

log = logging.getLogger(__name__)


class CordonObserver(Struct):
    """The names of cordoned GPUs. ask: asks for a turn.

    A file that cannot be read changes nothing.
    """

    state_dir: Path
    changes: DirectoryChanges
    intervals: Intervals
    ask: Callable[[], None]
    by_hand: frozenset[str] = frozenset()
    by_node: frozenset[str] = frozenset()
    _seen: tuple[int, ...] = ()
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self, *, in_cluster: bool) -> None:
        """Read what was cordoned before the agent started; without a cluster no Node says anything."""
        self._look()
        if in_cluster:
            self.by_node = self._read(BY_NODE, self.by_node)

    async def watch(self) -> None:
        """Look at the file whenever its directory changes, and again and again."""
        intervals = self.intervals
        while True:
            await self.changes.wait(
                [self.state_dir], self._changed, told_s=intervals.rest_s, untold_s=intervals.policy_s
            )
            before = self.by_hand
            self._look()
            if self.by_hand != before:
                log.info("cordoned by hand", extra={"gpus": sorted(self.by_hand) or None})
                self.ask()

    def know_annotations(self, annotations: Mapping[str, str]) -> None:
        """The annotations of the Node are these now."""
        names = names_in(annotations.get(CORDONED, ""))
        if names == self.by_node:
            return
        self.by_node = names
        log.info("cordoned by the Node", extra={"gpus": sorted(names) or None})
        try:
            write_names(self.state_dir / BY_NODE, names)
        except InputError as error:
            log.warning("cordoned GPUs are not remembered", extra={"problem": str(error)})
        self.ask()

    def gpus(self, known: Mapping[GpuUuid, Gpu]) -> frozenset[GpuUuid]:
        """The GPUs that are cordoned."""
        return (
            cordoned_gpus(self.by_hand | self.by_node, known) if self.by_hand or self.by_node else frozenset()
        )

    def _look(self) -> None:
        try:
            found = (self.state_dir / BY_HAND).stat()
        except OSError as error:
            now: tuple[int, ...] = (error.errno or 0,)
        else:
            now = (found.st_ino, found.st_size, found.st_mtime_ns)
        if now != self._seen:
            self._seen = now
            self.by_hand = self._read(BY_HAND, self.by_hand)

    def _read(self, name: str, before: frozenset[str]) -> frozenset[str]:
        try:
            return names_in(read_names(self.state_dir / name))
        except InputError as error:
            log.warning("cordoned GPUs cannot be read", extra={"problem": str(error)})
            return before
