"""The agent's loop: one turn after another. Events only ask for a turn; many requests make one turn."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from partage.agent.endpoints.plugin_set import AllocateContext
from partage.agent.status.readiness import kubelet_trouble
from partage.edges.host.waiting import until_tick
from partage.model.gpu import Inventory, NoDriver
from partage.model.ids import GpuUuid, ResourceName, ShareId
from partage.model.policy import Policy
from partage.model.share import GpuOffer, plugin_resources
from partage.plan.gpu_operator import mig_config_report
from partage.plan.offer.driver_limits import able, wants_limits
from partage.plan.offer.guarantees import promised, served_by_own_users
from partage.plan.reconcile.known_node import UNSEEN, KnownNode
from partage.plan.reconcile.limit_trust import with_trust
from partage.plan.reconcile.node_plan import NodePlan, Snapshot
from partage.plan.report import (
    DependencyProblems,
    MigConfigReport,
    Report,
    ReportTime,
    ResourceReport,
    gpu_reports,
    resource_reports,
)
from partage.plan.serve.claim_offer import (
    NodeMoment,
    asked_by_claim,
    in_force,
    made_on_demand,
    options_for_claims,
)
from partage.plan.serve.held_limits import limits_read
from partage.plan.serve.kubelet_view import EMPTY_VIEW, KubeletView
from partage.plan.turn import NodeState, TurnInput, TurnResult, turn

if TYPE_CHECKING:
    from partage.agent.kubelet_service import KubeletService

log = logging.getLogger(__name__)


class Loop(Struct):
    """Makes turns, and keeps the state between two turns.

    parts: what it reads, and whom it tells.
    """

    parts: KubeletService
    state: NodeState = field(default_factory=NodeState)
    view: KubeletView = EMPTY_VIEW
    _terms: AllocateContext | None = None
    _due_s: float | None = None
    _number: int = 0
    _policy: Policy | None = None
    _unknown_before: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Make a turn whenever one is asked for or due."""
        intervals = self.parts.options.intervals
        while True:
            await self.parts.requests.wait(self._pause_s())
            await self.turn()
            await asyncio.sleep(intervals.turn_gap_s)

    async def pulse(self) -> None:
        """Note regularly that the event loop is alive; the HTTP thread checks how old the note is. And make a
        turn when the kubelet has not accepted a resource for long, or has at last."""
        while True:
            self.parts.status.pulse_s = self.parts.clock()
            report = self.parts.status.report
            if report and (seen := self.parts.status.mps_clients) is not None:
                watched = self.parts.watchdog.observation
                daemons = (daemon for gpu in report.gpus for daemon in gpu.daemons)
                seen.note(daemons, watched.watched if watched else None)
            if report and self._kubelet_trouble(report.resources) != report.dependencies.kubelet:
                self.parts.requests.ask()
            intervals = self.parts.options.intervals
            await until_tick(intervals.rest_s if self.parts.status.all_accepted else intervals.policy_s)

    async def turn(self) -> None:
        """One turn: observe, decide, save, publish, report.

        New shares are on disk before they can be allocated: the next agent must know the offer of a held id,
        and the kubelet does not know it.
        """
        parts, began_s = self.parts, self.parts.clock()
        seen, on_disk = self._seen(), _shares(self.state)
        done = self._decide(seen)
        while _shares(done.state) != on_disk:
            await parts.state_writer.written()
            on_disk = _shares(done.state)
            seen = replace(seen, snapshot=self.snapshot(), held_version=parts.ledger.version)
            done = self._decide(seen)  # the disk may have taken seconds, and pods may have come meanwhile
        self.state, self.view, self._due_s = done.state, done.view, done.plan.due_s
        if parts.ledger.suspect(done.plan.suspected):
            parts.pod_resources.soon()
        parts.pod_resources.waited_for(
            waited=any(done.plan.waiting.values()), answer=bool(done.view.withdrawn)
        )
        parts.watchdog.update(parts.policies.desired, self.view.offer)
        if parts.limit_holders.update(self.view.offer, seen.node.inventory):
            parts.memory_limits.soon()
        self._publish(seen.node, done.plan)
        parts.reconciler.published(done.plan)
        self._report(seen, done, began_s)

    def _decide(self, seen: TurnInput) -> TurnResult:
        """What a turn decides; the state goes to the disk."""
        parts = self.parts
        done = turn(seen, self.state, self.view, parts.planner, parts.rules)
        parts.remember(done.state.serving, done.state.health)
        return done

    def snapshot(self) -> Snapshot:
        """The planner's input at this moment."""
        parts = self.parts
        observed = parts.settings.observed(parts.hardware.node or UNSEEN)
        if observed.daemons is not None:
            trusted = with_trust(observed.daemons, parts.pipe_tenants.trust)
            observed = replace(observed, daemons=trusted)
        if (desired := parts.policies.desired) is not None:
            wanted = parts.planner.with_claims(desired, parts.ledger.entries())
            parts.originals.prune(wanted, observed)
        return Snapshot(
            now_s=parts.clock(),
            observed=observed,
            served=self.state.serving,
            held=parts.ledger.held(),
            entries=parts.ledger.entries(),
            unknown=self._unknown(observed.node),
            original=parts.originals.by_gpu,
            absent=self.state.absent,
            attempts=parts.reconciler.attempts,
            in_hand=parts.reconciler.in_hand,
            gave_up=parts.cluster.gave_up,
            spared=parts.cluster.spared,
            cordoned=parts.cordon.gpus(observed.node.known),
            other_plugin=parts.other_plugins.sentence,
            checkpoint=not (parts.pod_resources.unreadable or parts.pod_resources.unproven),
            listed_before=self._listed_before(observed.node),
            demands=parts.policies.desired.on_demand if parts.policies.desired else {},
        )

    def _unknown(self, node: KnownNode) -> frozenset[GpuUuid]:
        """GPUs whose holders are not known.

        Without the kubelet's checkpoint, what an earlier agent gave may be held though nobody names it.
        """
        kubelet = self.parts.pod_resources
        unknown = frozenset((*node.known, *self.state.serving)) - kubelet.known
        return unknown | (self.state.restored if kubelet.unreadable else frozenset())

    def _listed_before(self, node: KnownNode) -> Mapping[ResourceName, frozenset[ShareId]]:
        """While it can matter: reports would carry it along for ever."""
        return self.parts.pod_resources.listed if node.known.keys() - self.state.serving.keys() else {}

    def is_settled(self) -> bool:
        """Whether a turn would say what the last one said, as long as nothing is new."""
        report, plugins = self.parts.status.report, self.parts.plugins.by_name
        return (
            report is not None
            and report.is_settled
            and self._dependencies(report.resources) == report.dependencies
            and not (self.view.withdrawn or self.view.blocked)
            and all(plugin.devices().rows for plugin in plugins.values())
        )

    def plan(self) -> NodePlan:
        """A plan of this moment."""
        return self.parts.planner.plan(self.parts.policies.desired, self.snapshot())

    def _pause_s(self) -> float | None:
        now_s = self.parts.clock()
        dues = [due for due in (self._due_s, self.parts.refusals.due_s(now_s)) if due is not None]
        return max(0.0, min(dues) - now_s) if dues else None

    def _seen(self) -> TurnInput:
        parts = self.parts
        news, node = parts.hardware.take(), parts.hardware.node
        boot_id = node.inventory.boot_id if node else ""
        parts.policies.resolve_on(node, parts.claims.demands(boot_id))
        if news.booted:
            parts.originals.forget()
            parts.settings.forget()
        self._note_policy()
        snapshot = self.snapshot()
        if snapshot.unknown - self._unknown_before:
            parts.pod_resources.now()
        self._unknown_before = snapshot.unknown
        desired = parts.policies.desired
        return TurnInput(
            snapshot=snapshot,
            desired=desired,
            news=news,
            held_version=parts.ledger.version,
            answered_s=parts.pod_resources.answered_s,
            refused=parts.refusals.in_force(snapshot.now_s),
            bare=parts.cdi.why_unusable(desired.policy.options) if desired else "",
        )

    def _note_policy(self) -> None:
        """After a change of policy, what failed is retried at once."""
        desired = self.parts.policies.desired
        if desired is not None and desired.policy != self._policy:
            self._policy = desired.policy
            self.parts.reconciler.forget_failures()
            self.parts.settings.slices_changed()

    def _publish(self, node: KnownNode, plan: NodePlan) -> None:
        """Serve the new rows. Without a driver, answers stay as they were."""
        parts, desired = self.parts, self.parts.policies.desired
        if desired and not isinstance(node.inventory.driver, NoDriver):
            inventory, options = node.inventory, desired.policy.options
            by_claim = bool(desired.on_demand) or any(map(asked_by_claim, (desired.offer, self.view.offer)))
            for_claims = options_for_claims(options)
            parts.cdi.request(inventory, for_claims if by_claim and not options.uses_cdi else options)
            parts.guard.request(device for devices in self.view.offer.values() for device in devices)
            parts.limits.request(inventory, options, wanted=_limits_wanted(desired.policy, inventory))
            if parts.limits.wanted and parts.limits.terms.setter != inventory.limits_by:
                parts.hardware.observe_soon()
            if parts.limits.given:
                parts.limits.sweep(self._may_be_held())
            run_dir, guard_dir = str(parts.options.run_dir), parts.guard.directory
            unheld = parts.watchdog.unwatched | served_by_own_users(desired.settings)
            self._terms = AllocateContext(
                inventory,
                options,
                run_dir,
                parts.cdi.classes,
                guard_dir,
                unheld,
                read_only_pipe=parts.options.mps_pipe_read_only,
                limits=parts.limits.terms,
            )
        if self._terms is not None:
            for plugin in parts.plugins.publish(self.view, self._terms):
                parts.endpoints.serve(plugin)
            self._publish_claims(node, plan, self._terms)
        if desired:
            for name in parts.plugins.retire(plugin_resources(desired.offer), parts.clock()):
                parts.endpoints.retire(name)

    def _may_be_held(self) -> set[GpuUuid]:
        """GPUs that a pod has a share of, or may have: those are its holder's limits, too."""
        held, kept = self.parts.ledger.held().ids, set(self._unknown(self.parts.hardware.node or UNSEEN))
        for gpu, now in self.state.serving.items():
            for device in (*now.offer, *now.leaving):
                if not held.get(device.resource, frozenset()).isdisjoint(device.share_ids):
                    kept.add(gpu)
        return kept

    def _publish_claims(self, node: KnownNode, plan: NodePlan, terms: AllocateContext) -> None:
        """Tell the DRA driver what claims can get."""
        parts, options = self.parts, options_for_claims(terms.options)
        cordoned, bare = parts.cordon.gpus(node.known), parts.cdi.why_unusable(options)
        desired = parts.policies.desired
        made = made_on_demand(desired.on_demand if desired else {}, plan)
        force = in_force(parts.settings.observed(node), desired.watch_of if desired else {})
        force = replace(force, limits_read=limits_read(self.view.offer, parts.ledger.entries()))
        state = self.state
        now = NodeMoment(node.known, state.serving, self.view, state.health, cordoned, bare, made, force)
        parts.claims.publish(now, replace(terms, options=options))

    def _report(self, seen: TurnInput, done: TurnResult, began_s: float) -> None:
        parts = self.parts
        self._number += 1
        entries = parts.ledger.entries()
        listed = {name: plugin.devices().rows for name, plugin in parts.plugins.by_name.items()}
        now_s, resources = parts.clock(), resource_reports(listed, entries, done.view.withdrawn)
        report = Report(
            made=ReportTime(at_s=time.time(), clock_s=now_s, number=self._number, took_s=now_s - began_s),
            node=seen.node,
            offer=promised(
                done.view.offer,
                seen.desired.watch_of if seen.desired else {},
                seen.node.inventory,
                seen.desired.settings if seen.desired else {},
            ),
            gpus=gpu_reports(seen.snapshot, done, seen.desired, entries),
            resources=resources,
            entries=entries,
            policy=parts.policies.report,
            dependencies=self._dependencies(resources),
            policy_in_force=seen.desired.policy if seen.desired else None,
            snapshot=replace(seen.snapshot, served=done.plan.serving),
            watched=parts.watchdog.watched,
            doubts=parts.pipe_tenants.doubts(
                done.view.offer, seen.snapshot.observed.daemons or (), seen.node.inventory.driver
            ),
            mig_config=self._mig_config(done),
            labels=parts.policies.labels,
            other_labels=parts.cluster.other_writer,
        )
        parts.publish(report, log)

    def _mig_config(self, done: TurnResult) -> MigConfigReport | None:
        policies, before = self.parts.policies, self.parts.status.report
        return mig_config_report(
            policies.asked_layouts,
            policies.layouts_problems,
            policies.desired,
            done.plan,
            before.mig_config if before else None,
            held_back=policies.held_back,
        )

    def _kubelet_trouble(self, resources: Iterable[ResourceReport]) -> str:
        return kubelet_trouble(self.parts.status, resources, self.parts.options.intervals)

    def _dependencies(self, resources: Iterable[ResourceReport]) -> DependencyProblems:
        parts = self.parts
        return DependencyProblems(
            hardware=parts.hardware.trouble,
            kubelet=self._kubelet_trouble(resources),
            pod_resources=parts.pod_resources.trouble,
            checkpoint=parts.pod_resources.unreadable or parts.pod_resources.unproven,
            processes=parts.pod_resources.former.unseen,
            state_dir=parts.state_writer.trouble,
            cdi=parts.cdi.trouble,
            guard=parts.guard.trouble,
            limits=parts.limits.trouble,
            api_server=parts.cluster.trouble,
            history=parts.history_trouble,
            claims=parts.claims.trouble,
        )


def _limits_wanted(policy: Policy, inventory: Inventory) -> bool:
    """Whether containers are to have memory limits that the driver of this node can hold."""
    return wants_limits(policy) and able(inventory)


def _shares(state: NodeState) -> dict[GpuUuid, GpuOffer]:
    """The offers of all shares that are or can be held, by GPU."""
    return {gpu: (*now.offer, *now.leaving) for gpu, now in state.serving.items()}
