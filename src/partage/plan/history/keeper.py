"""Keeps the day's summary of each workload, from one sample to the next. In bounded memory; does no I/O.

The course of a run is kept in a few numbers: lowest and highest of parts of equal length.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from partage.model.samples import Samples
from partage.model.usage_day import BUSY_UP_TO, GpuSeen, RunNow, UsageDay, WorkloadDay
from partage.plan.history.evidence import UsePoint, grows, spread
from partage.plan.usage import MOST_ROWS, NodeUse

MOST_PARTS = 24
"""When there are so many, each two become one. The first tenth of a run, which does not count for its
steadiness, is up to a sixth of it so."""


class Curve(Struct):
    """lows, highs: of each part, in bytes. width: samples in a part; last: in the last one."""

    lows: array[int]
    highs: array[int]
    width: int = 1
    last: int = 0

    @classmethod
    def of(cls, lows: Iterable[int] = (), highs: Iterable[int] = (), width: int = 1, last: int = 0) -> Curve:
        """From plain numbers."""
        return cls(array("q", lows), array("q", highs), width, last)

    def add(self, used_bytes: int) -> None:
        """The next sample."""
        if self.highs and self.last < self.width:
            self.lows[-1] = min(self.lows[-1], used_bytes)
            self.highs[-1] = max(self.highs[-1], used_bytes)
            self.last += 1
            return
        if len(self.highs) == MOST_PARTS:
            self.lows = array("q", map(min, self.lows[::2], self.lows[1::2]))
            self.highs = array("q", map(max, self.highs[::2], self.highs[1::2]))
            self.width *= 2
        self.lows.append(used_bytes)
        self.highs.append(used_bytes)
        self.last = 1


MOST_WORKLOADS = 512
"""On one day. The one that was seen longest ago leaves first; while all of them run, no other comes in."""
MOST_RUNS = MOST_ROWS
"""Containers at a time; more have no figures."""
ENDED_AFTER_S = 600.0
"""A container that is not seen for so long, while the agent looks, has ended. One of the same name is another
run then."""
_LOOSE = 1.5
"""Two samples are together if they are not further apart than this many steps."""


class _Run(Struct, eq=False):
    """A container on one device. date: of the last day on which it was counted. absent_s: how long it was
    looked for and not found."""

    workload: str
    first_s: int
    last_s: int
    curve: Curve
    peak_bytes: int = 0
    peak_at_s: int = 0
    date: str = ""
    absent_s: float = 0.0


class _WorkloadDay(Struct, eq=False):
    """The day of one workload. busy: as in its summary, all classes. highest, longest: the runs with its peak
    and its length; None: it was before this agent."""

    summary: WorkloadDay
    busy: list[int]
    highest: _Run | None = None
    longest: _Run | None = None


class HistoryKeeper:
    """One day after the other: ``begin``, then ``add`` each sample. Times are seconds since 1970."""

    def __init__(self, node: str, step_s: float) -> None:
        self._node, self._step_s = node, step_s
        self._rows: dict[str, _WorkloadDay] = {}
        self._runs: dict[str, _Run] = {}
        self._last_s: float | None = None
        self._full_s: int | None = None
        self._used = self._rest = 0
        self._head = UsageDay("", node, step_s)

    @property
    def date(self) -> str:
        """Of the day that runs; empty before the first one."""
        return self._head.date

    @property
    def running(self) -> bool:
        """Whether there are containers of which no end was seen."""
        return bool(self._runs)

    @property
    def samples(self) -> int:
        """Of this day."""
        return self._head.samples

    def begin(self, date: str, before: UsageDay | None = None) -> None:
        """Begin a day. before: what an earlier agent has kept last, of this day or of an earlier one. Runs
        go on over midnight, and from one agent to the next."""
        day = before if before and before.date == date else UsageDay(date, self._node, self._step_s)
        self._head = replace(day, date=date, node=self._node, step_s=self._step_s, workloads=(), running=())
        self._used, self._rest = day.used_bytes * day.samples, day.rest_bytes * day.samples
        self._rows = {
            workload.workload: _WorkloadDay(workload, _wide(workload.busy))
            for workload in day.workloads[-MOST_WORKLOADS:]
        }
        if before and not self._runs:
            for run in before.running[:MOST_RUNS]:
                self._resume(run, before.date)

    def add(self, now_s: float, points: Iterable[UsePoint], use: NodeUse, samples: Samples) -> None:
        """One sample of the node."""
        seen: dict[str, str] = {}
        devices: Counter[tuple[str, str]] = Counter()
        for point in points:
            if self._add_point(int(now_s), point):
                seen[point.run] = point.workload
                if point.amount.used_bytes or point.amount.peak_bytes:
                    devices[point.workload, point.container or point.run] += 1
        self._count(Counter(seen.values()), devices)
        since_s = 0.0 if self._last_s is None else max(0.0, now_s - self._last_s)
        self._forget(seen, min(since_s, _LOOSE * self._step_s))
        self._last_s = now_s
        self._used += sum(sample.memory.used_bytes for sample in samples.gpus if sample.memory is not None)
        self._rest += sum(rest.used_bytes for rest in use.rest)
        self._head = replace(self._head, samples=self._head.samples + 1)

    def know_gpus(self, gpus: Iterable[GpuSeen]) -> None:
        """The models that the node has now."""
        models = tuple(dict.fromkeys((*self._head.gpus, *gpus)))
        self._head = replace(self._head, gpus=models)

    def day(self, *, closed: bool = False) -> UsageDay:
        """The day as it is now, the workloads that were seen last at the end. closed: without what runs."""
        number = self._head.samples
        rows = sorted(self._rows.values(), key=lambda row: row.summary.last_s)
        return replace(
            self._head,
            used_bytes=self._used // number if number else 0,
            rest_bytes=self._rest // number if number else 0,
            workloads=tuple(replace(row.summary, busy=_narrow(row.busy)) for row in rows),
            running=() if closed else tuple(self._running()),
        )

    # --- a point ---------------------------------------------------------------------------------

    def _add_point(self, now_s: int, point: UsePoint) -> bool:
        """Whether it says anything."""
        run = self._runs.get(point.run)
        used, peak = point.amount.used_bytes, point.amount.peak_bytes or 0
        if used is None and run is None:
            used = point.amount.peak_bytes  # it has ended before it was seen
        if used is None:
            if run is not None and peak > run.peak_bytes:
                run.peak_bytes, run.peak_at_s = peak, now_s
                if (row := self._rows.get(run.workload)) is not None:
                    self._judge(row, run, point)
            return False
        gap_s, started = 0, run is None
        if run is None:
            if len(self._runs) >= MOST_RUNS:
                return False
            run = self._runs[point.run] = _Run(point.workload, now_s, now_s, Curve.of())
        else:
            gap_s = max(0, now_s - run.last_s)
        new, run.date = run.date != self.date, self.date
        run.last_s, run.absent_s = max(now_s, run.last_s), 0.0
        run.curve.add(used)
        if (highest := max(used, peak)) > run.peak_bytes:
            run.peak_bytes, run.peak_at_s = highest, now_s
        row = self._row(point.workload, now_s)
        if row is None:
            self._head = replace(self._head, left_out=self._head.left_out + new)
            return True
        if new or not row.summary.samples:
            row.summary = replace(
                row.summary, runs=row.summary.runs + 1, started=row.summary.started + started
            )
        if point.amount.sm is not None:
            row.busy[bisect_left(BUSY_UP_TO, min(point.amount.sm, 1.0))] += 1
        step = round(self._step_s)
        row.summary = replace(
            row.summary,
            last_s=max(now_s, row.summary.last_s),
            samples=row.summary.samples + 1,
            run_s=row.summary.run_s + (step if started else gap_s),
            seen_s=row.summary.seen_s + (step if started else min(gap_s, round(_LOOSE * self._step_s))),
            share_bytes=_most(row.summary.share_bytes, point.share_bytes),
            processes=max(row.summary.processes, point.amount.processes),
        )
        self._judge(row, run, point)
        return True

    def _judge(self, row: _WorkloadDay, run: _Run, point: UsePoint) -> None:
        """What the run with the peak and the longest run say of their workload."""
        day, length_s = row.summary, run.last_s - run.first_s
        if run.peak_bytes > day.peak_bytes or row.highest is run:
            row.highest = run
            day = replace(
                day,
                peak_bytes=max(day.peak_bytes, run.peak_bytes),
                peak_at_s=run.peak_at_s,
                spread=round(spread(run.curve.lows, run.curve.highs, run.peak_bytes), 4),
            )
        if length_s > day.longest_s or row.longest is run:
            row.longest = run
            day = replace(day, longest_s=max(length_s, day.longest_s), growing=grows(run.curve.highs))
        full = run.peak_bytes / point.visible_bytes if point.visible_bytes else 0.0
        exact = day.exact and point.amount.peak_bytes is not None and not point.amount.partly
        row.summary = replace(day, full=max(day.full, round(min(full, 1000.0), 4)), exact=exact)

    def _row(self, workload: str, now_s: int) -> _WorkloadDay | None:
        """None: there is no room for it."""
        row = self._rows.get(workload)
        if row is None:
            if len(self._rows) >= MOST_WORKLOADS and not self._make_room(now_s):
                return None
            row = self._rows[workload] = _WorkloadDay(_empty(workload, now_s), _wide(()))
        return row

    def _make_room(self, now_s: int) -> bool:
        """Let the workload go that was seen longest ago, unless it may still run."""
        if self._full_s == now_s:
            return False
        oldest = min(self._rows, key=lambda name: self._rows[name].summary.last_s)
        if self._rows[oldest].summary.last_s >= now_s - ENDED_AFTER_S:
            self._full_s = now_s
            return False
        del self._rows[oldest]
        self._head = replace(self._head, left_out=self._head.left_out + 1)
        return True

    def _count(self, at_once: Mapping[str, int], devices: Mapping[tuple[str, str], int]) -> None:
        for workload, count in at_once.items():
            row = self._rows.get(workload)
            if row is not None:
                row.summary = replace(row.summary, at_once=max(count, row.summary.at_once))
        for (workload, _), count in devices.items():
            row = self._rows.get(workload)
            if row is not None:
                row.summary = replace(row.summary, devices=max(count, row.summary.devices))

    def _forget(self, seen: Mapping[str, str], looked_s: float) -> None:
        """Runs that have ended."""
        for name in [name for name in self._runs if name not in seen]:
            run = self._runs[name]
            run.absent_s += looked_s
            if run.absent_s > ENDED_AFTER_S:
                del self._runs[name]

    # --- over a restart --------------------------------------------------------------------------

    def _running(self) -> Iterator[RunNow]:
        """Those that have run longest at first: their course is worth most."""
        for name, run in sorted(self._runs.items(), key=lambda item: item[1].first_s):
            row, curve = self._rows.get(run.workload), run.curve
            yield RunNow(
                run=name,
                workload=run.workload,
                first_s=run.first_s,
                last_s=run.last_s,
                peak_bytes=run.peak_bytes,
                peak_at_s=run.peak_at_s,
                width=curve.width,
                last=curve.last,
                lows=tuple(curve.lows),
                highs=tuple(curve.highs),
                has_peak=row is not None and row.highest is run,
                is_longest=row is not None and row.longest is run,
            )

    def _resume(self, run_now: RunNow, date: str) -> None:
        known = (
            0 < len(run_now.lows) == len(run_now.highs) <= MOST_PARTS and 0 < run_now.last <= run_now.width
        )
        curve = Curve.of(run_now.lows, run_now.highs, run_now.width, run_now.last) if known else Curve.of()
        run = _Run(
            run_now.workload,
            run_now.first_s,
            run_now.last_s,
            curve,
            run_now.peak_bytes,
            run_now.peak_at_s,
            date,
        )
        self._runs[run_now.run] = run
        row = self._rows.get(run_now.workload)
        if row is not None:  # of this day: begin() takes no other's rows
            row.highest = run if run_now.has_peak else row.highest
            row.longest = run if run_now.is_longest else row.longest


def _empty(workload: str, now_s: int) -> WorkloadDay:
    return WorkloadDay(
        workload=workload, first_s=now_s, last_s=now_s, seen_s=0, run_s=0, samples=0, runs=0, started=0,
        at_once=0, peak_bytes=0, peak_at_s=now_s, spread=0.0, longest_s=0, growing=False, full=0.0,
        exact=True, processes=0, share_bytes=None, busy=(),
    )  # fmt: skip


def _most(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else max(one, other)


def _wide(busy: tuple[int, ...]) -> list[int]:
    return [*busy, *(0 for _ in BUSY_UP_TO)][: len(BUSY_UP_TO)]


def _narrow(busy: list[int]) -> tuple[int, ...]:
    last = max((number for number, count in enumerate(busy) if count), default=-1)
    return tuple(busy[: last + 1])
