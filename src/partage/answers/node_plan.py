"""A policy and its plan on one node: what several verbs show, each in its own way; and the node with the MIG
devices that its policy plans for claims, as if they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from partage.answers import common_node
from partage.edges.files.catalogue import geometry_of
from partage.errors import Problem
from partage.model.gpu import Inventory
from partage.model.policy import Policy
from partage.model.share import NodeOffer
from partage.model.strategy import Via
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.offer.guarantees import promised
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.answers.documents.report import ReportDocument
    from partage.edges.files.policy import LoadedPolicy
    from partage.plan.offer.caveats import Caveat
    from partage.plan.reconcile.node_plan import NodePlan


def with_made_devices(policy: Policy, inventory: Inventory, offer: NodeOffer) -> tuple[NodeOffer, Inventory]:
    """Offer and GPUs: what is not there is not published for claims, so it is made. The same where claims ask
    for no MIG device that is still to be made.
    """
    if not _claims_wait(offer):
        return offer, inventory
    made = made_desired(policy, resolve(policy, inventory, geometry_of))
    return promised(made.offer, made.watch_of, made.inventory, made.settings), made.inventory


def made_desired(policy: Policy, desired: DesiredState) -> DesiredState:
    """What is wanted, on a node on which it has been made; the same where claims wait for no MIG device."""
    if not _claims_wait(desired.offer):
        return desired
    from partage.sim.node.planned_layouts import with_planned_layouts

    return resolve(policy, with_planned_layouts(desired, geometry_of), geometry_of)


def _claims_wait(offer: NodeOffer) -> bool:
    return any(row.planned and row.via is Via.CLAIMS for rows in offer.values() for row in rows)


class PolicyOnNode(Frozen):
    """A policy and its plan on one node.

    desired: what the policy wants. offer: once everything is done, as it is promised. plan: what has to be
    done. report: of the agent for which it is planned, None: no agent runs there.
    """

    desired: DesiredState
    offer: NodeOffer
    plan: NodePlan
    warnings: Sequence[Problem]
    caveats: Sequence[Caveat]
    report: ReportDocument | None

    @property
    def inventory(self) -> Inventory:
        """The node as it is planned for."""
        return self.desired.inventory

    @property
    def policy(self) -> Policy:
        """The policy that is planned."""
        return self.desired.policy


def make_plan(
    loaded: LoadedPolicy,
    machine: str | None,
    run_dir: str | None,
    state_dir: Path | None = None,
    *,
    report: ReportDocument | None,
    named: bool = True,
) -> PolicyOnNode:
    """Resolve the policy on the node and plan. Raises whatever makes it impossible, with all problems.

    Where an agent runs, the plan is made from what the agent has seen, as the agent does. report: of that
    agent. named: the policy
    was named; otherwise it is that of the agent.
    """
    from msgspec.structs import replace

    from partage.answers.wording import lost_sentences
    from partage.edges.files.catalogue import geometry_of
    from partage.plan.offer.caveats import Caveat, caveats, made_on_demand
    from partage.plan.offer.desired import resolve
    from partage.plan.offer.guarantees import promised
    from partage.plan.reconcile.planner import plan_node
    from partage.plan.serve.cordon import cordon_sentence

    policy = loaded.policy
    seen = report.planner_input if report else None
    if seen is None:
        found = common_node.plan_input(machine, policy, run_dir=run_dir, state_dir=state_dir)
        desired, now = found.desired, found.now
    else:
        policy, now = policy if named else seen.policy, seen.snapshot
        if policy != seen.policy:  # the drain of another policy begins anew
            now = replace(now, gave_up={}, spared={})
        driven = common_node.need_driver(now.observed.node.inventory)
        desired = resolve(policy, driven, geometry_of, now.demands)
    inventory = now.observed.node.inventory
    offer = promised(desired.offer, desired.watch_of, inventory, desired.settings)
    return PolicyOnNode(
        desired=desired,
        offer=offer,
        plan=plan_node(desired, now, geometry_of),
        warnings=(*loaded.warnings, *desired.warnings),
        caveats=(
            *caveats(
                policy,
                inventory,
                offer,
                ctk_found=common_node.ctk_found(policy, inventory),
                layouts=desired.layouts,
            ),
            *(Caveat(line) for line in made_on_demand(inventory, desired.on_demand)),
            *(Caveat(line) for line in [cordon_sentence(now.cordoned_indexes)] if line),
            *(Caveat(line) for line in [_held_back(report, named=named)] if line),
            *(Caveat(line) for line in lost_sentences(inventory)),
        ),
        report=report if seen is not None else None,
    )


def _held_back(report: ReportDocument | None, *, named: bool) -> str:
    """That the agent of this node will soon have another policy than the one that is planned."""
    if report is None or named or not report.policy.reason.held_back:
        return ""
    return report.policy.message
