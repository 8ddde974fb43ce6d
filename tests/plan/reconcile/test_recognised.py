"""An agent whose state was lost: what daemons and the kubelet's last lists say of shares that are held."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.model.ids import ResourceName, ShareId, share_id
from partage.model.mps import DaemonPhase
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.node_plan import Phase, Snapshot
from partage.plan.reconcile.planner import plan_node
from partage.plan.reconcile.recognised import recognised, unknown_terms
from partage.plan.reconcile.transition import GpuServing
from tests.plan.offers import NAME, gpu, offering, share, unit_row
from tests.plan.reconcile.test_planner import entry, held_of, observe, serving, with_mps

SHARED = "nvidia.com/gpu.shared"


def lost(*more: str) -> tuple[DesiredState, Snapshot]:
    """A daemon runs as it should, a share of its GPU is held, and nothing is served. more: other held ids."""
    desired, now = with_mps(observe())
    first = desired.inventory.gpus[0].uuid
    entries = tuple(entry(SHARED, ShareId(id_)) for id_ in (share_id(first, 0), *more))
    return desired, replace(now, served={}, entries=entries, held=held_of(entries))


def known(desired: DesiredState, now: Snapshot) -> bool:
    found = recognised(desired, now, {})
    first = desired.inventory.gpus[0].uuid
    assert found in ({}, {first: serving(desired)[first]})
    return bool(found)


def test_shares_are_those_that_the_daemons_limits_say() -> None:
    desired, now = lost()
    assert known(desired, now)
    (daemon,) = now.observed.daemons or ()
    other = replace(daemon, limits=replace(daemon.limits, memory_bytes=1))
    assert not known(desired, replace(now, observed=replace(now.observed, daemons=(other,))))
    for nothing in (None, ()):
        assert not known(desired, replace(now, observed=replace(now.observed, daemons=nothing)))


def test_a_gpu_that_is_recognised_starts_with_its_offer_unless_something_has_to_end_first() -> None:
    desired, now = lost()
    first = desired.inventory.gpus[0].uuid
    plan = plan_node(desired, now, geometry_of)
    assert (plan.serving[first], plan.gpus[first].phase) == (serving(desired)[first], Phase.SETTLED)
    (daemon,) = now.observed.daemons or ()
    silent = replace(now.observed, daemons=(replace(daemon, phase=DaemonPhase.SILENT),))
    plan = plan_node(desired, replace(now, observed=silent), geometry_of)
    assert plan.serving[first].draining
    assert (plan.gpus[first].phase, plan.ready) == (Phase.WAITING, ())


def test_nothing_is_recognised_of_a_gpu_that_is_served_or_unknown_or_that_nobody_holds() -> None:
    desired, now = lost()
    first = desired.inventory.gpus[0].uuid
    assert known(desired, replace(now, served={first: GpuServing(())}))
    assert not known(desired, replace(now, served=serving(desired)))
    assert not known(
        desired,
        replace(
            now,
            served={first: replace(serving(desired)[first], offer=(), leaving=serving(desired)[first].offer)},
        ),
    )
    assert not known(desired, replace(now, unknown=frozenset([first])))
    assert not known(desired, replace(now, entries=(), held=held_of(())))


def test_a_hold_that_is_in_no_wanted_offer_leaves_its_gpu_unknown() -> None:
    first = lost()[0].inventory.gpus[0].uuid
    assert not known(*lost(share_id(first, 7)))


SLICED = offering(0, 2)
UUID = gpu(0).uuid


@pytest.mark.parametrize(
    ("held", "listed", "waits"),
    [
        ([share(0, 0)], {NAME: [share(0, 0), share(0, 1)]}, False),
        ([share(0, 0)], {NAME: [share(0, 0)]}, True),
        ([share(0, 0)], {NAME: [share(0, 0), share(0, 1), share(0, 2)]}, True),
        ([share(0, 0)], {ResourceName("other.com/gpu"): [share(0, 0), share(0, 1)]}, True),
        ([share(0, 0)], {}, True),
        ([share(0)], {}, False),
        ([share(1, 0)], {}, False),
        ([], {}, False),
    ],
    ids=[
        "listed so",
        "fewer",
        "more",
        "another name",
        "not listed",
        "a whole GPU",
        "another GPU",
        "not held",
    ],
)
def test_a_gpu_waits_unless_it_was_listed_with_just_these_shares(
    held: list[ShareId], listed: dict[ResourceName, list[ShareId]], waits: bool
) -> None:
    before = {name: frozenset(ids) for name, ids in listed.items()}
    holds = held_of(entry(NAME, id_) for id_ in held)
    assert unknown_terms({UUID: (SLICED,)}, holds, before, {}) == ({UUID} if waits else set())
    assert unknown_terms({}, holds, before, {}) == set()


def test_a_share_of_a_mig_device_is_one_of_its_gpu() -> None:
    row = replace(SLICED, device=gpu(0, migs=1).mig_devices[0].uuid)
    holds = held_of([entry(NAME, row.share_ids[0])])
    assert unknown_terms({UUID: (row,)}, holds, {}, {row.device: UUID}) == {UUID}
    assert unknown_terms({UUID: (row,)}, holds, {NAME: frozenset(row.share_ids)}, {row.device: UUID}) == set()


def test_shares_of_several_sizes_and_units_are_not_known_by_their_number() -> None:
    units = unit_row(0, 2)
    holds = held_of([entry(units.resource, share(0, 0))])
    assert unknown_terms({UUID: (units,)}, holds, {units.resource: frozenset(units.share_ids)}, {}) == {UUID}
    other = replace(SLICED, resource=ResourceName("nvidia.com/gpu.small"))
    listed = {NAME: frozenset(SLICED.share_ids), other.resource: frozenset(other.share_ids)}
    assert unknown_terms({UUID: (SLICED, other)}, holds, listed, {}) == {UUID}
    elsewhere = replace(SLICED, device=gpu(0, migs=1).mig_devices[0].uuid)
    assert unknown_terms({UUID: (SLICED, elsewhere)}, holds, {NAME: listed[NAME]}, {}) == set()
