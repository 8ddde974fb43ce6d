"""Checks regularly how much of the shared GPUs each container uses; reports violations, and ends processes if
the policy says so.

It asks for a turn only when processes become visible or invisible, because then the guarantee of containers
changes. What is offered and held does not change for it (docs/adr/0054).

An MPS client is ended by its daemon: a signal to a busy client may hang the server for all clients. What
counts is what the daemon says, whatever the driver lists the process as. Pids are reused and the daemon does
not compare, so the process is checked again just before. Other processes are ended by the helper, which
compares itself (``edges.hardware.end_process``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from partage.agent.observers.containers import NodeContainers
from partage.agent.status.status import AgentCounts, WatchObservation
from partage.edges.hardware.port import Hardware
from partage.edges.host.waiting import until_tick
from partage.errors import DaemonError, HardwareError, NotFound, Unsupported
from partage.model.cgroup import parse_cgroup
from partage.model.gpu_use import GpuProcess, Processes, ProcessKind
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.mps import DaemonState
from partage.model.policy import WatchAction
from partage.model.share import NodeOffer
from partage.model.step import EndClient, EndProcess
from partage.plan.offer.desired import DesiredState
from partage.plan.offer.guarantees import gpus_to_watch, gpus_unwatched
from partage.plan.serve.watchdog import (
    Violation,
    ViolationKind,
    WatchResult,
    check_usage,
    gpus_that_claims_watch,
    grants_of,
)
from partage.units import format_bytes
from partage.values import Frozen

log = logging.getLogger(__name__)


_AT_ONCE = 8
"""Each may take the time from SIGTERM to SIGKILL. The helper takes 32 requests at a time, not only ours."""


class EndMethod(StrEnum):
    """How a process's work on a GPU was ended: by the MPS daemon, or with the process itself."""

    CLIENT = "client"
    PROCESS = "process"


class EndResult(Frozen):
    """The result of ending a container's processes.

    how: by pid, for each process that was ended. failed: why others still run, a sentence each. Processes
    that ended by themselves are in neither.
    """

    how: Mapping[int, EndMethod]
    failed: tuple[str, ...] = ()


async def end_processes(hardware: Hardware, violation: Violation) -> EndResult:
    """End what the violation names, one container's processes on one device."""
    several = asyncio.Semaphore(_AT_ONCE)

    async def one(row: GpuProcess) -> EndMethod | HardwareError | DaemonError | None:
        async with several:
            try:
                return await _end_one(hardware, row, violation)
            except NotFound:
                return None
            except (HardwareError, DaemonError) as error:
                return error

    rows = violation.usage.processes
    outcomes = dict(zip(rows, await asyncio.gather(*map(one, rows)), strict=True))
    return EndResult(
        {row.pid: how for row, how in outcomes.items() if isinstance(how, EndMethod)},
        tuple(str(error) for error in outcomes.values() if isinstance(error, HardwareError | DaemonError)),
    )


async def _end_one(hardware: Hardware, row: GpuProcess, violation: Violation) -> EndMethod:
    """End one process. Raises NotFound if it has ended, other HardwareErrors and DaemonError if it still
    runs."""
    if row.pid in violation.clients or await _is_client(hardware, row, violation):
        return await _end_client(hardware, row)
    for step in violation.ends:
        if step.pid == row.pid:
            await hardware.perform(step)
            return EndMethod.PROCESS
    if row.kind is ProcessKind.MPS_SERVER:
        raise Unsupported(f"process {row.pid} is called a server of MPS, and may have clients")
    raise Unsupported(
        f"/proc does not say when process {row.pid} began: another process may have its pid by now"
    )


async def _end_client(hardware: Hardware, row: GpuProcess) -> EndMethod:
    """End an MPS client by its daemon. If the process then uses the GPU without the daemon, end the
    process."""
    daemons = await hardware.daemons()
    step = _end_of(row, daemons)
    if not await _find_again(hardware, row):
        raise NotFound(f"process {row.pid} does not work on the GPU any more")
    if step is None:
        raise DaemonError(f"no MPS daemon of ours has process {row.pid} for a client")
    await hardware.perform(step)
    if _end_of(row, await hardware.daemons()) is not None:
        raise DaemonError(f"MPS client {row.pid} was told to end, and still runs")
    left = await _find_again(hardware, row)
    if left is None or left.start is None or left.kind is ProcessKind.MPS_CLIENT:
        return EndMethod.CLIENT
    await hardware.perform(EndProcess(left.gpu, left.pid, left.start, parse_cgroup(left.cgroups).container))
    return EndMethod.PROCESS


