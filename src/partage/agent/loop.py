"""When to turn. Outside events do not act, they ask for a turn; many requests, one turn."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from partage.agent.endpoints.cdi_specs import CdiSpecs
from partage.agent.endpoints.guard_files import GuardFiles
from partage.agent.endpoints.plugin_set import AnswerTerms, PluginSet
from partage.agent.endpoints.resource_plugin import ResourcePlugin
from partage.agent.observers.hardware import HardwareObserver, Observation
from partage.agent.observers.pod_resources import PodResourcesPoller
from partage.agent.observers.policy import PolicyObserver
from partage.agent.options import AgentOptions
from partage.agent.reconciler import Reconciler
from partage.agent.state_writer import StateWriter
from partage.agent.status.status import AgentStatus
from partage.agent.watchdog import Watchdog
from partage.model.gpu import NoDriver
from partage.model.share import GpuOffer
from partage.model.xid import DEFAULT_RULES, XidRules
from partage.plan.offer.desired import DesiredState
from partage.plan.offer.guarantees import believed
from partage.plan.report import Dependencies, Report, gpu_reports, resource_reports
from partage.plan.report_events import diff_reports
from partage.plan.serve.ledger import Ledger
from partage.plan.turn import NO_ROWS, KubeletView, NodeState, TurnInput, TurnResult, turn

log = logging.getLogger(__name__)


class Requests:
    """Turns that were asked for."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Ask for a turn, soon."""
        self._asked.set()

    async def wait(self, longest_s: float | None) -> None:
        """Wait until somebody asks, at most so long; all requests until now are taken."""
        try:
            async with asyncio.timeout(longest_s):
                await self._asked.wait()
        except TimeoutError:
            pass
        self._asked.clear()


@dataclass(slots=True)
class Parts:
    """What the loop turns: everything that it reads and writes."""

    settings: AgentOptions
    clock: Callable[[], float]
    board: AgentStatus
    requests: Requests
    ledger: Ledger
    sense: HardwareObserver
    holders: PodResourcesPoller
    policies: PolicyObserver
    changes: Reconciler
    plugins: PluginSet
    memory: StateWriter
    cdi: CdiSpecs
    guard: GuardFiles
    watchdog: Watchdog
    serve: Callable[[ResourcePlugin], None]
    rules: XidRules = DEFAULT_RULES


