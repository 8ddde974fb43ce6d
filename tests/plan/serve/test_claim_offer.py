"""What claims can get after a turn, and why not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.model.claim import GpuDemand
from partage.model.geometry import Placement
from partage.model.health import Health, HealthState, HealthStatus
from partage.model.ids import DEVICE_CLASSES
from partage.model.mps import ClientLimits, DaemonPhase, DaemonState
from partage.model.share import DeviceOffer
from partage.model.strategy import Via
from partage.plan.reconcile.known_node import UNSEEN
from partage.plan.reconcile.node_plan import GpuPlan, NodePlan, Observed, Phase
from partage.plan.reconcile.transition import GpuServing
from partage.plan.serve.claim_offer import (
    NodeMoment,
    OnDemand,
    asked_by_claim,
    claim_offer,
    in_force,
    made_on_demand,
)
from partage.plan.serve.kubelet_view import EMPTY_VIEW
from partage.plan.serve.ledger_entry import Certainty, LedgerEntry
from tests.plan.offers import NAME, gpu, offering, share

CLASS = next(iter(DEVICE_CLASSES))
BY_CLAIM = replace(offering(0), via=Via.CLAIMS, resource=CLASS)
GPU = BY_CLAIM.gpu
ILL = HealthStatus(HealthState.UNHEALTHY, "XID 79: it fell off the bus")
MUTE = HealthStatus(HealthState.UNHEALTHY, "no answer")


def moment(*rows: DeviceOffer, healthy: bool = True, **more: object) -> NodeMoment:
    """One GPU. more: fields of NodeMoment, and of what its GPU serves."""
    of_serving = {name: more.pop(name) for name in [*more] if name in GpuServing.__struct_fields__}
    state = dict.fromkeys((row.device for row in rows), healthy)
    view = replace(EMPTY_VIEW, key=({}, 0, state, frozenset(), {}), offer={GPU: rows})
    serving = {GPU: replace(GpuServing(rows), **of_serving)}
    return replace(NodeMoment({GPU: gpu(0, migs=1)}, serving, view, {}, frozenset()), **more)


def why_closed(now: NodeMoment) -> tuple[str, str]:
    found = claim_offer(now).closed
    assert len(found) <= 1
    return next(((closed.kind, closed.detail) for closed in found.values()), ("", ""))


def test_only_what_claims_can_ask_for_and_what_is_there_is_offered() -> None:
    planned = replace(BY_CLAIM, placement=Placement(0, 1))
    assert claim_offer(moment(BY_CLAIM, planned, offering(0))).offer == {GPU: (BY_CLAIM,)}
    assert claim_offer(moment(offering(0))).offer == {}
    assert asked_by_claim({GPU: (offering(0), BY_CLAIM)})
    assert not asked_by_claim({GPU: (offering(0),)})


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (moment(BY_CLAIM), ("", "")),
        (moment(BY_CLAIM, health={GPU: Health(ILL)}, healthy=False), ("unhealthy", "79")),
        (moment(BY_CLAIM, health={GPU: Health(MUTE)}), ("unhealthy", "unhealthy")),
        (moment(BY_CLAIM, health={GPU: Health(instances={7: ILL})}), ("", "")),
        (moment(BY_CLAIM, healthy=False), ("unusable", "")),
        (moment(BY_CLAIM, draining=True), ("changing", "")),
        (moment(BY_CLAIM, leaving=(BY_CLAIM,)), ("changing", "")),
        (moment(BY_CLAIM, cordoned=frozenset([GPU])), ("cordoned", "")),
        (moment(BY_CLAIM, bare="no libraries"), ("unusable", "")),
    ],
)
def test_a_device_is_closed_to_claims(now: NodeMoment, why: tuple[str, str]) -> None:
    assert why_closed(now) == why


def test_a_mig_device_is_closed_by_the_health_of_its_own_instance() -> None:
    row = replace(offering(0, mig=0), via=Via.CLAIMS)
    for gi_id, kind in ((7, "unhealthy"), (8, "")):
        now = moment(row, health={GPU: Health(instances={gi_id: ILL})})
        assert why_closed(now)[0] == kind


def test_what_is_made_on_demand_and_on_its_way_out_is_not_offered() -> None:
    on_demand = {GPU: OnDemand(GpuDemand())}
    assert claim_offer(moment(BY_CLAIM, on_demand=on_demand)).offer == {GPU: (BY_CLAIM,)}
    assert claim_offer(moment(BY_CLAIM, on_demand=on_demand, draining=True)).offer == {}
    assert claim_offer(moment(BY_CLAIM, on_demand=on_demand, leaving=(BY_CLAIM,))).offer == {}
    assert why_closed(moment(on_demand=on_demand)) == ("", "")
    assert why_closed(moment(on_demand=on_demand, health={GPU: Health(ILL)})) == ("unhealthy", "79")
    assert why_closed(moment(on_demand=on_demand, cordoned=frozenset([GPU]))) == ("cordoned", "")


@pytest.mark.parametrize(
    ("plan", "settled", "failed", "reason"),
    [
        (None, False, False, ""),
        (GpuPlan(Phase.SETTLED), True, False, ""),
        (GpuPlan(Phase.FAILED, "no"), False, True, "no"),
        (GpuPlan(Phase.BLOCKED, "no"), False, True, "no"),
        (GpuPlan(Phase.WAITING, "held"), False, False, "held; it waits for claim team/a to end"),
    ],
)
def test_how_a_gpu_whose_devices_are_made_on_demand_stands(
    plan: GpuPlan | None, settled: bool, failed: bool, reason: str
) -> None:
    entries = tuple(
        LedgerEntry(NAME, share(0, number), Certainty.CLAIMED, (), 0.0, claim=claim)
        for number, claim in enumerate(("team/a", "", "team/a"))
    )
    if plan is not None and plan.phase is Phase.WAITING:
        plan = replace(plan, waiting_for=entries)
    found = made_on_demand({GPU: GpuDemand()}, NodePlan({} if plan is None else {GPU: plan}))
    assert found == {GPU: OnDemand(GpuDemand(), settled, reason, failed)}


def test_slots_are_open_on_daemons_that_serve() -> None:
    slots = DaemonState(GPU, GPU, DaemonPhase.SERVING, 7, (), ClientLimits(slots=2), open_slots=("a", "b"))

    def open_slots(*daemons: DaemonState) -> object:
        return in_force(Observed(UNSEEN, daemons=daemons), {}).open_slots

    assert open_slots(slots) == {GPU: ("a", "b")}
    assert open_slots(replace(slots, phase=DaemonPhase.STARTING)) == {}
    assert open_slots(replace(slots, limits=ClientLimits())) == {}
    assert in_force(Observed(UNSEEN), {}).open_slots == {}
