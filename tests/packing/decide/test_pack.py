"""Packing, against an enumeration of everything that could be done instead."""

import math
from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.errors import Unsatisfiable
from partage.model.geometry import Placement
from partage.model.gpu import EmptyInstance
from partage.model.layout import DoesNotFit, LayoutItem, place
from partage.packing.decide.candidates import survey
from tests.examples import examples
from tests.oracle import enumerate_mig as oracle
from tests.packing.decide.fleets import candidates, fleet, gpu, packed, uuid_of

H100, A100, A30 = "h100-sxm5-80gb", "a100-40gb", "a30-24gb"
QUICK = settings(max_examples=examples(60), deadline=None)


Costs = dict[tuple[int, ...], tuple[int, ...]]


# --- everything that could be done -------------------------------------------------------------


@cache
def layouts(model_id):
    return sorted({(), *oracle.fixed_layouts(model_id)})


def options(model_id, live, held, demand):
    """What the GPU can serve exactly, and the least cost: GPUs, disturbed, changes of mode, new devices."""
    live, held = set(live), set(held)
    kinds = set()
    for layout in map(set, layouts(model_id)):
        if held <= layout:
            free = Counter(name for name, _ in layout - held)
            old = Counter(name for name, _ in layout & live - held)
            capable_gpus = tuple((min(free[name], count), old[name]) for name, count in demand.items())
            kinds.add((capable_gpus, len(live - layout)))
    best: Costs = {}
    for capable_gpus, disturbed in kinds:
        for served in product(*(range(most + 1) for most, _ in capable_gpus)):
            new = sum(max(n - there, 0) for n, (_, there) in zip(served, capable_gpus, strict=True))
            cost = (1, disturbed, int(not live), new)
            best[served] = min(best.get(served, cost), cost)
    best.pop((0,) * len(demand), None)
    return best


def by_brute_force(gpus, demand):
    """The least cost in lexicographic order; None where nothing serves the demand."""
    reached: Costs = {(0,) * len(demand): (0, 0, 0, 0)}
    for model_id, live, held in gpus:
        further = dict(reached)
        for done, so_far in reached.items():
            for served, cost in options(model_id, live, held, demand).items():
                total = tuple(map(sum, zip(done, served, strict=True)))
                if any(n > most for n, most in zip(total, demand.values(), strict=True)):
                    continue
                sums = tuple(map(sum, zip(so_far, cost, strict=True)))
                further[total] = min(further.get(total, sums), sums)
        reached = further
    return reached.get(tuple(demand.values()))


@st.composite
def cases(draw):
    models = draw(st.lists(st.sampled_from([H100, A100, A30]), min_size=1, max_size=3))
    gpus = []
    for model_id in models:
        live = draw(st.sampled_from(layouts(model_id)))
        held = draw(st.sets(st.sampled_from(live))) if live else set()
        gpus.append((model_id, live, held))
    names = sorted(
        {profile["name"] for m in models for profile in oracle.models_with_placements()[m]["profiles"]}
    )
    demand = draw(st.dictionaries(st.sampled_from(names), st.integers(1, 6), min_size=1, max_size=3))
    return gpus, demand


def made(gpus):
    """The GPUs of a case, and the UUIDs of what is held."""
    real, held_uuids = [], []
    for index, (model_id, live, held) in enumerate(gpus):
        one = gpu(model_id, [f"{name}@{start}" for name, start in live], index)
        real.append(one)
        held_uuids += [uuid_of(one, name, start) for name, start in held]
    return real, held_uuids


def items(layout):
    return Counter((str(item.profile), item.start) for item in layout)


@given(case=cases())
@QUICK
def test_no_packing_is_better_and_each_can_be_made(case):
    gpus, demand = case
    real, held = made(gpus)
    best = by_brute_force(gpus, demand)
    wanted = ",".join(f"{name}={count}" for name, count in demand.items())
    try:
        packing = packed(wanted, *real, held=held)
    except Unsatisfiable:
        assert best is None
        return
    assert packing.optimal
    served = sum((Counter(str(i.profile) for i in one.serves) for one in packing.assignments), Counter())
    assert served == demand
    assert len({one.candidate.gpu.index for one in packing.assignments}) == len(packing.assignments)
    for one in packing.assignments:
        model_id, live, taken = gpus[one.candidate.gpu.index]
        _can_be_made(one, model_id, live, taken)
    changes = sum(not one.candidate.gpu.mig_enabled for one in packing.assignments)
    new = sum(len(one.serves) - len(one.reused) for one in packing.assignments)
    assert (packing.gpus_used, packing.disturbed, changes, new) == best


def _can_be_made(one, model_id, live, held):
    layout = items(one.layout)
    assert tuple(sorted(layout)) in oracle.fixed_layouts(model_id)
    assert set(held) <= set(layout)
    assert items(one.serves) <= layout
    assert not set(items(one.serves)) & set(held)
    assert set(items(gone.item for gone in one.disturbed)) == set(live) - set(layout)
    assert {device.uuid for device in one.reused} <= {d.uuid for d in one.candidate.gpu.mig_devices}


