"""The layout of GPUs whose MIG devices are made on demand: what claims want is made, what they left goes, and
nothing else is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.errors import InputError, Unsatisfiable
from partage.model.claim import GpuDemand
from partage.model.geometry import Geometry, Placement
from partage.model.gpu import EmptyInstance, Gpu, MigDevice, MigMode
from partage.model.ids import MigUuid
from partage.model.layout import LayoutItem
from partage.model.share import DeviceOffer
from partage.model.step import (
    CreateCompute,
    DestroyCompute,
    DestroyInstance,
    SetMigMode,
    Step,
)
from partage.model.strategy import Strategy, Via
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.offer.on_demand import foreign_places, wanted_layout
from partage.plan.reconcile.blocked import Blocked
from partage.plan.reconcile.mig_plan import GpuMigPlan, plan_mig
from partage.units import GIB
from tests.oracle import enumerate_mig as oracle
from tests.plan.offers import gpu, node

POLICY = parse_policy(
    """
version: partage/v1
gpus:
  - {select: {index: [0]}, via: claims, mig: {on-demand: true}}
  - {select: rest, exclusive: {}}
""",
    "p",
).policy
OFF = gpu(0)
ON = replace(OFF, mig_mode=MigMode(current=True, pending=True))
LAYOUTS = sorted(oracle.fixed_layouts("h100-sxm5-80gb"))


def h100() -> Geometry:
    known = geometry_of(OFF)
    assert known is not None
    return known


def item(text: str) -> LayoutItem:
    return LayoutItem.parse(text)


def live(*texts: str) -> Gpu:
    """GPU 0 in MIG mode, with these MIG devices."""
    found = []
    for number, text in enumerate(texts):
        one = item(text)
        spec = h100().spec(one.profile)
        assert spec is not None
        assert one.start is not None
        place = Placement(one.start, spec.size)
        uuid = MigUuid(f"MIG-{text}")
        found.append(MigDevice(uuid, number, number + 1, 0, str(one.profile), place, 10 * GIB))
    return replace(ON, mig_devices=tuple(found))


def wants(of: Gpu, demand: GpuDemand) -> DesiredState:
    return resolve(POLICY, node(of, gpu(1)), geometry_of, {of.uuid: demand})


def plan(of: Gpu, demand: GpuDemand) -> GpuMigPlan | Blocked | None:
    desired = wants(of, demand)
    return plan_mig(desired.inventory, desired.layouts, geometry_of).of(of.uuid)


def steps(of: Gpu, demand: GpuDemand) -> tuple[Step, ...]:
    planned = plan(of, demand)
    assert not isinstance(planned, Blocked), planned
    return planned.steps if planned else ()


def offered(of: Gpu, demand: GpuDemand) -> list[tuple[str | None, bool]]:
    rows: tuple[DeviceOffer, ...] = wants(of, demand).offer[of.uuid]
    assert {row.via for row in rows} <= {Via.CLAIMS}
    return [(row.profile, row.planned) for row in rows]


# --- what is wanted --------------------------------------------------------------------------------


def test_without_a_claim_nothing_changes_and_mig_mode_stays_as_it_is() -> None:
    assert steps(OFF, GpuDemand()) == steps(ON, GpuDemand()) == ()
    assert offered(OFF, GpuDemand()) == [(None, False)]
    assert offered(ON, GpuDemand()) == []
    assert wants(ON, GpuDemand()).strategies[ON.uuid] is Strategy.MIG
    assert wants(OFF, GpuDemand()).pending == {}


def test_a_part_turns_mig_mode_on_and_is_made_where_the_claim_has_it() -> None:
    demand = GpuDemand(parts=(item("1g.10gb@6"),))
    made = steps(OFF, demand)
    assert isinstance(made[0], SetMigMode)
    assert [str(one.placement) for one in made if isinstance(one, CreateCompute)] == ["6:1"]
    assert offered(OFF, demand) == [("1g.10gb", True)]
    assert wants(OFF, demand).pending[OFF.uuid] == (
        "MIG mode has to be turned on, and claims wait for 1 x 1g.10gb"
    )
    assert offered(live("1g.10gb@6"), demand) == [("1g.10gb", False)]
    assert wants(live("1g.10gb@6"), demand).pending == {}
    assert steps(live("1g.10gb@6"), demand) == ()


def test_a_claim_for_all_of_it_turns_mig_mode_off() -> None:
    made = steps(ON, GpuDemand(whole=True))
    assert [type(one) for one in made[:1]] == [SetMigMode]
    assert offered(ON, GpuDemand(whole=True)) == [(None, False)]
    assert wants(ON, GpuDemand(whole=True)).pending == {ON.uuid: "MIG mode has to be turned off"}
    assert offered(OFF, GpuDemand(whole=True)) == [(None, False)]
    assert steps(OFF, GpuDemand(whole=True)) == ()


def test_what_is_foreign_keeps_mig_mode_on_and_is_no_offer() -> None:
    there = live("2g.20gb@2")
    assert steps(there, GpuDemand()) == steps(there, GpuDemand(whole=True)) == ()
    assert offered(there, GpuDemand(whole=True)) == offered(there, GpuDemand()) == []


def test_places_of_what_was_made_for_no_claim_are_foreign() -> None:
    there = live("1g.10gb@0", "1g.10gb@6")
    ended, wanted = GpuDemand(made=(item("1g.10gb@6"),)), GpuDemand(parts=(item("1g.10gb@0"),))
    assert [*foreign_places(there, ended)] == [Placement(0, 1)]
    assert [*foreign_places(there, wanted)] == [Placement(6, 1)]
    unplaced = replace(there, mig_devices=tuple(replace(one, placement=None) for one in there.mig_devices))
    assert [*foreign_places(unplaced, ended)] == []
    assert wanted_layout(there, ended) is not None
    assert wanted_layout(unplaced, ended) is None, "only root knows where they are"
    empty = replace(ON, empty_instances=(EmptyInstance(5, "2g.20gb", Placement(2, 2)),))
    assert [*foreign_places(empty, ended)] == [Placement(2, 2)]
    assert [*foreign_places(empty, GpuDemand(made=(item("2g.20gb@2"),)))] == []


def test_an_empty_instance_of_somebody_else_stops_every_change() -> None:
    there = replace(ON, empty_instances=(EmptyInstance(5, "2g.20gb", Placement(2, 2)),))
    planned = plan(there, GpuDemand(parts=(item("1g.10gb@6"),)))
    assert isinstance(planned, Blocked)
    assert "2g.20gb@2 is empty, and was not made for a claim" in planned.reason
    assert plan(there, GpuDemand()) is None
    ours = GpuDemand(made=(item("2g.20gb@2"),))
    first, *_ = steps(there, ours)
    assert isinstance(first, DestroyInstance)


def test_mig_devices_of_claims_are_offered_in_the_order_of_their_places() -> None:
    demand = GpuDemand(parts=(item("1g.10gb@6"), item("3g.40gb@0"), item("1g.10gb@4")))
    assert offered(OFF, demand) == [("3g.40gb", True), ("1g.10gb", True), ("1g.10gb", True)]
    rows = wants(OFF, demand).offer[OFF.uuid]
    assert [row.placement.start for row in rows if row.placement] == [0, 4, 6]


@pytest.mark.parametrize("text", ["5g.50gb@0", "1g.10gb"])
def test_what_has_no_place_on_the_gpu_is_no_offer(text: str) -> None:
    assert offered(ON, GpuDemand(parts=(item(text),))) == []


def test_who_asks_for_both_uses_a_mig_device() -> None:
    both = GpuDemand(whole=True, parts=(item("1g.10gb@6"),))
    assert offered(ON, both) == [("1g.10gb", True)]


def test_where_nobody_has_a_claim_what_is_foreign_is_nothing_that_has_to_go() -> None:
    assert wants(live("2g.20gb@2"), GpuDemand()).pending == {}
    beside = wants(live("2g.20gb@2", "1g.10gb@6"), GpuDemand(parts=(item("1g.10gb@6"),)))
    assert beside.pending == {}
    ended = wants(live("2g.20gb@2", "1g.10gb@6"), GpuDemand(made=(item("1g.10gb@6"),)))
    assert ended.pending == {ON.uuid: "1 x 1g.10gb of claims that have ended has to be destroyed"}


def test_no_layout_is_wanted_of_a_gpu_that_cannot_have_one() -> None:
    whole, part = GpuDemand(whole=True), GpuDemand(parts=(item("1g.10gb@6"),))
    assert wanted_layout(replace(OFF, mig_mode=None), whole) is None
    unplaced = replace(
        ON, mig_devices=tuple(replace(one, placement=None) for one in live("1g.10gb@0").mig_devices)
    )
    assert wanted_layout(unplaced, part) is None, "only root knows where its devices are"
    empty = replace(ON, empty_instances=(EmptyInstance(5, "2g.20gb", Placement(2, 2)),))
    assert wanted_layout(empty, whole) is None, "an instance of somebody else needs MIG mode"


# --- laws ------------------------------------------------------------------------------------------


@given(st.data())
def test_only_what_was_made_for_claims_that_ended_is_destroyed(data: st.DataObject) -> None:
    """Of any layout some is foreign, some is of claims or of claims that have ended; more is wanted."""
    layout = data.draw(st.sampled_from(LAYOUTS))
    kinds = data.draw(
        st.lists(
            st.sampled_from(["foreign", "claimed", "ended", "wanted"]),
            min_size=len(layout),
            max_size=len(layout),
        )
    )
    texts = {f"{profile}@{start}": kind for (profile, start), kind in zip(layout, kinds, strict=True)}
    there = [text for text, kind in texts.items() if kind != "wanted"]
    of_kind = {kind: tuple(item(text) for text, own in texts.items() if own == kind) for kind in {*kinds}}
    wanted = of_kind.get("claimed", ()) + of_kind.get("wanted", ())
    demand = GpuDemand(parts=wanted, made=of_kind.get("ended", ()) + of_kind.get("claimed", ()))
    made = steps(live(*there), demand)
    destroyed = {one.uuid for one in made if isinstance(one, DestroyCompute)}
    assert destroyed == {f"MIG-{one}" for one in of_kind.get("ended", ())}
    created = {(one.profile, one.placement.start) for one in made if isinstance(one, CreateCompute)}
    assert created == {(str(one.profile), one.start) for one in of_kind.get("wanted", ())}
    rows = offered(live(*there), demand)
    assert sorted(rows, key=str) == sorted(
        [(str(one.profile), one in of_kind.get("wanted", ())) for one in wanted], key=str
    )


# --- policies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("mig: {on-demand: true}", "only claims get MIG devices that are made on demand"),
        ("via: claims, mig: {on-demand: true, layout: [1g.10gb]}", "layout and on-demand exclude each other"),
        ("via: claims, mig: {on-demand: false}", "is false"),
        ("via: claims, mig: {on-demand: true, mps: {replicas: 2}}", "a claim gets a MIG device as a whole"),
    ],
)
def test_what_a_policy_cannot_say(entry: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_policy(f"version: partage/v1\ngpus: [{{select: all, {entry}}}]", "p")


@pytest.mark.parametrize("known", [True, False])
def test_a_gpu_whose_places_are_not_known_cannot_have_it_on_demand(known: bool) -> None:
    placeless = replace(h100(), profiles=tuple(replace(spec, starts=()) for spec in h100().profiles))
    with pytest.raises(Unsatisfiable, match="not plannable offline"):
        resolve(POLICY, node(OFF), lambda _: placeless if known else None)


def test_a_gpu_without_mig_cannot_have_it_on_demand() -> None:
    plain = replace(OFF, mig_mode=None)
    with pytest.raises(Unsatisfiable, match="has no MIG"):
        wants(plain, GpuDemand())
