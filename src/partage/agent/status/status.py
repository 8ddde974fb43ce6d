"""The agent's live status: last report, pulse, counts. Other threads read it without a lock.

Also whether anybody was ever a client of an MPS daemon, while its pipe is mounted read-only. Whether CUDA's
clients write to that directory is not known (ADR 132). If they do, their containers fail, and no client ever
connects; so that is what is looked for. Nothing else tells: the agent does not see why a container ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Raw, Struct, field

from partage.edges.kubelet.port import EndpointState
from partage.model.gpu_use import ProcessKind
from partage.model.ids import DeviceUuid, device_of
from partage.model.mps import DaemonPhase, DaemonState
from partage.model.samples import Samples
from partage.plan.report import Report
from partage.plan.serve.ledger_entry import LedgerEntry
from partage.plan.serve.watchdog import WatchResult
from partage.plan.usage import LastHour, NodeUse
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.plan.history.evidence import JobName


WITHIN_S = 60.0
"""A container that has held a share for so long without a client may have none, or may have failed."""


class MpsClientsSeen(Struct):
    """The daemons, by device and pid, of which clients were seen since the agent began."""

    _seen: set[tuple[DeviceUuid, int | None]] = field(default_factory=set)

    def note(self, daemons: Iterable[DaemonState], watched: WatchResult | None) -> None:
        """What was seen now: by the daemons themselves, or by the driver."""
        listed = {
            usage.device
            for usage in (watched.usages if watched else ())
            if any(process.kind is ProcessKind.MPS_CLIENT for process in usage.processes)
        }
        self._seen |= {
            (daemon.device, daemon.pid) for daemon in daemons if daemon.clients or daemon.device in listed
        }

    def missing(self, daemon: DaemonState, entries: Iterable[LedgerEntry], now_s: float) -> bool:
        """Whether it serves, shares of it have been held for a while, and nobody was ever its client."""
        if daemon.phase is not DaemonPhase.SERVING or (daemon.device, daemon.pid) in self._seen:
            return False
        return any(
            device_of(entry.id) == daemon.device and now_s - entry.since_s >= WITHIN_S for entry in entries
        )


class RequestCounts(Frozen):
    """The kubelet's requests for one resource since the start."""

    allocations: int = 0
    refusals: int = 0


class AgentCounts(Struct):
    """What happened since the start. Written by the loop only.

    asked: by resource. xids: by GPU (empty: unknown) and code; last_xids: the last code. changes:
    transactions, by how they ended. kills: processes that the watchdog ended, by GPU and how; not_killed:
    that it could not end, by GPU. limits: memory limits that were missing, by GPU and ``set`` or ``failed``.
    """

    turns: int = 0
    reloads_ok: int = 0
    reloads_failed: int = 0
    xids: Counter[tuple[str, int]] = field(default_factory=Counter)
    last_xids: dict[str, int] = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    not_killed: Counter[str] = field(default_factory=Counter)
    limits: Counter[tuple[str, str]] = field(default_factory=Counter)
    asked: Callable[[], dict[str, RequestCounts]] = dict


class WatchObservation(Frozen):
    """The watchdog's last check. at_s: when, on the agent's clock. hidden: why processes cannot be seen,
    also after failed checks; empty if they can."""

    at_s: float
    watched: WatchResult
    hidden: str = ""


class UsageObservation(Frozen):
    """What GPUs and containers use. at_s: when it was asked, on the agent's clock."""

    at_s: float
    samples: Samples
    use: NodeUse


class UseSeen(Frozen):
    """What was sampled for whoever wanted it, on the agent's clock. began_s: since when the agent could have
    sampled. sampled_s: when it did last; None: never. found: the last answer; None: nobody wants any.
    """

    began_s: float = 0.0
    sampled_s: float | None = None
    found: UsageObservation | None = None
    hour: LastHour = field(default_factory=dict)


class ClaimFigures(Frozen):
    """What metrics say of ResourceClaims. states: how many are started, and prepared. refused: since the
    start, by reason. prepares: calls of the kubelet; prepare_s: how long they took in all, in seconds.
    slices: how many there are, as wanted.
    """

    states: Mapping[str, int]
    refused: Mapping[str, int]
    prepares: int
    prepare_s: float
    slices: int


class AgentStatus(Struct):
    """The last report, the pulse of the loop, and values that are read live.

    clock: monotonic, in seconds; pulse_s is on it. endpoints: registration of each resource with the kubelet.
    stopped: why the loop counts as stopped although its pulse is young; empty if it does not.
    ended_tasks: which tasks of the agent cannot be kept running; empty if all run.
    helper_trouble: why the helper does not answer; empty if it does, or if there is none.
    watch_observation: the watchdog's last check; None if nothing is watched, or was checked yet.
    history: reads the days of the history of use as they are on the disk; None: none is kept.
    mps_clients: of which MPS daemons clients were seen; None: their pipes can be written.
    job_names: of the jobs that use GPUs now, by number; of a compute node of Slurm.
    claims: of the DRA driver; None: there is none.
    news: set at the next report; then another event is in its place.
    use_seen: what was sampled last, for whoever wanted it; asks nothing.
    usage: asks what is used now. Takes some milliseconds, a second at most; never call it in the agent's
    loop.
    """

    clock: Callable[[], float]
    report: Report | None = None
    pulse_s: float = 0.0
    counts: AgentCounts = field(default_factory=AgentCounts)
    endpoints: Callable[[], Sequence[EndpointState]] = tuple
    stopped: Callable[[], str] = str
    ended_tasks: Callable[[], str] = str
    helper_trouble: Callable[[], str] = str
    watch_observation: Callable[[], WatchObservation | None] = lambda: None
    usage: Callable[[], UsageObservation | None] = lambda: None
    use_seen: Callable[[], UseSeen] = UseSeen
    history: Callable[[], Iterable[Raw]] | None = None
    mps_clients: MpsClientsSeen | None = None
    job_names: Callable[[], Mapping[str, JobName]] = dict
    claims: Callable[[], ClaimFigures | None] = lambda: None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, report: Report) -> None:
        """Publish a new report, and wake those that wait for one."""
        self.report = report
        self.news.set()
        self.news = asyncio.Event()

    @property
    def all_accepted(self) -> bool:
        """Whether the kubelet has accepted every resource, and watches its list."""
        return all(state.registered and state.unwatched_since is None for state in self.endpoints())

    async def until(self, true_of: Callable[[Report], bool]) -> Report:
        """The first report, from the current one on, for which that is true. Call it in the publishing loop
        only."""
        while self.report is None or not true_of(self.report):
            await self.news.wait()
        return self.report

    async def reports(self) -> AsyncIterator[Report]:
        """Each report, from the current one on; the newest where several came meanwhile. As ``until``."""
        last: Report | None = None
        while True:
            last = await self.until(lambda report: report is not last)  # noqa: B023 - asked at once
            yield last
