"""Looks at who has the pipes of MPS daemons, when a container starts or one of them was given a command.

A look reads every process of the node. So it is made when the kubelet has named a new container, when a share
was given, and when a daemon's log has a command of somebody else; else once in a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import chain

from msgspec import Struct, field
from msgspec.structs import replace

from partage.agent.observers.containers import NodeContainers
from partage.agent.status.status import WatchObservation
from partage.agent.supervision import wait_at_most
from partage.edges.host.waiting import DirectoryChanges
from partage.errors import HardwareError
from partage.model.gpu import Driver, NoDriver
from partage.model.ids import DeviceUuid
from partage.model.mps import DaemonState, PipeTenants
from partage.model.share import Guarantee, NodeOffer
from partage.plan.reconcile.limit_trust import LimitTrust, Look, Now, next_trust
from partage.plan.serve.watchdog import GrantKind

log = logging.getLogger(__name__)

_NOT_YET = PipeTenants(unseen="it is not known yet who has the pipe of its MPS daemon")


class PipeTenantsObserver(Struct):
    """The last look, and what follows from it. Where no share is guarded, it rests.

    observation: of the watchdog, its last one.
    """

    node: NodeContainers
    changes: DirectoryChanges
    observation: Callable[[], WatchObservation | None]
    trust: LimitTrust = field(default_factory=LimitTrust)
    _look: Look | None = None
    _guarded: frozenset[DeviceUuid] = frozenset()
    _cause: object = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def soon(self) -> None:
        """Look soon: a share was given."""
        self._news.set()

    def doubts(
        self, offer: NodeOffer, daemons: tuple[DaemonState, ...], driver: Driver | NoDriver
    ) -> Mapping[DeviceUuid, str]:
        """Why the limits of daemons may not be what was set, at this moment, from the last look.

        offer: what can be held now, with the guarantees of its kinds.
        """
        rows = (row for devices in offer.values() for row in devices)
        guarded = frozenset(row.device for row in rows if row.guarantee is Guarantee.GUARDED)
        told = tuple((daemon.device, daemon.unsettled, daemon.doubt, daemon.pid) for daemon in daemons)
        if (cause := (self.node.ledger.version, guarded, told)) != self._cause:
            self._cause, self._guarded = cause, guarded
            self.soon()
        ours = tuple(daemon for daemon in daemons if daemon.device in guarded)
        if self._look is None:
            return dict.fromkeys(guarded, _NOT_YET.unseen)
        now = self._with_use(Now(self.node.clock(), ours, self.node.ledger.entries(), driver, self._look))
        before, self.trust = self.trust, next_trust(self.trust, now)
        _note(before.doubts, self.trust.doubts)
        if self.trust.to_set - before.to_set:
            self.node.ask()
        return {**dict.fromkeys(guarded - self.trust.known, _NOT_YET.unseen), **self.trust.doubts}

    def _with_use(self, now: Now) -> Now:
        """With the processes of containers that were seen with no more than their shares."""
        seen = self.observation()
        if seen is None or seen.hidden:
            return now
        kept = (
            usage.pids
            for usage in seen.watched.usages
            if usage.grant is GrantKind.HELD and not usage.over and not usage.partly
        )
        return replace(now, within=frozenset(chain.from_iterable(kept)), within_s=seen.at_s)

    async def run(self) -> None:
        """Look whenever there is a reason to, never twice within look_gap_s."""
        pause_s = self.node.intervals.look_gap_s
        while True:
            asked = await wait_at_most(self._news, pause_s if self._guarded else None)
            if not self._guarded:
                self._look, self.trust = None, LimitTrust()
                self._news.clear()
                continue
            pause_s = (
                self.node.intervals.look_gap_s
                if asked
                else min(2 * pause_s, self.node.intervals.look_longest_s)
            )
            self._news.clear()
            self.changes.watch(self.node.directory, self._news)
            last, names = self._look, await self.node.names()
            self._look = Look(await self._tenants(), names, self.node.clock())
            if last is None or replace(last, at_s=self._look.at_s) != self._look or self.trust.open:
                self.node.ask()
            await asyncio.sleep(self.node.intervals.look_gap_s)

    async def _tenants(self) -> PipeTenants:
        try:
            return await self.node.hardware.tenants()
        except HardwareError as error:
            return PipeTenants(unseen=str(error))


def _note(before: Mapping[DeviceUuid, str], now: Mapping[DeviceUuid, str]) -> None:
    for device, reason in now.items():
        if device not in before:
            log.warning("limits are doubted", extra={"device": device, "reason": reason})
    for device in before.keys() - now.keys():
        log.info("limits are certain again", extra={"device": device})