@given(case=cases())
@QUICK
def test_the_prices_prove_the_bound(case):
    """No GPU is worth more than one at them, but for what is said to be spared."""
    gpus, demand = case
    real, held = made(gpus)
    try:
        packing = packed(",".join(f"{n}={c}" for n, c in demand.items()), *real, held=held)
    except Unsatisfiable:
        return
    if packing.proof is None:
        return
    prices = [price for _, price in packing.proof.prices]
    assert packing.proof.worth == sum(n * p for n, p in zip(demand.values(), prices, strict=True))
    spared = Fraction(0)
    for model_id, live, taken in gpus:
        can = options(model_id, live, taken, demand)
        worths = [sum(n * p for n, p in zip(served, prices, strict=True)) for served in can]
        spared += max([Fraction(1), *worths]) - 1
    assert spared == packing.proof.spared
    assert math.ceil(packing.proof.worth - spared) == packing.bound == packing.gpus_used


@given(
    counts=st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(any),
    how_many=st.integers(1, 2),
)
@QUICK
def test_compute_instances_are_packed_as_they_are_placed(counts, how_many):
    """On one GPU or two, against every way to split the demand over them and to place each half."""
    names = ["1c.3g.20gb", "2c.3g.20gb", "3g.20gb", "1g.5gb"]
    demand = {name: count for name, count in zip(names, counts, strict=True) if count}
    wanted = [LayoutItem.parse(name) for name, count in demand.items() for _ in range(count)]
    geometry = candidates(gpu(A100))[0].geometry

    def fits(chosen):
        try:
            place(geometry, chosen)
        except DoesNotFit:
            return False
        return True

    splits = [
        [item for item, side in zip(wanted, sides, strict=True) if side == "a"]
        for sides in (product("ab", repeat=len(wanted)) if len(wanted) <= 9 else [])
    ]
    fewest = 1 if fits(wanted) else 3
    if fewest > 1 and any(fits(a) and fits(_without(wanted, a)) for a in splits):
        fewest = 2
    if len(wanted) > 9 and fewest > 1:
        return
    try:
        packing = packed(",".join(f"{n}={c}" for n, c in demand.items()), *[gpu(A100)] * how_many)
    except Unsatisfiable:
        assert fewest > how_many
        return
    assert packing.gpus_used == fewest
    for one in packing.assignments:
        assert {seat.placement.start for seat in place(geometry, one.layout)} == {i.start for i in one.layout}


def _without(wanted, chosen):
    rest = list(wanted)
    for item in chosen:
        rest.remove(item)
    return rest


# --- live instances ----------------------------------------------------------------------------


def only(packing):
    (one,) = packing.assignments
    return one


def test_a_free_instance_that_fits_is_used_before_one_is_made():
    one = only(packed("1g.10gb=1", gpu(H100), gpu(H100, ["1g.10gb@2", "3g.40gb@4"], 1)))
    assert [str(item) for item in one.serves] == ["1g.10gb@2"]
    assert len(one.reused) == 1
    assert [str(item) for item in one.layout] == ["1g.10gb@2", "3g.40gb@4"]


def test_another_gpu_in_mig_mode_is_better_than_one_that_has_to_change():
    one = only(packed("2g.20gb=1", gpu(H100), gpu(H100, ["3g.40gb@4"], 1)))
    assert one.candidate.gpu.index == 1
    assert not one.disturbed


def test_fewer_gpus_count_more_than_instances_that_live():
    packing = packed("3g.40gb=2", gpu(H100, ["1g.10gb@0"]), gpu(H100, ["1g.10gb@0"], 1))
    assert (packing.gpus_used, packing.disturbed) == (1, 1)


def test_what_is_held_stays_even_if_that_takes_another_gpu():
    a, b = gpu(H100, ["1g.10gb@0"]), gpu(H100, ["1g.10gb@0"], 1)
    packing = packed("3g.40gb=2", a, b, held=[a.mig_devices[0].uuid, b.mig_devices[0].uuid])
    assert (packing.gpus_used, packing.disturbed) == (2, 0)
    assert all(str(one.layout[0]) == "1g.10gb@0" for one in packing.assignments)


def test_a_held_instance_serves_nothing_else():
    a = gpu(H100, ["3g.40gb@0", "3g.40gb@4"])
    with pytest.raises(Unsatisfiable, match=r"2 x 3g\.40gb demanded, and at most 1 fit"):
        packed("3g.40gb=2", a, held=[a.mig_devices[0].uuid])


