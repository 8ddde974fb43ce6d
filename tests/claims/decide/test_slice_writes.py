"""Writing slices, by hand and against a small model of the API server that applies what is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.claims.decide.slice_writes import (
    CONSUMABLE_CAPACITY,
    DEVICE_TAINTS,
    PARTITIONABLE,
    SliceWrites,
    gates_needed,
    gates_off,
    slice_writes,
    without,
)
from partage.claims.model.slices import (
    Capacity,
    Counter,
    CounterSet,
    CounterUse,
    DeviceTaint,
    Pool,
    RequestPolicy,
    SliceDevice,
    SliceSpec,
    slice_of_json,
)

PLAIN = SliceDevice("plain")
SHARED = SliceDevice(
    "shared",
    capacity={"memory": Capacity("80Gi", RequestPolicy("0", valid_values=("0",)))},
    allow_multiple_allocations=True,
)
ILL = SliceDevice("ill", taints=(DeviceTaint("gpu.partage.dev/unhealthy", "NoSchedule", "79"),))


def spec(*devices: SliceDevice, generation: int = 0, count: int = 1, pool: str = "n1-partage") -> SliceSpec:
    return SliceSpec("gpu.partage.dev", "n1", Pool(pool, generation, count), devices)


def name(number: int, end: str = "aaaaa") -> str:
    return f"{number:05d}-gpu.partage.dev-n1-{end}"


def in_generation(wanted: SliceSpec, generation: int) -> SliceSpec:
    return replace(wanted, pool=replace(wanted.pool, generation=generation))


def applied(writes: SliceWrites, there: dict[str, SliceSpec | None]) -> dict[str, SliceSpec | None]:
    """What is there afterwards. What the API server refuses fails."""
    after = dict(there)
    for gone in writes.deletes:
        del after[gone]
    for changed, new in writes.replaces.items():
        before = after[changed]
        assert before is not None
        assert (new.driver, new.node_name, new.pool.name) == (
            before.driver,
            before.node_name,
            before.pool.name,
        ), "immutable"
        after[changed] = new
    for number, new in writes.creates.items():
        assert name(number, "zzzzz") not in after
        after[name(number, "zzzzz")] = new
    return after


DEVICES = st.lists(st.sampled_from([PLAIN, SHARED, ILL]), max_size=3, unique_by=lambda one: one.name)
WANTED = st.lists(DEVICES, max_size=4).map(lambda parts: [spec(*part, count=len(parts)) for part in parts])
NAMES = st.one_of(
    st.builds(name, st.integers(0, 5), st.sampled_from(["aaaaa", "bbbbb"])),
    st.sampled_from(["by-hand", "1-short", "99999-gpu.partage.dev-n1-aaaaa", ""]),
)
SPECS = st.builds(
    lambda devices, generation, count, pool: spec(*devices, generation=generation, count=count, pool=pool),
    DEVICES,
    st.integers(0, 3),
    st.integers(1, 5),
    st.sampled_from(["n1-partage", "n1-partage", "n1-partage", "n1"]),
)


@given(WANTED, st.dictionaries(NAMES, st.none() | SPECS, max_size=6))
def test_what_is_there_afterwards_is_what_is_wanted(
    wanted: list[SliceSpec], there: dict[str, SliceSpec | None]
) -> None:
    after = applied(slice_writes(wanted, there), there)
    in_order = [one for _, one in sorted(after.items())]
    generations = {one.pool.generation for one in in_order if one is not None}
    assert len(generations) == min(1, len(wanted))
    highest = max((one.pool.generation for one in there.values() if one is not None), default=0)
    assert all(generation >= highest for generation in generations)
    expected = [in_generation(one, generation) for one in wanted for generation in generations]
    assert in_order == expected
    assert not slice_writes(wanted, after)


@given(WANTED.filter(lambda wanted: len(wanted) > 1), st.data())
def test_one_that_changes_keeps_the_generation_and_two_raise_it(
    wanted: list[SliceSpec], data: st.DataObject
) -> None:
    there: dict[str, SliceSpec | None] = {
        name(number): in_generation(one, 7) for number, one in enumerate(wanted)
    }
    new = SliceDevice("new")
    changed = data.draw(st.sets(st.integers(0, len(wanted) - 1), min_size=1))
    for number in changed:
        wanted[number] = replace(wanted[number], devices=(new,))
    writes = slice_writes(wanted, there)
    assert not writes.deletes
    assert not writes.creates
    if len(changed) == 1:
        assert [one.pool.generation for one in writes.replaces.values()] == [7]
    else:
        assert [one.pool.generation for one in writes.replaces.values()] == [8] * len(wanted)


def test_of_two_with_one_number_one_stays() -> None:
    wanted = [spec(PLAIN)]
    there = {name(0, "aaaaa"): spec(PLAIN, generation=1), name(0, "bbbbb"): spec(PLAIN, generation=1)}
    writes = slice_writes(wanted, there)
    assert writes.deletes == (name(0, "bbbbb"),)
    assert writes.replaces == {name(0, "aaaaa"): spec(PLAIN, generation=2)}


def test_a_slice_of_another_pool_is_deleted_since_none_can_change_it() -> None:
    writes = slice_writes([spec(PLAIN)], {name(0): spec(PLAIN, generation=4, pool="n1")})
    assert writes == SliceWrites((name(0),), {}, {0: spec(PLAIN, generation=5)})


# --- servers without a feature -----------------------------------------------------------------


def test_what_a_server_without_a_gate_drops() -> None:
    sent = spec(PLAIN, SHARED, ILL)
    no_sharing = replace(SHARED, capacity={"memory": Capacity("80Gi")}, allow_multiple_allocations=None)
    no_policy = replace(SHARED, capacity={"memory": Capacity("80Gi")})
    healthy = replace(ILL, taints=())
    assert gates_off(sent, spec(PLAIN, no_sharing, ILL)) == {CONSUMABLE_CAPACITY}
    assert gates_off(sent, spec(PLAIN, no_policy, ILL)) == {CONSUMABLE_CAPACITY}
    assert gates_off(sent, spec(PLAIN, SHARED, healthy)) == {DEVICE_TAINTS}
    assert gates_off(sent, spec(PLAIN, no_sharing, healthy)) == {CONSUMABLE_CAPACITY, DEVICE_TAINTS}
    assert gates_off(sent, sent) == frozenset()


def test_counters_that_are_dropped_take_their_devices_and_their_slice_with_them() -> None:
    counters = {"memory-slice-0": Counter("1")}
    place = SliceDevice("place", consumes_counters=(CounterUse("gpu", counters),))
    counted = replace(spec(), shared_counters=(CounterSet("gpu", counters),))
    assert gates_off(counted, spec()) == {PARTITIONABLE}
    assert gates_off(spec(place, PLAIN), spec(SliceDevice("place"), PLAIN)) == {PARTITIONABLE}
    assert gates_off(counted, counted) == gates_off(spec(place), spec(place)) == frozenset()
    wanted = (counted, spec(place, PLAIN))
    assert without(wanted, frozenset({PARTITIONABLE})) == (spec(PLAIN),)
    assert without(wanted, frozenset({DEVICE_TAINTS})) == wanted


@pytest.mark.parametrize("kept", [None, spec(), spec(replace(PLAIN, name="other"))])
def test_an_answer_of_another_kind_names_no_gate(kept: SliceSpec | None) -> None:
    assert gates_off(spec(PLAIN, SHARED), kept) == frozenset()


def test_devices_that_need_a_gate_that_is_off_are_left_out() -> None:
    wanted = (spec(PLAIN, SHARED, ILL),)
    assert gates_needed(PLAIN) == frozenset()
    assert without(wanted, frozenset({CONSUMABLE_CAPACITY})) == (spec(PLAIN, ILL),)
    assert without(wanted, frozenset({DEVICE_TAINTS})) == (spec(PLAIN, SHARED),)
    assert without(wanted, frozenset()) == wanted


def test_a_taint_comes_back_with_the_time_that_the_server_adds() -> None:
    sent = spec(ILL)
    returned = sent.to_json()
    returned["devices"][0]["taints"][0]["timeAdded"] = "2026-11-24T22:00:00Z"
    assert slice_of_json(returned) == sent
