"""GPUs of which MIG devices are made on demand: by counters, the scheduler gives together what fits, and a
claim gets what the scheduler gave unless it excludes what others have.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.claims.decide.allocation import grant
from partage.claims.decide.devices import ClaimDevices, claim_devices
from partage.claims.decide.on_demand import (
    PlaceOnDemand,
    counter_set,
    counter_use,
    demands_of,
    devices_on_demand,
)
from partage.claims.decide.slices import slices_of
from partage.claims.model.claim import Claim, ClaimResult
from partage.claims.model.grant import Granted, RefusedClaim
from partage.claims.model.names import NVIDIA_NAMES, OWN_NAMES
from partage.claims.model.slices import CounterUse, ServerVersion, SliceSpec
from partage.edges.files.catalogue import geometry_of, load_catalogue
from partage.model.claim import ClaimRef, Demands, GpuDemand
from partage.model.geometry import Geometry, Placement
from partage.model.gpu import EmptyInstance, Gpu, MigDevice, MigMode
from partage.model.ids import MigUuid
from partage.model.layout import LayoutItem
from partage.model.share import NodeOffer
from partage.units import GIB
from tests.claims.api_rules import faults
from tests.claims.decide.test_slices import OF_GPUS
from tests.claims.offers import mig, offers, whole
from tests.examples import variants
from tests.oracle import enumerate_mig as oracle
from tests.plan.offers import gpu, node

MODELS = sorted(oracle.models_with_placements())
UNLIKE = ["a30-24gb", "a100-40gb", "h100-sxm5-80gb", "rtx-pro-6000-blackwell-server"]
SERVER = ServerVersion(1, 37, 2)
GPU_0 = replace(gpu(0), mig_mode=MigMode(current=True, pending=True))


def geometry(model: str) -> Geometry:
    known = load_catalogue().by_id(model)
    assert known is not None
    assert known.geometry is not None
    return known.geometry


def all_places(of: Geometry) -> list[PlaceOnDemand]:
    return [PlaceOnDemand(GPU_0.uuid, of, spec, start) for spec in of.profiles for start in spec.starts]


def counted(of: Geometry) -> dict[str, int]:
    """What there is of each counter of a whole GPU."""
    return {name: int(counter.value) for name, counter in counter_set("gpu", of).counters.items()}


def allowed(there: Mapping[str, int], uses: Iterable[CounterUse]) -> bool:
    """As the scheduler counts: what is used up of each counter is at most what there is."""
    used: Counter[str] = Counter()
    for use in uses:
        used.update({name: int(one.value) for name, one in use.counters.items()})
    return all(amount <= there[name] for name, amount in used.items())


def key(places: Iterable[PlaceOnDemand]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((str(place.spec.profile), place.start) for place in places if place.spec))


# --- counters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", variants(UNLIKE, 2))
def test_what_the_counters_allow_is_what_fits_and_nothing_else(model: str) -> None:
    """Along the whole border: every layout that fits, and that layout with any other device beside it."""
    of, fitting = geometry(model), oracle.fixed_layouts(model)
    by_key = {(str(place.spec.profile), place.start): place for place in all_places(of) if place.spec}
    uses = {one: counter_use("gpu", place) for one, place in by_key.items()}
    there = counted(of)
    assert fitting
    for layout in fitting:
        assert allowed(there, [uses[one] for one in layout]), layout
        for more in by_key.keys() - set(layout):
            both = tuple(sorted((*layout, more)))
            assert allowed(there, [uses[one] for one in both]) == (both in fitting), both


@pytest.mark.parametrize("model", variants(MODELS, 3))
@given(data=st.data())
def test_any_devices_of_any_model_are_allowed_together_where_they_fit(
    model: str, data: st.DataObject
) -> None:
    of = geometry(model)
    chosen = data.draw(st.lists(st.sampled_from(all_places(of)), unique_by=lambda one: key([one])))
    fits = not chosen or key(chosen) in oracle.fixed_layouts(model)
    assert allowed(counted(of), [counter_use("gpu", one) for one in chosen]) == fits


@pytest.mark.parametrize("model", MODELS)
def test_the_whole_gpu_excludes_every_part_and_itself(model: str) -> None:
    of = geometry(model)
    all_of_it = counter_use("gpu", PlaceOnDemand(GPU_0.uuid, of))
    assert allowed(counted(of), [all_of_it])
    assert not allowed(counted(of), [all_of_it, all_of_it])
    for place in all_places(of):
        assert not allowed(counted(of), [all_of_it, counter_use("gpu", place)])
        assert allowed(counted(of), [counter_use("gpu", place)])


# --- devices ---------------------------------------------------------------------------------------


def devices(
    *, of: Gpu = GPU_0, there: NodeOffer | None = None, demand: GpuDemand | None = None
) -> ClaimDevices:
    wanted = {of.uuid: demand or GpuDemand()}
    return claim_devices(there or {}, node(of), "node-a", geometry_of, OWN_NAMES, on_demand=wanted)


def published(
    found: ClaimDevices, *gpus: Gpu, server: ServerVersion = SERVER, counters: bool = True
) -> tuple[SliceSpec, ...]:
    return slices_of(found, node(*(gpus or (GPU_0,))), {}, server, geometry_of, counters=counters)


def test_small_devices_come_first_and_where_they_leave_most_room() -> None:
    names = [*devices().rows]
    assert names[:8] == [f"gpu-00000000-mig-1g10gb-19-{start}" for start in (6, 4, 5, 0, 1, 2, 3)] + [
        "gpu-00000000-mig-1g10gbme-20-6"
    ]
    assert names[-2:] == ["gpu-00000000-mig-7g80gb-0-0", "gpu-00000000"]


@pytest.mark.parametrize(
    ("model", "small", "count", "large"),
    [
        ("a30-24gb", "1g.6gb", 2, "2g.12gb"),
        ("a100-40gb", "1g.5gb", 3, "4g.20gb"),
        ("h100-sxm5-80gb", "1g.10gb", 3, "4g.40gb"),
        ("rtx-pro-6000-blackwell-server", "1g.24gb", 2, "2g.48gb"),
    ],
)
def test_small_claims_leave_a_large_profile_possible(model: str, small: str, count: int, large: str) -> None:
    """The scheduler takes the first device that fits."""
    of = geometry(model)
    ordered = [one.place for one in devices_on_demand(GPU_0, of, "gpu", (), GpuDemand())]
    taken: list[CounterUse] = []
    for wanted in [*[small] * count, large]:
        uses = [counter_use("gpu", one) for one in ordered if str(one.spec and one.spec.profile) == wanted]
        taken.append(next(use for use in uses if allowed(counted(of), [*taken, use])))


def test_slices_are_a_counter_slice_and_devices_that_the_api_server_takes() -> None:
    eight = [replace(gpu(index), mig_mode=MigMode(current=True, pending=True)) for index in range(9)]
    found = claim_devices(
        {}, node(*eight), "node-a", geometry_of, OWN_NAMES, on_demand={one.uuid: GpuDemand() for one in eight}
    )
    specs = [json.loads(json.dumps(one.to_json())) for one in published(found, *eight)]
    assert [len(one.get("sharedCounters", [])) for one in specs] == [8, 1, 0, 0, 0, 0]
    assert sum(len(one.get("devices", [])) for one in specs) == 9 * 26
    assert {one["pool"]["resourceSliceCount"] for one in specs} == {6}
    assert [fault for one in specs for fault in faults(one)] == []
    sets = {one["name"] for spec in specs for one in spec.get("sharedCounters", [])}
    uses = [use for spec in specs for one in spec.get("devices", []) for use in one["consumesCounters"]]
    assert {use["counterSet"] for use in uses} == sets
    whole_ones = [
        one["name"] for spec in specs for one in spec.get("devices", []) if "-mig-" not in one["name"]
    ]
    assert [one["name"] for spec in specs for one in spec.get("devices", [])][-9:] == whole_ones


def test_a_device_says_the_same_whether_it_is_there_or_not() -> None:
    live = replace(gpu(0, migs=7), mig_devices=gpu(0, migs=7).mig_devices[6:])
    row = replace(mig(0, 6), index="0:6")
    demand = GpuDemand(parts=(LayoutItem.parse("1g.10gb@6"),))
    there = claim_devices(
        offers(row), node(live), "node-a", geometry_of, OWN_NAMES, on_demand={live.uuid: demand}
    )
    assert there.rows["gpu-00000000-mig-1g10gb-19-6"] == row
    assert published(there, live) == published(devices())


def test_under_nvidias_names_devices_have_exactly_the_attributes_of_its_driver() -> None:
    """As its tests of MIG on demand compare them (test_gpu_dynmig.bats)."""
    found = claim_devices(
        {}, node(GPU_0), "node-a", geometry_of, NVIDIA_NAMES, on_demand={GPU_0.uuid: GpuDemand()}
    )
    all_of_it = published(found)[-1].devices[-1]
    assert (all_of_it.name, {*all_of_it.attributes}) == ("gpu-10", OF_GPUS)
    others = {frozenset(one.attributes) for one in published(found)[-1].devices[:-1]}
    assert others == {frozenset(OF_GPUS - {"uuid"} | {"parentUUID", "profile"})}


def test_without_counters_such_gpus_are_left_out() -> None:
    plain = claim_devices(
        offers(whole(1)),
        node(GPU_0, gpu(1)),
        "node-a",
        geometry_of,
        OWN_NAMES,
        on_demand={GPU_0.uuid: GpuDemand()},
    )
    (spec,) = published(plain, GPU_0, gpu(1), counters=False)
    assert [one.name for one in spec.devices] == ["gpu-00000001"]
    assert [one.name for one in published(plain, GPU_0, gpu(1))[-1].devices][-2:] == [
        "gpu-00000001",
        "gpu-00000000",
    ]


@given(ours=st.booleans(), empty=st.booleans())
def test_what_nobody_made_for_a_claim_shuts_its_place(ours: bool, empty: bool) -> None:
    place = LayoutItem.parse("2g.20gb@2")
    live = MigDevice(MigUuid("MIG-x"), 0, 5, 0, "2g.20gb", Placement(2, 2), 20 * GIB)
    of = replace(GPU_0, mig_devices=() if empty else (live,))
    if empty:
        of = replace(of, empty_instances=(EmptyInstance(5, "2g.20gb", Placement(2, 2)),))
    found = devices(of=of, demand=GpuDemand(made=(place,) if ours else ()))
    shut = {name for name, one in found.places.items() if one.foreign}
    if ours:
        assert shut == set()
    else:
        assert {name.rpartition("-mig-")[2] for name in shut} >= {"1g10gb-19-2", "1g10gb-19-3", "4g40gb-5-0"}
        assert "gpu-00000000-mig-1g10gb-19-4" not in shut
        taints = {one.name for spec in published(found, of) for one in spec.devices if one.taints}
        assert taints == shut


# --- what claims have ------------------------------------------------------------------------------


def asks(
    name: str, device: str, kept: Iterable[Granted] = (), *, admin: bool = False
) -> Granted | RefusedClaim:
    ref = ClaimRef("team", name, f"uid-{name}")
    result = ClaimResult("gpu", "node-a-partage", device, "gpu.partage.dev", admin_access=admin)
    return grant(Claim(ref, allocated=True, results=(result,)), ref, devices(), kept)


@given(st.lists(st.integers(0, 25), max_size=12))
def test_no_claims_ever_have_devices_that_exclude_each_other(order: list[int]) -> None:
    """Whatever the scheduler gives: what is granted fits, and what fits is granted."""
    found = devices()
    names, of = [*found.rows], geometry_of(GPU_0)
    assert of is not None
    kept: list[Granted] = []
    held: list[PlaceOnDemand] = []
    for number, at in enumerate(order):
        place = found.places[names[at]]
        answer = asks(f"c{number}", names[at], kept)
        together = allowed(counted(of), [counter_use("gpu", one) for one in (*held, place)])
        assert isinstance(answer, Granted) == together
        if isinstance(answer, Granted):
            kept.append(answer)
            held.append(place)
    demand = demands_of(kept, {}).get(GPU_0.uuid, GpuDemand())
    assert demand.whole == any(place.spec is None for place in held)
    assert sorted(map(str, demand.parts)) == sorted(str(place.item) for place in held if place.item)


def test_a_device_that_is_not_there_is_granted_without_an_id() -> None:
    answer = asks("a", "gpu-00000000-mig-3g40gb-9-4")
    assert isinstance(answer, Granted)
    (share,) = answer.shares
    assert (share.ids, share.place, share.whole) == ((), "3g.40gb@4", False)
    again = asks("b", "gpu-00000000-mig-1g10gb-19-6", [answer])
    assert isinstance(again, RefusedClaim)
    assert again.text == (
        "claim team/b was given GPU 0 1g.10gb (gpu-00000000-mig-1g10gb-19-6), which is held by "
        "claim team/a (gpu-00000000-mig-3g40gb-9-4); it is tried again by itself, and succeeds once that has "
        "ended"
    )


def test_a_device_beside_others_that_have_the_only_engine_is_refused_at_once() -> None:
    first = asks("a", "gpu-00000000-mig-1g10gbme-20-6")
    assert isinstance(first, Granted)
    refused = asks("b", "gpu-00000000-mig-1g10gbme-20-0", [first])
    assert isinstance(refused, RefusedClaim)
    assert refused.text == (
        "claim team/b was given GPU 0 1g.10gb+me (gpu-00000000-mig-1g10gbme-20-0), which needs 1 of the "
        "ofa engines of its GPU, and 0 of 1 are free beside claim team/a (gpu-00000000-mig-1g10gbme-20-6); "
        "it is tried again by itself, and succeeds once that has ended"
    )


def test_who_only_looks_at_a_device_wants_nothing_of_the_gpu() -> None:
    refused = asks("a", "gpu-00000000-mig-3g40gb-9-4", admin=True)
    assert isinstance(refused, RefusedClaim)
    assert "to look at" in refused.text


def test_places_of_claims_that_have_ended_are_known_and_not_wanted() -> None:
    item = LayoutItem.parse("1g.10gb@6")
    demands: Demands = demands_of([], {GPU_0.uuid: [item]})
    assert demands == {GPU_0.uuid: GpuDemand(made=(item,))}