def test_a_free_compute_instance_makes_way_for_smaller_ones_inside_its_instance():
    a = gpu(A100, ["3g.20gb@0", "3g.20gb@4"])
    one = only(packed("1c.3g.20gb=3", a, held=[uuid_of(a, "3g.20gb", 4)]))
    assert [str(item) for item in one.layout] == ["1c.3g.20gb@0"] * 3 + ["3g.20gb@4"]
    assert [gone.uuid for gone in one.disturbed] == [uuid_of(a, "3g.20gb", 0)]


def test_a_new_compute_instance_goes_beside_one_that_is_held():
    a = gpu(A100, ["1c.3g.20gb@0"])
    one = only(packed("2c.3g.20gb=1", a, held=[a.mig_devices[0].uuid]))
    assert [str(item) for item in one.layout] == ["1c.3g.20gb@0", "2c.3g.20gb@0"]


def test_an_instance_without_devices_takes_new_ones_or_counts_as_disturbed():
    empty = EmptyInstance(1, "3g.20gb", Placement(0, 4))
    a = replace(gpu(A100, ["3g.20gb@4"]), empty_instances=(empty,))
    kept = only(packed("3g.20gb=2", a))
    assert not kept.disturbed
    gone = only(packed("4g.20gb=1", a))
    assert [(str(one.item), one.uuid) for one in gone.disturbed] == [("3g.20gb@0", None)]


def test_a_media_engine_that_a_live_instance_has_is_taken_from_it_only_if_nothing_else_helps():
    """An A30 has one JPEG engine: 2g.12gb+me takes it from a 1g.6gb+me that is not in its place."""
    a, b = gpu(A30, ["1g.6gb+me@3"]), gpu(A30, (), 1)
    assert packed("2g.12gb+me=1", a).disturbed == 1
    assert packed("2g.12gb+me=1", a, b).disturbed == 0


# --- what is impossible, and what is not available ---------------------------------------------


def test_what_falls_short_is_named_with_how_many_there_is_room_for():
    with pytest.raises(Unsatisfiable, match=r"20 x 3g\.40gb demanded, and at most 16 fit"):
        packed("3g.40gb=20,1g.10gb=9", *[gpu(H100)] * 8)


def test_what_fits_alone_and_not_together_is_said_so():
    with pytest.raises(Unsatisfiable, match=r"9 x 1g\.10gb demanded, and beside 3 x 3g\.40gb at most 4 fit"):
        packed("3g.40gb=3,1g.10gb=9", *[gpu(H100)] * 2)


def test_a_profile_that_no_gpu_here_has_is_answered_with_the_nearest():
    with pytest.raises(Unsatisfiable, match=r"has a profile 3g\.71gb.*nearest: 3g\.40gb"):
        packed("3g.71gb=1", gpu(H100))


def test_gpus_that_cannot_be_laid_out_are_left_out_with_the_reason():
    a, b = gpu(H100, ["3g.40gb@4"]), gpu(H100, (), 1)
    strange = replace(a, index=2, uuid="GPU-s", mig_devices=(replace(a.mig_devices[0], profile="5g.60gb"),))
    inventory = fleet(a, b, strange, gpu("l4"))
    from partage.edges.files.catalogue import geometry_of, why_no_geometry

    found, others = survey("n", inventory, geometry_of, why_no_geometry, frozenset({b.uuid}))
    assert [one.gpu.index for one in found] == [0]
    assert [(one.gpu, one.reason) for one in others] == [
        (1, "is held as a whole"),
        (2, f"has an instance 5g.60gb, and {H100} is not known to have that profile"),
        (3, "NVIDIA L4 has no MIG"),
    ]


# --- time --------------------------------------------------------------------------------------


def test_equal_questions_get_equal_answers():
    gpus = [gpu(H100, live, n) for n, live in enumerate([(), ["1g.10gb@0"], ["3g.40gb@0", "2g.20gb@4"], ()])]
    first = packed("3g.40gb=3,1g.10gb=9,2g.20gb=1", *gpus)
    assert first == packed("3g.40gb=3,1g.10gb=9,2g.20gb=1", *gpus)


def test_where_the_time_is_over_the_answer_never_claims_more_than_is_proven():
    """A thousandth of a second: some solver runs end, some do not; what is said has to be true either way."""
    states = [[f"{name}@{start}" for name, start in layout] for layout in layouts(H100)[1::40]]
    gpus = [gpu(H100, live, n) for n, live in enumerate(states)]
    demand = "3g.40gb=12,2g.20gb=21,1g.10gb=60,1g.20gb=3"
    exact = packed(demand, *gpus)
    try:
        hasty = packed(demand, *gpus, seconds=0.001)
    except Unsatisfiable:
        return
    assert hasty.bound <= exact.gpus_used <= hasty.gpus_used
    assert hasty.optimal == ((hasty.gpus_used, hasty.disturbed) == (hasty.bound, hasty.disturbed_bound))
    if hasty.gpus_used == exact.gpus_used:
        assert hasty.disturbed_bound <= exact.disturbed <= hasty.disturbed
