"""Keeps the history of use: samples it while somebody holds a share, and writes it now and then."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from partage.agent.options import Intervals
from partage.agent.status.status import UsageObservation
from partage.edges.files.usage_days import UsageDays, date_of
from partage.edges.host.waiting import until_tick
from partage.model.usage_day import GpuSeen, UsageDay
from partage.plan.history.keeper import HistoryKeeper
from partage.plan.history.use_points import JobName, use_points

log = logging.getLogger(__name__)

_NO_JOBS: Mapping[str, JobName] = MappingProxyType({})


class HistoryObserver(Struct):
    """The day that runs, and the task that adds to it.

    look: asks what is used now. wanted: whether anybody holds a GPU. gpus: the models of the node. ask: for a
    turn of the loop. jobs: the names of Slurm's jobs, by number. wall: seconds since 1970. trouble: why the
    last write failed; empty if it did not.
    """

    files: UsageDays
    node: str
    look: Callable[[], Awaitable[UsageObservation | None]]
    wanted: Callable[[], bool]
    gpus: Callable[[], Iterable[GpuSeen]]
    intervals: Intervals
    ask: Callable[[], None] = lambda: None
    jobs: Callable[[], Mapping[str, JobName]] = lambda: _NO_JOBS
    wall: Callable[[], float] = time.time
    trouble: str = ""
    _keeper: HistoryKeeper | None = None
    _latest_s: float = 0.0
    _added_s: float = float("-inf")
    _written: tuple[str, int] = ("", 0)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    async def run(self) -> None:
        """Add a sample every history_s while it is wanted; write every history_write_s what is new."""
        keeper = self._keeper = HistoryKeeper(self.node, self.intervals.history_s)
        before = await asyncio.to_thread(self._load)
        keeper.begin(date_of(self.wall()), before)
        due_s = time.monotonic() + self.intervals.history_write_s
        while True:
            await until_tick(self.intervals.usage_s)
            now_s = time.monotonic()
            if (self.wanted() or keeper.running) and now_s - self._added_s >= self.intervals.history_s * 0.9:
                self._added_s = now_s
                await self._add(keeper)
            if now_s >= due_s:
                due_s, trouble = now_s + self.intervals.history_write_s, self.trouble
                await asyncio.to_thread(self.save)
                if self.trouble != trouble:
                    self.ask()

    def save(self) -> None:
        """Write what is new. Blocks, also while another thread writes. Not beside ``run``."""
        keeper = self._keeper
        with self._writing:
            if keeper is not None and keeper.samples and self._written != (keeper.date, keeper.samples):
                self._write(keeper.day())

    async def _add(self, keeper: HistoryKeeper) -> None:
        found = await self.look()
        if found is None or found.at_s <= self._latest_s:
            return  # the last call failed
        self._latest_s, now_s = found.at_s, self.wall()
        if (today := date_of(now_s)) != keeper.date:
            await asyncio.to_thread(self._next_day, keeper, today)
        keeper.know_gpus(self.gpus())
        keeper.add(now_s, use_points(found.use, found.samples, self.jobs()), found.use, found.samples)

    def _next_day(self, keeper: HistoryKeeper, today: str) -> None:
        """Also a day of the past, after a clock was set."""
        if keeper.samples:
            self._write(keeper.day(closed=True))
        loaded = self.files.read(today)
        self._note_unusable(loaded.problem)
        keeper.begin(today, loaded.day)

    def _load(self) -> UsageDay | None:
        """What the agent before has kept last: today's, or an earlier day that it could not close."""
        loaded = self.files.last()
        self._note_unusable(loaded.problem)
        if loaded.day is not None and loaded.day.date != date_of(self.wall()) and loaded.day.running:
            self._write(replace(loaded.day, running=()))
        return loaded.day

    def _write(self, day: UsageDay) -> None:
        trouble = self.files.write(day)
        if trouble and trouble != self.trouble:
            log.warning("history cannot be written", extra={"reason": trouble})
        if not trouble:
            self._written = (day.date, day.samples)
        self.trouble = trouble

    def _note_unusable(self, problem: str) -> None:
        if problem:
            log.warning("history cannot be used", extra={"problem": problem})