@dataclass(slots=True)
class Loop:
    """Turns, and keeps what lies between two turns.

    boot_id: of the boot in which the node was last seen, also by the agent before us; empty where unknown.
    """

    parts: Parts
    standing: NodeState = field(default_factory=NodeState)
    rows: KubeletView = NO_ROWS
    boot_id: str = ""
    _terms: AnswerTerms | None = None
    _due_s: float | None = None
    _number: int = 0

    async def run(self) -> None:
        """Turn whenever it is asked for or due, for ever."""
        intervals = self.parts.settings.intervals
        while True:
            await self.parts.requests.wait(self._pause_s())
            await self.turn()
            await asyncio.sleep(intervals.turn_gap_s)

    async def pulse(self) -> None:
        """Say that the loop is alive, for ever; a thread looks whether this is recent."""
        while True:
            self.parts.board.pulse_s = self.parts.clock()
            await asyncio.sleep(self.parts.settings.intervals.policy_s)

    async def turn(self) -> None:
        """One pass: see, decide, remember, publish, report.

        Shares that are new are on disk before anybody can have them: an agent that comes after us has to know
        what a held id was a share of, and the kubelet cannot tell it.
        """
        parts, began_s = self.parts, self.parts.clock()
        sensed = parts.sense.take()
        parts.policies.lay_on(sensed.node)
        parts.memory.has_seen(sensed.node)
        booted = self._has_booted(sensed)
        if booted:
            parts.changes.booted()
        entries, serving = parts.ledger.entries(), self.standing.serving
        wish = parts.changes.meanwhile(parts.policies.wish, sensed.node, entries, serving)
        seen = self._seen(sensed, wish, began_s, booted=booted)
        done = turn(seen, self.standing, self.rows, self._settle_s, parts.rules)
        is_new = _shares(done.standing) != _shares(self.standing)
        self.standing, self.rows, self._due_s = done.standing, done.rows, done.due_s
        parts.holders.waited_for(waited=any(done.waiting.values()))
        parts.memory.remember(self.standing, parts.policies.saved, parts.changes.before)
        if is_new:
            await parts.memory.written()
        parts.watchdog.stand(parts.policies.wish, self.rows.offer)
        self._publish(sensed)
        parts.changes.stand(self.standing.serving, self.standing.restored)
        self._report(sensed, wish, done, began_s)

    @property
    def _settle_s(self) -> float:
        return self.parts.settings.intervals.settle_s

    def _pause_s(self) -> float | None:
        return None if self._due_s is None else max(0.0, self._due_s - self.parts.clock())

    def _seen(
        self, sensed: Observation, wish: DesiredState | None, now_s: float, *, booted: bool
    ) -> TurnInput:
        ledger = self.parts.ledger
        return TurnInput(
            now_s=now_s,
            node=sensed.node,
            fresh=sensed.fresh,
            wish=wish,
            xids=sensed.xids,
            conditions=sensed.conditions,
            silent=sensed.silent,
            booted=booted,
            held=ledger.held(),
            held_version=ledger.version,
            entries=ledger.entries(),
            holders_known=self.parts.holders.known,
            unwell=self.parts.changes.unwell,
            in_hand=self.parts.changes.in_hand,
        )

    def _has_booted(self, sensed: Observation) -> bool:
        """Whether the node has booted since it was last seen. A simulated one may do so under our feet."""
        boot_id = sensed.node.inventory.boot_id if sensed.node else ""
        before, self.boot_id = self.boot_id, boot_id or self.boot_id
        return bool(before) and before != self.boot_id

    def _publish(self, sensed: Observation) -> None:
        """Serve the new rows. Without a driver, answers stay what they were when there was one."""
        parts, wish = self.parts, self.parts.policies.wish
        if sensed.node and wish and not isinstance(sensed.node.inventory.driver, NoDriver):
            inventory, options = sensed.node.inventory, wish.policy.options
            parts.cdi.want(inventory, options)
            parts.guard.want(offering for rows in self.rows.offer.values() for offering in rows)
            run_dir, guard_dir = str(parts.settings.run_dir), parts.guard.directory
            unwatched = parts.watchdog.unwatched
            self._terms = AnswerTerms(inventory, options, run_dir, parts.cdi.classes, guard_dir, unwatched)
        if self._terms is not None:
            for plugin in parts.plugins.publish(self.rows, self._terms):
                parts.serve(plugin)

    def _report(
        self, sensed: Observation, wish: DesiredState | None, done: TurnResult, began_s: float
    ) -> None:
        parts = self.parts
        self._number += 1
        entries = parts.ledger.entries()
        listed = {name: plugin.devices().rows for name, plugin in parts.plugins.by_name.items()}
        now_s = parts.clock()
        report = Report(
            at_s=time.time(),
            clock_s=now_s,
            number=self._number,
            took_s=now_s - began_s,
            node=sensed.node,
            offer=believed(done.rows.offer, parts.watchdog.unwatched),
            gpus=gpu_reports(sensed.node, done, wish, entries, parts.changes.looks.daemons or ()),
            resources=resource_reports(listed, entries),
            entries=entries,
            policy=parts.policies.report,
            neighbours=self._neighbours(),
        )
        for one in diff_reports(parts.board.report, report):
            log.log(logging.WARNING if one.grave else logging.INFO, one.event, extra=dict(one.facts))
        counts = parts.board.counts
        counts.turns = self._number
        counts.reloads_ok, counts.reloads_failed = parts.policies.reloads_ok, parts.policies.reloads_failed
        parts.board.publish(report)

    def _neighbours(self) -> Dependencies:
        parts = self.parts
        return Dependencies(
            hardware=parts.sense.trouble,
            pod_resources=parts.holders.trouble,
            state_dir=parts.memory.trouble,
            cdi=parts.cdi.trouble,
            guard=parts.guard.trouble,
        )


def _shares(standing: NodeState) -> dict[str, GpuOffer]:
    """What containers can have, or have, by GPU."""
    return {gpu: (*now.offer, *now.leaving) for gpu, now in standing.serving.items()}
