"""From the slices that are there to those that are wanted."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.claims.decide.slice_writes import dropped, slice_writes, still_dropped, without
from partage.claims.model.names import DRIVER
from partage.claims.model.slices import DeviceTaint, Pool, SliceDevice, SliceSpec

Slices = dict[str, SliceSpec | None]
TAINT = DeviceTaint("gpu.partage.dev/unhealthy", "NoSchedule", "79")
SHARED = SliceDevice("gpu-1", allow_multiple_allocations=True)
ILL = SliceDevice("gpu-2", taints=(TAINT,))


def spec(*devices: SliceDevice, generation: int = 0, count: int = 1) -> SliceSpec:
    return SliceSpec(DRIVER, "n1", Pool("n1-partage", generation, count), devices)


def named(*names: str) -> tuple[SliceDevice, ...]:
    return tuple(map(SliceDevice, names))


contents = st.lists(st.sampled_from("abc"), max_size=3).map(lambda names: spec(*named(*names)))
wanted_slices = st.lists(contents, min_size=1, max_size=4).map(tuple)
numbered_names = st.builds(
    lambda number, end: f"{number:05d}-{end}", st.integers(0, 6), st.sampled_from("xyz")
)
foreign = st.builds(
    lambda made, generation, count: replace(made, pool=Pool("n1-partage", generation, count)),
    contents,
    st.integers(0, 9),
    st.integers(1, 5),
)
slices_there = st.dictionaries(
    numbered_names | st.sampled_from(["by-hand", "1-x"]), st.none() | foreign, max_size=6
)


def carried_out(wanted: tuple[SliceSpec, ...], there: Mapping[str, SliceSpec | None]) -> Slices:
    """What is there after the writes."""
    writes = slice_writes(wanted, there)
    assert writes.deletes == tuple(sorted(set(writes.deletes)))
    assert not set(writes.deletes) & set(writes.replaces)
    found: Slices = {name: made for name, made in there.items() if name not in writes.deletes}
    found |= writes.replaces
    created = {f"{number:05d}-new": made for number, made in writes.creates.items()}
    assert not created.keys() & found.keys()
    return {**found, **created}


@given(wanted_slices, slices_there)
def test_after_the_writes_all_is_as_wanted_and_nothing_is_left_to_write(
    wanted: tuple[SliceSpec, ...], there: Slices
) -> None:
    found = carried_out(wanted, there)
    generations = {made.pool.generation for made in found.values() if made is not None}
    assert len(generations) == 1
    (generation,) = generations
    expected = [replace(one, pool=Pool("n1-partage", generation, len(wanted))) for one in wanted]
    assert [found[name] for name in sorted(found)] == expected
    assert generation >= max((one.pool.generation for one in there.values() if one is not None), default=0)
    assert not slice_writes(wanted, found)


@given(wanted_slices, wanted_slices)
def test_the_generation_rises_unless_one_slice_alone_changes(
    before: tuple[SliceSpec, ...], wanted: tuple[SliceSpec, ...]
) -> None:
    """The scheduler reads a pool while it is written: what it takes for whole must never be a mixture."""
    there = carried_out(before, {})
    writes = slice_writes(wanted, there)
    changes = sum(old != new for old, new in zip(before, wanted, strict=False))
    rises = len(before) != len(wanted) or changes > 1
    made = [*writes.replaces.values(), *writes.creates.values()]
    assert {one.pool.generation for one in made} <= {2 if rises else 1}
    assert len(writes.replaces) == (min(len(before), len(wanted)) if rises else changes)


def test_of_two_slices_with_one_number_one_stays() -> None:
    kept = spec(generation=1)
    writes = slice_writes((spec(),), {"00000-a": kept, "00000-b": kept})
    assert writes.deletes == ("00000-b",)
    assert writes.replaces == {"00000-a": spec(generation=2)}


@pytest.mark.parametrize(
    ("sent", "kept", "gate"),
    [
        (SHARED, SliceDevice("gpu-1"), "DRAConsumableCapacity"),
        (ILL, SliceDevice("gpu-2"), "DRADeviceTaints"),
    ],
)
def test_a_device_of_which_something_is_dropped_is_withdrawn(
    sent: SliceDevice, kept: SliceDevice, gate: str
) -> None:
    other = SliceDevice("gpu-3")
    gates = dropped(spec(sent, other), spec(kept, other))
    assert gates == {sent.name: gate}
    assert without([spec(sent, other)], gates) == (spec(other),)
    assert dropped(spec(sent, other), spec(sent, other)) == {}


def test_it_stays_away_as_long_as_it_needs_the_gate() -> None:
    gates = {"gpu-1": "DRAConsumableCapacity", "gpu-2": "DRADeviceTaints", "gone": "DRADeviceTaints"}
    both = {name: gate for name, gate in gates.items() if name != "gone"}
    assert still_dropped(gates, [spec(SHARED, ILL)]) == both
    assert still_dropped(gates, [spec(replace(SHARED, taints=(TAINT,)), ILL)]) == both
    assert still_dropped(gates, [spec(SliceDevice("gpu-1"), SliceDevice("gpu-2"))]) == {}
