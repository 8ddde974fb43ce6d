"""Devices that are shared by amounts of memory: how many units there are, what limits a container, what is
impossible.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.errors import InputError, PartageError, Unsatisfiable
from partage.model.gpu import Gpu, Inventory
from partage.model.ids import MEMORY_RESOURCE, ResourceName, parse_share_id
from partage.model.policy import (
    AllDevices,
    GpuCriteria,
    GpuEntry,
    MemoryUnits,
    Mps,
    Policy,
    Sharing,
    TimeSlicing,
    UnitPlacement,
)
from partage.model.share import Guarantee, resources_of
from partage.model.strategy import Via
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.offer.memory_units import MOST_NAMESPACES, MOST_UNITS, RESERVED_BYTES
from partage.plan.offer.mps_shares import limits_clients
from partage.units import GIB, MIB
from tests.plan.offers import gpu, node

NEW_DRIVER, OLD_DRIVER = "615.71.09", "550.163.01"


def units(size: int = GIB) -> MemoryUnits:
    return MemoryUnits(size)


def mps(size: int = GIB, protocol: int = 2) -> Mps:
    return Mps(0, protocol=protocol, units=units(size))


def resolved(sharing: Sharing, *gpus: Gpu, driver: str = NEW_DRIVER) -> DesiredState:
    entry = GpuEntry("gpus[0]", AllDevices(), sharing)
    return resolve(Policy((entry,), source="p.yaml"), node(*gpus, driver=driver), lambda _: None)


def problems(error: type[PartageError], sharing: Sharing, *gpus: Gpu) -> str:
    with pytest.raises(error) as caught:
        resolved(sharing, *gpus)
    return "\n".join(f"{one.path}: {one.message}; {one.hint}" for one in caught.value.problems)


@pytest.mark.parametrize("placement", UnitPlacement)
def test_units_are_spread_where_the_policy_says_so(placement: UnitPlacement) -> None:
    (row,) = resolved(TimeSlicing(0, units=MemoryUnits(GIB, placement)), gpu(0)).offer[gpu(0).uuid]
    assert row.spread is (placement is UnitPlacement.SPREAD)


CARDS = [gpu(0, memory_bytes=24 * GIB), gpu(1, memory_bytes=81_559 * MIB), gpu(2, memory_bytes=15 * GIB)]


@pytest.mark.parametrize("sharing", [mps(), TimeSlicing(0, units=units())])
def test_each_card_counts_its_own_memory_under_one_name(sharing: Sharing) -> None:
    """512 MiB of each are promised to nobody."""
    offer = resolved(sharing, *CARDS).offer
    assert [rows[0].count for rows in offer.values()] == [23, 79, 14]
    (resource,) = resources_of(offer).values()
    assert resource.name == MEMORY_RESOURCE
    assert resource.count == 23 + 79 + 14
    ids = [id_ for row in resource.offerings for id_ in row.share_ids]
    assert ids[0] == f"{CARDS[0].uuid}-_-0"
    assert ids[-1] == f"{CARDS[2].uuid}-_-13"
    assert len(set(ids)) == len(ids)
    assert parse_share_id(ids[-1]) == (CARDS[2].uuid, 13)


@settings(deadline=None)
@given(
    st.lists(st.integers(2 * GIB, 300 * GIB), min_size=1, max_size=8), st.sampled_from([256, 512, 1024, 5000])
)
def test_no_card_promises_more_than_it_has(memories: list[int], unit_mib: int) -> None:
    cards = [gpu(number, memory_bytes=memory) for number, memory in enumerate(memories)]
    try:
        offer = resolved(mps(unit_mib * MIB), *cards).offer
    except Unsatisfiable:
        return
    for card, (row,) in zip(cards, offer.values(), strict=True):
        assert row.count * row.memory_bytes <= card.memory_bytes - RESERVED_BYTES
        assert (row.count + 1) * row.memory_bytes > card.memory_bytes - RESERVED_BYTES


def test_units_have_no_numa_node_and_a_container_may_hold_several() -> None:
    """Without a NUMA node the kubelet asks for each container which units it should have."""
    (row,) = resolved(mps(), gpu(5)).offer[gpu(5).uuid]
    assert row.numa_node is None
    assert not row.single


# --- what holds a container to its amount -----------------------------------------------------------


def test_with_namespaces_each_amount_has_a_limit_of_the_daemons_own() -> None:
    state = resolved(mps(protocol=3), gpu(0, memory_bytes=4 * GIB))
    (row,) = state.offer[gpu(0).uuid]
    assert (row.guarantee, row.limits_in_env, row.pipe) == (Guarantee.GUARDED, False, "gpu/units")
    (spec,) = state.settings[gpu(0).uuid].daemons
    assert [(one.name, one.memory_bytes, one.threads_percent) for one in spec.namespaces] == [
        ("units1", GIB, 100),
        ("units2", 2 * GIB, 100),
        ("units3", 3 * GIB, 100),
    ]
    assert spec.memory_bytes == GIB


def test_claims_have_a_namespace_each_that_is_closed_until_one_gets_it() -> None:
    entry = GpuEntry("gpus[0]", AllDevices(), mps(protocol=3), via=Via.CLAIMS)
    policy = Policy((entry,), source="p.yaml")
    state = resolve(policy, node(gpu(0, memory_bytes=4 * GIB), driver=NEW_DRIVER), lambda _: None)
    (row,) = state.offer[gpu(0).uuid]
    assert (row.guarantee, row.pipe, row.in_slots) == (Guarantee.GUARDED, "gpu/slot", True)
    assert [row.pipe_of(row.share_ids[first:]) for first in range(3)] == [
        "gpu/slot0",
        "gpu/slot1",
        "gpu/slot2",
    ]
    (spec,) = state.settings[gpu(0).uuid].daemons
    assert (spec.namespaces, spec.slot_names, spec.protocol) == ((), ("slot0", "slot1", "slot2"), 3)
    assert spec.limits.slots == 3


def test_without_namespaces_the_ceiling_is_what_the_card_promises() -> None:
    state = resolved(mps(), gpu(0, memory_bytes=4 * GIB), driver=OLD_DRIVER)
    (row,) = state.offer[gpu(0).uuid]
    assert (row.guarantee, row.limits_in_env, row.pipe) == (Guarantee.ADVISORY, True, "")
    (spec,) = state.settings[gpu(0).uuid].daemons
    assert (spec.memory_bytes, spec.threads_percent, spec.namespaces) == (3 * GIB, 100, ())


def test_a_gpu_that_cannot_limit_its_clients_has_units_and_a_daemon_without_limits() -> None:
    pascal = replace(gpu(0), compute_capability=(6, 0))
    state = resolved(mps(), pascal)
    (row,) = state.offer[pascal.uuid]
    assert row.guarantee is Guarantee.NONE
    (spec,) = state.settings[pascal.uuid].daemons
    assert (spec.memory_bytes, spec.namespaces) == (None, ())


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_there_is_a_namespace_for_each_amount_up_to_a_number(more: int, fits: bool) -> None:
    whole = replace(gpu(0), memory_bytes=RESERVED_BYTES + (MOST_NAMESPACES + more) * 64 * MIB)
    if fits:
        assert resolved(mps(64 * MIB, protocol=3), whole).offer[whole.uuid][0].count == MOST_NAMESPACES
    else:
        said = problems(Unsatisfiable, mps(64 * MIB, protocol=3), whole)
        assert f"{MOST_NAMESPACES + more:,} units: protocol 3 has a namespace for each amount" in said


def test_the_first_gpus_whose_clients_have_limits_are_those_of_volta() -> None:
    limited = {major: limits_clients(replace(gpu(0), compute_capability=(major, 0))) for major in (6, 7, 8)}
    assert limited == {6: False, 7: True, 8: True}


def test_time_slices_limit_no_memory() -> None:
    (row,) = resolved(TimeSlicing(0, units=units()), gpu(0)).offer[gpu(0).uuid]
    assert row.guarantee is Guarantee.NONE


def test_namespaces_take_a_new_driver() -> None:
    with pytest.raises(Unsatisfiable, match="615"):
        resolved(mps(protocol=3), gpu(0), driver=OLD_DRIVER)


# --- what is impossible, or wrong ----------------------------------------------------------------------


def test_mib_of_a_large_card_are_too_many_ids() -> None:
    said = problems(Unsatisfiable, mps(MIB), gpu(0))
    assert "gpus[0].mps.unit: aliyun.com/gpu-mem: 81,408 units of 1 MiB on 1 device" in said
    assert f"at most {MOST_UNITS:,}" in said
    assert "take a larger unit: 16Mi or more" in said


def test_the_unit_that_is_advised_fits() -> None:
    cards = [gpu(number) for number in range(8)]
    assert "128Mi or more" in problems(Unsatisfiable, mps(MIB), *cards)
    assert resolved(mps(128 * MIB), *cards).offer
    assert "at most" in problems(Unsatisfiable, mps(64 * MIB), *cards)


def test_as_many_units_as_a_node_may_have_are_enough() -> None:
    whole = replace(gpu(0), memory_bytes=RESERVED_BYTES + MOST_UNITS * 2 * MIB)
    (row,) = resolved(TimeSlicing(0, units=units(2 * MIB)), whole).offer[whole.uuid]
    assert row.count == MOST_UNITS
    assert "2Mi or more" in problems(Unsatisfiable, TimeSlicing(0, units=units(MIB)), whole)


def test_the_unit_that_is_advised_is_written_as_policies_write_it() -> None:
    many = [replace(gpu(number), memory_bytes=RESERVED_BYTES + 700 * GIB) for number in range(8)]
    assert "take a larger unit: 1Gi or more" in problems(Unsatisfiable, mps(64 * MIB), *many)


def test_of_two_units_the_smaller_one_is_to_be_larger() -> None:
    fine = ResourceName("example.com/fine")
    entries = (
        GpuEntry("gpus[0]", GpuCriteria(index=(0,)), mps()),
        GpuEntry("gpus[1]", GpuCriteria(index=(1,)), mps(8 * MIB), name=fine),
    )
    with pytest.raises(Unsatisfiable) as caught:
        resolve(Policy(entries, source="p.yaml"), node(gpu(0), gpu(1)), lambda _: None)
    (problem,) = caught.value.problems
    assert problem.path == "gpus[1].mps.unit"
    assert "example.com/fine: 10,255 units of 8 MiB and more on 2 devices" in problem.message
    assert "16Mi or more" in problem.hint


def test_a_unit_larger_than_a_card_is_impossible() -> None:
    said = problems(Unsatisfiable, TimeSlicing(0, units=units(24 * GIB)), *CARDS[:2])
    assert "GPU 0: a unit of 24 GiB does not fit: the device has 24 GiB" in said


def test_a_name_stands_for_one_unit() -> None:
    """A pod that asks for 3 would get 3 GiB on one card, and 6 GiB or a share of any size on another."""

    def entry(number: int, sharing: Sharing, name: str | None = None) -> GpuEntry:
        called = None if name is None else ResourceName(name)
        return GpuEntry(f"gpus[{number}]", GpuCriteria(index=(number,)), sharing, name=called)

    def tried(*entries: GpuEntry) -> None:
        inventory: Inventory = node(gpu(0), gpu(1), driver=NEW_DRIVER)
        resolve(Policy(entries, source="p.yaml"), inventory, lambda _: None)

    tried(entry(0, mps()), entry(1, mps()))
    tried(entry(0, mps()), entry(1, mps(2 * GIB), "example.com/pairs"))
    other = replace(units(), placement=UnitPlacement.SPREAD)
    for second in (mps(2 * GIB), TimeSlicing(0, units=other), TimeSlicing(4)):
        with pytest.raises(InputError, match="cannot know what it gets"):
            tried(entry(0, mps()), entry(1, second, MEMORY_RESOURCE))


def test_units_of_one_name_that_are_limited_in_two_ways_are_told_apart() -> None:
    entries = (
        GpuEntry("gpus[0]", GpuCriteria(index=(0,)), mps(protocol=3)),
        GpuEntry("gpus[1]", GpuCriteria(index=(1,)), mps()),
    )
    inventory = node(gpu(0), gpu(1), driver=NEW_DRIVER)
    (warning,) = resolve(Policy(entries, source="p.yaml"), inventory, lambda _: None).warnings
    assert warning.message.endswith(
        "guarantee different things: 1 GiB each, MPS, namespaces on GPU 0; "
        "1 GiB each, MPS, limits in the environment on GPU 1"
    )
