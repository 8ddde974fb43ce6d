"""Asks what GPUs and containers use: at every scrape, and in between often enough to know who it was. And
keeps the history of it: a sample while somebody holds a share, written now and then.

It begins with the first scrape, or the first sample of the history, and ends some minutes after the last
one. Where nobody wants the figures, nothing is asked, and the helper samples nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from partage.agent.log import warn_anew
from partage.agent.observers.containers import NodeContainers
from partage.agent.options import Intervals
from partage.agent.status.status import UsageObservation, UseSeen
from partage.edges.files.usage_days import UsageDays, date_of
from partage.edges.hardware.port import SAMPLED_FOR_S
from partage.edges.host.waiting import until_tick
from partage.errors import HardwareError
from partage.model.ids import ContainerId
from partage.model.share import NodeOffer
from partage.model.usage_day import GpuSeen, UsageDay
from partage.plan.history.evidence import JobName, use_points
from partage.plan.history.keeper import HistoryKeeper
from partage.plan.serve.ledger_entry import Holder
from partage.plan.serve.watchdog import grants_of
from partage.plan.usage import LastHour, usage_of, with_samples

log = logging.getLogger(__name__)


def answer_in(
    wait_s: float,
    loop: asyncio.AbstractEventLoop,
    question: Coroutine[None, None, UsageObservation | None],
) -> UsageObservation | None:
    """The answer of a coroutine of that loop, from another thread; None where it takes longer."""
    asked = asyncio.run_coroutine_threadsafe(question, loop)
    with contextlib.suppress(TimeoutError, CancelledError, RuntimeError):
        return asked.result(wait_s)
    return None


class UsageObserver(Struct):
    """The last answer, what the answers of the last hour were, and the task that asks.

    offer: all that can be held now. trouble: why the last call failed.
    """

    node: NodeContainers
    offer: Callable[[], NodeOffer]
    observation: UsageObservation | None = None
    trouble: str = ""
    _hour: LastHour = field(default_factory=dict)
    _began_s: float = 0.0
    _sampled_s: float | None = None
    _names: dict[ContainerId, Holder] = field(default_factory=dict)
    _asking: asyncio.Task[None] | None = None
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _wanted_s: float = 0.0

    def __post_init__(self) -> None:
        self._began_s = self.node.clock()

    @property
    def seen(self) -> UseSeen:
        """What was sampled last. Nothing is asked for it, so that whoever reads it wakes nobody."""
        return UseSeen(self._began_s, self._sampled_s, self.observation, self._hour)

    async def run(self) -> None:
        """Ask every usage_s seconds while somebody wants to know."""
        while True:
            await self._wanted.wait()
            await until_tick(self.node.intervals.usage_s)
            if self.node.clock() - self._wanted_s > SAMPLED_FOR_S:
                self._wanted.clear()
                self.observation = None
            elif (
                self.observation is None
                or self.node.clock() - self.observation.at_s >= self.node.intervals.usage_s / 2
            ):
                await self._asked_once()

    async def ask(self) -> UsageObservation | None:
        """A new answer; where there is none, the last one."""
        self._wanted_s = self.node.clock()
        self._wanted.set()
        await self._asked_once()
        return self.observation

    async def look(self) -> UsageObservation | None:
        """As ``ask``, without more questions after it. Peaks are kept all the same."""
        await self._asked_once()
        return self.observation

    def fresh(self, loop: asyncio.AbstractEventLoop) -> UsageObservation | None:
        """As ``ask``, from another thread than that of the loop; the last answer where that takes too
        long.
        """
        return answer_in(self.node.intervals.usage_answer_s, loop, self.ask()) or self.observation

    async def _asked_once(self) -> None:
        """Callers that ask while another one waits get the same answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="usage")
        await asyncio.shield(self._asking)

    async def _ask(self) -> None:
        at_s = self.node.clock()
        try:
            samples = await self.node.hardware.samples()
        except HardwareError as error:
            self.trouble = str(error)
            return
        counted = self.node.counted()
        named = {at.container for at in counted}
        await self._learn_names(named | {peak.container for peak in samples.peaks if peak.container})
        granted = grants_of(self.node.ledger.entries(), self.offer())
        known = self.node.holders_known()
        use = usage_of(samples, self._names, granted, holders_known=known, counted=counted)
        self.observation, self.trouble = UsageObservation(at_s, samples, use), ""
        self._sampled_s, self._hour = at_s, with_samples(self._hour, samples, at_s)

    async def _learn_names(self, needed: set[ContainerId]) -> None:
        """The names of containers with a figure. Kept after the kubelet has removed the logs; they never
        change.
        """
        known = {one: holder for one, holder in self._names.items() if one in needed}
        if needed - known.keys():
            names = await self.node.names()
            known |= {container: names[container] for container in needed if container in names}
        self._names = known


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
        self.trouble = warn_anew(log, "history cannot be written", trouble, self.trouble)
        if not trouble:
            self._written = (day.date, day.samples)

    def _note_unusable(self, problem: str) -> None:
        if problem:
            log.warning("history cannot be used", extra={"problem": problem})