async def _is_client(hardware: Hardware, row: GpuProcess, violation: Violation) -> bool:
    """Whether one of our daemons has a process for a client that the driver lists as an ordinary one."""
    ends = any(step.pid == row.pid for step in violation.ends)
    return ends and _end_of(row, await hardware.daemons()) is not None


def _end_of(row: GpuProcess, daemons: Iterable[DaemonState]) -> EndClient | None:
    """The step that ends a client; None if no daemon has it."""
    for daemon in daemons:
        there = daemon.device == row.device if row.device else daemon.gpu == row.gpu
        for server in daemon.servers if there else ():
            if any(client.pid == row.pid for client in server.clients):
                return EndClient(row.gpu, daemon.device, server.pid, row.pid)
    return None


async def _find_again(hardware: Hardware, row: GpuProcess) -> GpuProcess | None:
    """The same process, if it still uses the same device in the same container."""
    same = (row.gpu, row.device, row.pid, row.start, parse_cgroup(row.cgroups).container)
    for now in (await hardware.processes()).rows:
        if (now.gpu, now.device, now.pid, now.start, parse_cgroup(now.cgroups).container) == same:
            return now
    return None


PATIENCE = 2
"""Checks in a row in which a container must exceed its share before it is ended. A single check may see a
worker that ends together with the next one that began, or a ledger that is not up to date yet. The same
number of checks must fail before GPUs count as unwatched: a helper that is restarted misses one."""

_Key = tuple[ViolationKind, DeviceUuid, str]
"""What is wrong, on which device, with which container."""


class _Case(Struct):
    """A container with a violation. checks: in a row. failed: why it could not be ended."""

    violation: Violation
    checks: int = 0
    ending: bool = False
    failed: tuple[str, ...] = ()


