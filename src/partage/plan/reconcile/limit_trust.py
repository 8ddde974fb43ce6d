"""Whether the limits of MPS daemons are what was set, and who may change them now. Pure.

``guarded`` means that nobody who has the daemon's pipe can change its limits, so one tenant decides for all.
A look tells who has the pipe at one moment. Between looks, what was not seen counts as what may: a
container that was given a share and has not been seen yet, and one that ended unseen (an init container, a
short-lived one). In such a time, and until the limits were set again after it, clients may have connected
while a limit was raised. So the limits are doubted until none of those clients is left, or each was seen with
no more than its share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf

from msgspec import field
from msgspec.structs import replace

from partage.model.gpu import Driver, NoDriver
from partage.model.ids import ContainerId, DeviceUuid, device_of
from partage.model.mps import DaemonPhase, DaemonState, PipeTenant, PipeTenants
from partage.plan.offer.mps_command import NAMESPACES, RESTRICTED, why_any_user_commands, why_own_servers
from partage.plan.serve.ledger_entry import Hold, Holder, LedgerEntry
from partage.values import Frozen


def why_commanded(daemon: DaemonState, tenants: PipeTenants, driver: Driver | NoDriver) -> str:
    """Who may change the limits of this daemon, and what to change, a sentence; empty: nobody can."""
    ours = [row for row in tenants.rows if row.device == daemon.device]
    if daemon.limits.apart:  # what is mounted into a container has no socket of the daemon's
        ours = [tenant for tenant in ours if tenant.whole]
        return tenants.unseen or _first(ours)
    if why := why_any_user_commands(driver):
        return why
    if not daemon.multi_user:
        return why_own_servers(driver) or _ONE_USER
    return tenants.unseen or _first(ours)


_ONE_USER = (
    "the MPS server is the tenant's own user's, who may set its limits: the daemon was started without one "
    "server for all users; leave 'users: single' out of the policy"
)


def _first(tenants: Iterable[PipeTenant]) -> str:
    for tenant in tenants:
        if why := why_tenant_commands(tenant):
            return why
    return ""


def why_tenant_commands(tenant: PipeTenant) -> str:
    """Why this tenant may command the daemon as root, and what to change; empty if it cannot."""
    if tenant.more:
        return f"{tenant} has too many kinds of processes to judge"
    why = next((found for rights in tenant.rights if (found := rights.why_root)), "")
    if not tenant.rights:
        why = "none of its processes could be read"
    change = "NoNewPrivs for its processes" if tenant.job else RESTRICTED
    return why and f"{tenant} can set the limits of the MPS daemon: {why}; set {change}, or use {NAMESPACES}"


UNSEEN_S = 5.0
"""A container that the kubelet names and that was not seen for so long has ended: it takes a moment from the
name to the process."""

OUTDATED = "its daemon is an older Partage's, in directories that tenants could change, until its GPU is free"


class Look(Frozen):
    """What was seen at one moment. names: containers of the node, by id, also those that have ended."""

    tenants: PipeTenants
    names: Mapping[ContainerId, Holder]
    at_s: float


class Suspicion(Frozen):
    """Limits may have been changed until since_s. clients: pids of those that may have connected by then.

    unlisted: there may be others, because the daemon did not say who its clients were.
    """

    reason: str
    clients: frozenset[int]
    since_s: float
    unlisted: bool = False


class Answered(Frozen, order=True):
    """A share that was given at some time: one container waits to be seen for each."""

    hold: Hold
    since_s: float


class LimitTrust(Frozen):
    """What is remembered between looks.

    known: devices whose daemons were looked at. told_apart: containers that need not be seen any more.
    missing: named ones that were not seen, since when. waiting: shares whose container was not seen yet, by
    device. suspected: devices whose limits are doubted for what was. exposed: devices whose limits somebody
    may have changed since they were set, with that time (``DaemonState.set_ns``). to_set: those of them where
    nobody may now.
    """

    known: frozenset[DeviceUuid] = frozenset()
    told_apart: frozenset[ContainerId] = frozenset()
    missing: Mapping[ContainerId, float] = field(default_factory=dict)
    waiting: Mapping[DeviceUuid, frozenset[Answered]] = field(default_factory=dict)
    suspected: Mapping[DeviceUuid, Suspicion] = field(default_factory=dict)
    exposed: Mapping[DeviceUuid, int] = field(default_factory=dict)
    to_set: frozenset[DeviceUuid] = frozenset()
    doubts: Mapping[DeviceUuid, str] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """A later look may change it, although it sees the same."""
        return bool(self.missing or self.suspected or any(self.waiting.values()))


class Now(Frozen):
    """The node at this moment. look: the last one. within: pids of clients that were seen with no more than
    their share, at within_s.
    """

    at_s: float

    daemons: tuple[DaemonState, ...]
    entries: tuple[LedgerEntry, ...]
    driver: Driver | NoDriver
    look: Look
    within: Collection[int] = ()
    within_s: float = -inf


def next_trust(before: LimitTrust, now: Now) -> LimitTrust:
    """What is to be remembered, with the reasons why limits are doubted. The look may be an older one."""
    entries: dict[DeviceUuid, list[LedgerEntry]] = {daemon_state.device: [] for daemon_state in now.daemons}
    for entry in now.entries:
        if (device := device_of(entry.id)) in entries:
            entries[device].append(entry)
    rows = now.look.tenants.rows
    running = {identity for row in rows for identity in (row.container, *row.beside) if identity}
    pods = {pod for held in entries.values() for entry in held for pod in entry.pods}
    named = {
        container for container, holder in now.look.names.items() if (holder.namespace, holder.pod) in pods
    }
    if not before.known:  # nobody looked before: what those may have done is suspected below
        before = LimitTrust(told_apart=frozenset(now.look.names) - running)
    missing = {
        container: before.missing.get(container, now.look.at_s)
        for container in sorted(named - before.told_apart - running)
    }
    ended = {container for container, since_s in missing.items() if now.look.at_s - since_s >= UNSEEN_S}
    told_apart = (before.told_apart | ended | running) & (frozenset(now.look.names) | running)
    waiting, suspected, doubts = {}, {}, {}
    exposed, to_set = {}, set()
    for daemon in now.daemons:
        device = daemon.device
        waiting[device] = _waiting(entries[device], now.look, running | (before.told_apart - ended))
        ended_here = _of(entries[device], ended, now.look.names) or _gave_up(
            before.waiting.get(device, frozenset()), entries[device]
        )
        unseen = _unseen(waiting[device])
        commanded = bool(why_commanded(daemon, now.look.tenants, now.driver) or unseen)
        had = device not in before.known and any(row.device == device for row in rows)
        if commanded or ended_here or had:
            exposed[device] = daemon.set_ns
        elif before.exposed.get(device, -1) >= daemon.set_ns:
            exposed[device] = before.exposed[device]
        if device in exposed and not commanded and not daemon.limits.apart:
            to_set.add(device)
        may_now = _may_now(now, daemon)
        exposure = None
        if (who := may_now or ended_here) or commanded or device in to_set:
            exposure = Exposure(who)
        elif device in before.to_set:  # set since the last turn: clients may have come before it
            exposure = Exposure("", over=True)
        suspicion = _suspicion(_earlier(before, now, device), now, daemon, exposure)
        if suspicion is not None:
            suspected[device] = suspicion
        still = _SET_AGAIN if device in to_set else ""
        if why := may_now or unseen or (suspicion.reason if suspicion else still):
            doubts[device] = why
    kept = {container: since_s for container, since_s in missing.items() if container not in ended}
    known = frozenset(daemon_state.device for daemon_state in now.daemons)
    return LimitTrust(known, told_apart, kept, waiting, suspected, exposed, frozenset(to_set), doubts)


def with_trust(daemons: Iterable[DaemonState], trust: LimitTrust) -> tuple[DaemonState, ...]:
    """Daemons, of which those are unsettled, too, whose limits somebody may have changed since they were set.

    Their log alone does not say that nobody has: what a daemon logs goes through ``pipe/log``, which
    everybody who has the pipe may read, and a tenant that is fast takes the line of its own command away
    (seen with 535, 550 and 555).
    """
    return tuple(
        replace(daemon, unsettled=_SET_AGAIN)
        if not daemon.unsettled
        and daemon.device in trust.to_set
        and trust.exposed[daemon.device] >= daemon.set_ns
        else daemon
        for daemon in daemons
    )


_SET_AGAIN = "a process that no longer has its pipe, or was not seen yet, may have given it commands"


def _may_now(now: Now, daemon: DaemonState) -> str:
    """Why the limits are or may be changed at this moment."""
    text = daemon.unsettled or daemon.doubt
    if text:
        return f"the limits of its MPS daemon are not certain: {text}"
    return (OUTDATED if daemon.outdated else "") or why_commanded(daemon, now.look.tenants, now.driver)


def _earlier(before: LimitTrust, now: Now, device: DeviceUuid) -> Suspicion | None:
    """What was suspected at the last turn: of a daemon that nobody watched, all its clients."""
    unwatched = Suspicion(_until("nobody watched its MPS daemon before"), frozenset(), now.at_s, True)
    return before.suspected.get(device, None if device in before.known else unwatched)


class Exposure(Frozen):
    """Limits may not have been those that were set, at some time since the last turn.

    who: who may have changed them, a clause; empty: nobody new, they were only not set again yet. over: they
    have been set again since.
    """

    who: str
    over: bool = False


def _suspicion(
    last: Suspicion | None, now: Now, daemon: DaemonState, exposure: Exposure | None
) -> Suspicion | None:
    """Which clients may have connected while limits were not those that were set."""
    if exposure is None:
        return _left(last, now, daemon)
    doubted = last is not None and (last.clients or last.unlisted)
    reason = last.reason if last and doubted and not exposure.who else _until(exposure.who or _SET_AGAIN)
    if daemon.phase is DaemonPhase.SILENT:  # who its clients are, it says later
        return Suspicion(reason, last.clients if last else frozenset(), now.at_s, True)
    clients = _clients(daemon)
    return Suspicion(reason, clients, now.at_s) if clients or not exposure.over else None


def _left(last: Suspicion | None, now: Now, daemon: DaemonState) -> Suspicion | None:
    """What is left of an earlier suspicion, once some clients have ended or were seen within their share."""
    if last is None or daemon.phase is DaemonPhase.SILENT:
        return last
    clients = _clients(daemon)
    of_before = clients if last.unlisted else last.clients & clients
    if not of_before or (now.within_s > last.since_s and of_before <= frozenset(now.within)):
        return None
    return replace(last, clients=of_before, unlisted=False)


def _clients(daemon: DaemonState) -> frozenset[int]:
    return frozenset(client.pid for client in daemon.clients)


def _until(reason: str) -> str:
    return (
        f"{reason}; its clients of that time may use more until they end, or each is seen with no more than "
        "its share"
    )


def _waiting(
    entries: Iterable[LedgerEntry], look: Look, seen: Collection[ContainerId]
) -> frozenset[Answered]:
    """Shares whose container was not seen yet."""
    return frozenset(
        Answered(entry.hold, entry.since_s)
        for entry in entries
        if entry.ended_s is None and not (entry.holder and _has(entry, look.names, seen))
    )


def _has(entry: LedgerEntry, names: Mapping[ContainerId, Holder], seen: Collection[ContainerId]) -> bool:
    return any(names.get(container) == entry.holder for container in seen)


def _unseen(waiting: Collection[Answered]) -> str:
    if not waiting:
        return ""
    return (
        "a container that was given a share has not been seen yet"
        if len(waiting) == 1
        else f"containers that were given {len(waiting)} shares have not been seen yet"
    )


def _of(
    entries: Iterable[LedgerEntry], ended: Collection[ContainerId], names: Mapping[ContainerId, Holder]
) -> str:
    """Which container of a pod with a share ended unseen, a clause; empty: none."""
    pods = {pod for entry in entries for pod in entry.pods}
    for container in sorted(ended):
        holder = names[container]
        if (holder.namespace, holder.pod) in pods:
            return f"container {holder.container} of {holder.namespace}/{holder.pod} ended before it was seen"
    return ""


def _gave_up(waited: Collection[Answered], entries: Iterable[LedgerEntry]) -> str:
    """That a share was given back, or on, before its container was seen."""
    there = {Answered(entry.hold, entry.since_s) for entry in entries}
    return "" if there.issuperset(waited) else "a container that was given a share ended before it was seen"
