"""MIG layouts that are wanted and do not live yet: the way to them, and what is offered meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from partage.model.share import GpuOffer
from partage.model.step import GpuUse
from partage.plan.offer.advertise import advertise
from partage.plan.offer.assign import GeometryOf, assign
from partage.plan.offer.desired import DesiredState, live
from partage.plan.reconcile.mig_plan import NOTHING, MigPlan, node_steps
from partage.plan.reconcile.settings import settings_of


@dataclass(frozen=True, slots=True)
class Relayout:
    """What the policy's layouts still take.

    wish: what may be offered until all is as wanted. A GPU on its way offers the MIG devices that live on,
    and nothing else; so does one that waits for somebody who is in the way.
    changing: UUIDs of the GPUs that are on their way, or wait.
    """

    plan: MigPlan
    wish: DesiredState
    changing: frozenset[str]


def relayout(
    wish: DesiredState,
    lost: Collection[str],
    geometry_of: GeometryOf,
    uses: Iterable[GpuUse] = (),
    renew: Mapping[str, Collection[int]] = NOTHING,
) -> Relayout:
    """How ``wish`` comes about. lost: UUIDs of GPUs that do not answer; they wait. uses: who holds what.
    renew: GPU instances that are not to be reused, as in ``node_steps``.

    A GPU that a reset takes along without having a layout of its own is withdrawn once nobody uses it: not
    before, so that a node does not lie idle for the one GPU that wants to be reset.
    """
    plan = node_steps(
        wish.inventory,
        {uuid: one for uuid, one in wish.layouts.items() if uuid not in lost},
        geometry_of,
        uses,
        renew=renew,
    )
    stay: dict[str, tuple[str, ...]] = {one.gpu: one.kept for one in plan.planned if one.steps}
    stay |= {one.gpu: one.kept for one in plan.refused}
    stay |= _lost(wish, lost)
    along = {uuid: () for unit in plan.units for uuid in unit.gpus if uuid not in stay}
    if not stay:
        return Relayout(plan, wish, frozenset())
    assignment = assign(wish.policy, wish.inventory, geometry_of, stay)
    offer: dict[str, GpuOffer] = {**live(advertise(assignment, wish.inventory, wish.policy)), **along}
    settings = settings_of(assignment.targets)
    meanwhile = replace(wish, offer=offer, pending=_pending(wish, plan), settings=settings)
    return Relayout(plan, meanwhile, frozenset((*stay, *along)))


def _lost(wish: DesiredState, lost: Collection[str]) -> dict[str, tuple[str, ...]]:
    """What GPUs that do not answer had last: they go on showing it, as unhealthy, until they answer."""
    gpus = (gpu for gpu in wish.inventory if gpu.uuid in lost and gpu.uuid in wish.pending)
    return {gpu.uuid: tuple(device.uuid for device in gpu.mig_devices) for gpu in gpus}


def _pending(wish: DesiredState, plan: MigPlan) -> dict[str, str]:
    said = {one.gpu: "remains of an earlier layout have to go" for one in plan.planned if one.steps}
    said |= {
        uuid: "it is reset along with others, for their sake"
        for unit in plan.units
        for uuid in unit.gpus
        if uuid not in said
    }
    return {**said, **wish.pending, **{one.gpu: one.reason for one in plan.refused}}
