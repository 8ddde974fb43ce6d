"""Time slices that claims ask for: set while they hold the GPU, and restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.ids import GPU_CLASS, unit_id
from partage.model.step import SetTimeSlice, Step
from partage.model.strategy import Interval
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.reconcile.known_node import with_observed
from partage.plan.reconcile.node_plan import Observed, Snapshot
from partage.plan.reconcile.planner import Planner
from partage.plan.reconcile.settings_steps import OriginalSettings
from partage.plan.reconcile.transition import GpuServing
from partage.plan.serve.ledger_entry import Certainty, LedgerEntry, held_ids
from tests.plan.offers import gpu, node

GPU = gpu(0).uuid
LONG = LedgerEntry(
    GPU_CLASS, unit_id(GPU, 3), Certainty.CLAIMED, (), 0.0, claim="team/a", interval=Interval.LONG
)


def policy(interval: str = "") -> DesiredState:
    entry = f"via: claims, time-slicing: {{unit: 1Gi{interval}}}"
    text = f"version: partage/v1\ngpus: [{{select: all, {entry}}}]"
    return resolve(parse_policy(text, "p").policy, node(gpu(0)), geometry_of)


def steps(planner: Planner, desired: DesiredState, now: Interval, *entries: LedgerEntry) -> list[Step]:
    """What is carried out at once, while the GPU serves what it is to serve."""
    observed = Observed(with_observed(None, node(gpu(0))), daemons=(), slices={GPU: now})
    snapshot = Snapshot(
        0.0,
        observed,
        served={GPU: GpuServing(desired.offer[GPU])},
        held=held_ids(entries),
        entries=entries,
        original={GPU: OriginalSettings(None, Interval.DEFAULT)},
    )
    return [step for transaction in planner.plan(desired, snapshot).ready for step in transaction.steps]


@pytest.mark.parametrize("by_policy", ["", ", interval: short"])
def test_a_claims_time_slice_is_set_while_it_holds_the_gpu_and_then_the_policys(by_policy: str) -> None:
    desired, planner = policy(by_policy), Planner(geometry_of)
    after = Interval.SHORT if by_policy else Interval.DEFAULT
    assert steps(planner, desired, after) == []
    assert steps(planner, desired, after, LONG) == [SetTimeSlice(GPU, Interval.LONG, after)]
    assert steps(planner, desired, Interval.LONG, LONG) == []
    assert steps(planner, desired, Interval.LONG) == [SetTimeSlice(GPU, after, Interval.LONG)]


def test_the_same_claims_are_the_same_wish() -> None:
    """The planner keeps its draft by identity."""
    desired, planner = policy(), Planner(geometry_of)
    wanted = planner.with_claims(desired, (LONG,))
    assert planner.with_claims(desired, (replace(LONG, id=unit_id(GPU, 4)),)) is wanted
    assert planner.with_claims(desired, ()) is desired
    other = policy(", interval: short")
    assert planner.with_claims(other, (LONG,)).policy is other.policy


def test_the_entries_of_one_version_of_the_ledger_are_walked_once() -> None:
    walks = []

    class Entries(tuple[LedgerEntry, ...]):
        def __iter__(self) -> Iterator[LedgerEntry]:
            walks.append(self)
            return super().__iter__()

    desired, planner, entries = policy(), Planner(geometry_of), Entries((LONG,))
    for _ in range(3):
        assert planner.slices_asked(entries)
        assert planner.with_claims(desired, entries) is not desired
    assert len(walks) == 1
    assert not planner.slices_asked(Entries())
