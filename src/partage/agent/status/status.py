"""Where the loop hangs its last report. Threads read it without a lock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from partage.edges.kubelet.port import EndpointState
from partage.plan.report import Report
from partage.plan.serve.watchdog import WatchResult
from partage.values import Frozen


class RequestCounts(Frozen):
    """What the kubelet has asked of one resource since the start."""

    allocations: int = 0
    refusals: int = 0
    pre_starts: int = 0


class AgentCounts(Struct):
    """What happened since the start. Written by the loop only.

    asked: by resource. xids: by GPU (empty: unknown) and code. changes: units of steps, by their ending.
    kills: processes that the watchdog ended, by GPU and how; not_killed: that it could not end, by GPU.
    """

    turns: int = 0
    reloads_ok: int = 0
    reloads_failed: int = 0
    helper_restarts: int = 0
    xids: Counter[tuple[str, int]] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    not_killed: Counter[str] = field(default_factory=Counter)
    asked: Callable[[], dict[str, RequestCounts]] = dict


class WatchObservation(Frozen):
    """What the watchdog saw when it looked last. at_s: when, on the agent's clock. blind: also of looks that
    failed; empty where all can be seen."""

    at_s: float
    watched: WatchResult
    blind: str = ""


class AgentStatus(Struct):
    """The last report, the pulse of the loop, and what has to be read live.

    clock: seconds that never go back; the pulse is on it. endpoints: how resources stand with the kubelet.
    helper_trouble: why the helper does not answer, empty where it does or where there is none.
    look: the watchdog's last one; None where nothing has to be watched, or has been yet.
    """

    clock: Callable[[], float]
    report: Report | None = None
    pulse_s: float = 0.0
    counts: AgentCounts = field(default_factory=AgentCounts)
    endpoints: Callable[[], Sequence[EndpointState]] = tuple
    helper_trouble: Callable[[], str] = str
    look: Callable[[], WatchObservation | None] = lambda: None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, report: Report) -> None:
        """Hang up a new report; whoever waits looks at it."""
        self.report = report
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, true_of: Callable[[Report], bool]) -> Report:
        """The first report, from the present one on, of which that is true. In the publishing loop only."""
        while self.report is None or not true_of(self.report):
            await self._news.wait()
        return self.report