class Watchdog(Struct):
    """What was seen last, and the task that asks. Where nothing has to be watched, it rests.

    observation: the last one. first_check_done: so that the first turn can
    wait for it.
    """

    node: NodeContainers
    counts: AgentCounts
    observation: WatchObservation | None = None
    first_check_done: asyncio.Event = field(default_factory=asyncio.Event)
    _offer: NodeOffer = field(default_factory=dict)
    _promised: NodeOffer = field(default_factory=dict)
    _watch_of: Mapping[GpuUuid, WatchAction] = field(default_factory=dict)
    _by_policy: frozenset[GpuUuid] = frozenset()
    _watched: frozenset[GpuUuid] = frozenset()
    _held: bool = False
    _sees: bool = False
    _missed: int = 0
    _cases: dict[_Key, _Case] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    # --- the loop's side ---

    def update(self, desired: DesiredState | None, offer: NodeOffer) -> None:
        """Take the desired state, and what can be held now. What will be offered soon is watched already."""
        if desired is not None:
            self._watch_of = desired.watch_of
        wanted = desired.offer if desired else {}
        self._offer = offer
        self._promised = {gpu: (*offer.get(gpu, ()), *wanted.get(gpu, ())) for gpu in {**wanted, **offer}}
        self._by_policy = gpus_to_watch(self._promised, self._watch_of)
        entries = self.node.ledger.entries()
        watched = self._by_policy | gpus_that_claims_watch(entries, offer)
        if watched != self._watched or bool(entries) > self._held:
            self._news.set()
        self._watched, self._held = watched, bool(entries)

    @property
    def watched(self) -> frozenset[GpuUuid]:
        """GPUs whose use is seen at this moment, and watched for all containers."""
        return self._by_policy if self._sees else frozenset()

    @property
    def unwatched(self) -> frozenset[GpuUuid]:
        """GPUs with guarded shares that are not watched now."""
        return gpus_unwatched(self._promised, self.watched)

    # --- the task ---

    async def run(self) -> None:
        """Check every watch_s seconds while there is something to watch, and somebody holds a share."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._news.clear()
                if self._watched:
                    await self._check_all(group)
                else:
                    self._rest()
                self.first_check_done.set()
                await self._pause()

    async def _pause(self) -> None:
        if not self._watched:
            await self._news.wait()
            return
        watch_s = self.node.intervals.watch_s
        period_s = watch_s if self._held or self._missed else max(watch_s, self.node.intervals.rest_s)
        await until_tick(period_s, self._news, least_s=watch_s / 2)  # two checks see two moments

    def _rest(self) -> None:
        self.observation, self._sees, self._missed = None, False, 0
        self._cases.clear()

    async def _check_all(self, group: asyncio.TaskGroup) -> None:
        try:
            seen = await self.node.hardware.processes()
        except HardwareError as error:
            self._miss(str(error))
            return
        watched = self._watched
        seen = replace(seen, rows=tuple(row for row in seen.rows if row.gpu in watched))
        found = await self._check(seen)
        self._missed = 0
        self._note_hidden(found.hidden)
        self.observation = WatchObservation(self.node.clock(), found, found.hidden)
        self._note(found)
        for case in self._cases.values():
            if self._is_due(case):
                case.ending = True
                group.create_task(self._end(case), name=f"end {case.violation.usage.container[:12]}")

    async def _check(self, seen: Processes) -> WatchResult:
        counted = self.node.counted()
        named = seen.rows or counted
        names = await self.node.names() if named else {}
        grants = grants_of(self.node.ledger.entries(), self._offer)
        found = check_usage(seen, names, grants, self._watch_of, counted)
        if self.node.holders_known():
            return found
        # A container that the kubelet has not named yet may hold a share.
        return replace(
            found,
            violations=tuple(
                violation for violation in found.violations if violation.concern is ViolationKind.OVER
            ),
        )

    def _miss(self, reason: str) -> None:
        """The helper did not answer. After PATIENCE misses the last observation is dropped."""
        self._missed += 1
        for case in self._cases.values():
            case.checks = 0
        if self._missed >= PATIENCE:
            self._note_hidden(reason)
            self.observation = WatchObservation(self.node.clock(), WatchResult(), reason)

    # --- log ---

    def _note_hidden(self, hidden: str) -> None:
        before = self.observation.hidden if self.observation else ""
        if hidden and not before:
            log.warning("containers cannot be watched", extra={"reason": hidden})
        elif before and not hidden:
            log.info("containers are watched again")
        if self._sees == bool(hidden):
            self._sees = not hidden
            self.node.ask()

    def _note(self, found: WatchResult) -> None:
        """Update the cases; each is logged when it begins and when it ends."""
        now = {(over.concern, over.usage.device, over.usage.container): over for over in found.violations}
        for key in self._cases.keys() - now.keys():
            log.info(_OVER[key[0]], extra=_who(self._cases.pop(key).violation))
        for key, violation in now.items():
            if key not in self._cases:
                log.warning(_BEGUN[key[0]], extra=_who(violation) | _figures(violation))
            case = self._cases.setdefault(key, _Case(violation))
            case.violation, case.checks = violation, case.checks + 1

    # --- ending processes ---

    def _is_due(self, case: _Case) -> bool:
        """While processes may be hidden, the pids may differ from those of the MPS daemon."""
        violation = case.violation
        over = violation.concern is ViolationKind.OVER and violation.wanted is WatchAction.KILL
        return over and self._sees and case.checks >= PATIENCE and not case.ending

    async def _end(self, case: _Case) -> None:
        """End the container's processes; then it gets as many checks again."""
        violation = case.violation
        outcome = await end_processes(self.node.hardware, violation)
        if outcome.how:
            pids = {str(pid): str(how) for pid, how in outcome.how.items()}
            log.warning("container ended", extra=_who(violation) | _figures(violation) | {"pids": pids})
        self.counts.kills.update((violation.usage.gpu, str(how)) for how in outcome.how.values())
        self.counts.not_killed[violation.usage.gpu] += len(outcome.failed)
        if outcome.failed and outcome.failed != case.failed:
            log.error("container not ended", extra=_who(violation) | {"reason": "; ".join(outcome.failed)})
        case.failed, case.checks, case.ending = outcome.failed, 0, False


_BEGUN = {
    ViolationKind.OVER: "container exceeds its share",
    ViolationKind.UNGRANTED: "container uses a gpu without a share",
}
_OVER = {
    ViolationKind.OVER: "container no longer exceeds its share",
    ViolationKind.UNGRANTED: "container no longer uses the gpu without a share",
}


def _who(violation: Violation) -> dict[str, object]:
    usage = violation.usage
    holder = usage.holder
    named = {"pod": f"{holder.namespace}/{holder.pod}", "container": holder.container} if holder else {}
    return {**named, "id": usage.container[:12], "gpu": usage.gpu, "device": usage.device}


def _figures(violation: Violation) -> dict[str, object]:
    usage = violation.usage
    return {
        "used": format_bytes(usage.used_bytes),
        "share": format_bytes(usage.granted_bytes),
        "guarantee": str(usage.guarantee) if usage.guarantee else None,
        "processes": len(usage.processes),
    }
