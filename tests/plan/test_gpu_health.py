"""What befalls which GPU: events of one look, for known GPUs, lost ones, and those that are being changed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.model.gpu import Gpu, LostGpu
from partage.model.health import GpuCondition, Health, HealthState, Xid
from partage.model.ids import GpuUuid
from partage.model.xid import XidRules
from partage.plan.gpu_health import HealthNews, healths_after
from partage.plan.reconcile.known_node import KnownNode, with_observed
from tests.plan.offers import gpu, node

FIRST, SECOND = gpu(0, migs=2), gpu(1)
HERE = with_observed(None, node(FIRST, SECOND))
UNKNOWN = GpuUuid("GPU-of-an-earlier-boot")
SICK_INSTANCE = Xid(FIRST.uuid, 48, 7, 0)


def after(
    news: HealthNews, at: KnownNode = HERE, before: dict[GpuUuid, Health] | None = None, *in_hand: GpuUuid
) -> dict[GpuUuid, Health]:
    return healths_after(at, news, before or {}, (), XidRules(), now_s=100.0, in_hand=in_hand)


def lost(one: Gpu, before: KnownNode = HERE) -> KnownNode:
    gone = LostGpu(one.index, one.uuid, None, "fell off the bus")
    others = tuple(other for other in (FIRST, SECOND) if other != one)
    return with_observed(before, replace(node(*others), lost=(gone,)))


@pytest.mark.parametrize("fresh", [True, False])
def test_a_gpu_is_lost_only_when_the_node_was_looked_at(fresh: bool) -> None:
    found = after(HealthNews(fresh=fresh), lost(SECOND))
    assert found[SECOND.uuid].offered() is not fresh
    assert found[FIRST.uuid].offered()


def test_instances_that_are_gone_are_forgotten_but_not_those_of_a_gpu_that_is_lost() -> None:
    sick = after(HealthNews(xids=(SICK_INSTANCE,)))
    assert set(sick[FIRST.uuid].instances) == {7}
    assert set(after(HealthNews(fresh=True), HERE, sick)[FIRST.uuid].instances) == {7}
    fewer = with_observed(HERE, node(replace(FIRST, mig_devices=FIRST.mig_devices[1:]), SECOND))
    assert set(after(HealthNews(fresh=True), fewer, sick)[FIRST.uuid].instances) == set()
    assert set(after(HealthNews(), fewer, sick)[FIRST.uuid].instances) == {7}
    assert set(after(HealthNews(fresh=True), lost(FIRST, fewer), sick)[FIRST.uuid].instances) == {7}


def test_an_xid_of_a_gpu_that_is_not_known_is_one_of_all_of_it() -> None:
    found = after(HealthNews(xids=(Xid(UNKNOWN, 79, 7, 0),)), HERE, {UNKNOWN: Health()})
    assert not found[UNKNOWN].offered()
    assert not found[UNKNOWN].instances


def test_a_gpu_that_does_not_answer_while_it_is_changed_is_not_lost() -> None:
    bad, away = GpuCondition(FIRST.uuid, rows_pending=True), GpuCondition(FIRST.uuid, lost="no answer")
    other = GpuCondition(SECOND.uuid, lost="no answer")
    assert after(HealthNews(conditions=(away, other)), HERE, None, FIRST.uuid)[FIRST.uuid].offered()
    assert not after(HealthNews(conditions=(away,)))[FIRST.uuid].offered()
    found = after(HealthNews(conditions=(other, bad)), HERE, None, FIRST.uuid)[FIRST.uuid]
    assert found == after(HealthNews(conditions=(bad,)))[FIRST.uuid] != Health()
    assert after(HealthNews(fresh=True), lost(SECOND), None, SECOND.uuid)[SECOND.uuid].offered()


def test_a_gpu_that_is_silent_is_suspected_and_no_more() -> None:
    found = after(HealthNews(fresh=True, silent="the driver hangs"), lost(SECOND))
    assert {health.status().state for health in found.values()} == {HealthState.SUSPECT}


def test_a_gpu_that_the_node_no_longer_has_is_lost_once_it_was_looked_at() -> None:
    known = {UNKNOWN: Health()}
    assert after(HealthNews(), HERE, known)[UNKNOWN].offered()
    assert not after(HealthNews(fresh=True), HERE, known)[UNKNOWN].offered()
