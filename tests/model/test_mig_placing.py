"""Placing MIG layouts, against an enumeration that shares no code with it."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.edges.files.catalogue import load_catalogue
from partage.model.geometry import Placement
from partage.model.gpu import MigDevice
from partage.model.ids import MigUuid
from partage.model.layout import DoesNotFit, LayoutItem, MisfitKind, compute_choices, matches, place
from tests.examples import variants
from tests.oracle import enumerate_mig as oracle

MODELS = sorted(oracle.models_with_placements())


def geometry(model_id):
    model = load_catalogue().by_id(model_id)
    assert model is not None
    assert model.geometry is not None
    return model.geometry


def items(*names):
    return [LayoutItem.parse(name) for name in names]


def names_of(multiset):
    return [name for name, count in multiset for _ in range(count)]


def starts(model_id, *names):
    return [seat.placement.start for seat in place(geometry(model_id), items(*names))]


def refusal(model_id, *names):
    with pytest.raises(DoesNotFit) as caught:
        place(geometry(model_id), items(*names))
    return caught.value


def is_valid(model_id, seats):
    """The seats are one of the layouts that the enumeration found."""
    pairs = {(seat.instance, str(seat.spec.profile), seat.placement.start) for seat in seats}
    return tuple(sorted((name, start) for _, name, start in pairs)) in oracle.fixed_layouts(model_id)


@pytest.mark.parametrize("model_id", variants(MODELS, 3))
def test_whatever_can_be_placed_is_placed_in_whatever_order_it_is_asked_for(model_id):
    shuffler = random.Random(model_id)
    for multiset in oracle.feasible(model_id):
        names = names_of(multiset)
        for order in (names, names[::-1], shuffler.sample(names, len(names))):
            seats = place(geometry(model_id), items(*order))
            assert [str(seat.item) for seat in seats] == order
            assert is_valid(model_id, seats), order


@pytest.mark.parametrize("model_id", variants(MODELS, 3))
def test_one_instance_more_than_can_be_placed_is_refused(model_id):
    """Checked along the whole border: every feasible multiset with every profile added that breaks it."""
    feasible = oracle.feasible(model_id)
    profiles = [str(spec.profile) for spec in geometry(model_id).profiles]
    broken = {
        tuple(sorted((Counter(dict(multiset)) + Counter([extra])).items()))
        for multiset in feasible
        for extra in profiles
    } - feasible
    assert broken
    for multiset in broken:
        refusal(model_id, *names_of(multiset))


@pytest.mark.parametrize(
    "model_id", ["a30-24gb", "a100-40gb", "h100-sxm5-80gb", "rtx-pro-6000-blackwell-server"]
)
@given(data=st.data())
def test_fixed_starts_are_kept_and_refused_only_where_no_layout_has_them(model_id, data):
    spots = [f"{s.profile}@{at}" for s in geometry(model_id).profiles for at in s.starts]
    loose = [str(spec.profile) for spec in geometry(model_id).profiles]
    wanted = data.draw(st.lists(st.sampled_from(spots + loose), min_size=1, max_size=5))
    fixed = Counter((name, int(at)) for name, found, at in (word.partition("@") for word in wanted) if found)
    multiset = Counter(word.partition("@")[0] for word in wanted)
    possible = any(
        Counter(name for name, _ in layout) == multiset and fixed <= Counter(layout)
        for layout in oracle.fixed_layouts(model_id)
    )
    try:
        seats = place(geometry(model_id), items(*wanted))
    except DoesNotFit:
        assert not possible
    else:
        assert is_valid(model_id, seats)
        assert fixed <= Counter((str(seat.spec.profile), seat.placement.start) for seat in seats)


def test_the_balanced_layout_sits_where_the_rule_puts_it():
    assert starts("h100-sxm5-80gb", "1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb") == [2, 3, 0, 4]


@pytest.mark.parametrize("text", ["3g.40gb", "1g.10gb+me@6", "1c.3g.40gb@4", "1g.24gb-me@9"])
def test_an_item_reads_as_it_is_written(text):
    assert str(LayoutItem.parse(text)) == text


@pytest.mark.parametrize("text", ["3g.40gb@", "3g.40gb@-1", "3g.40gb@four", "3g.40gb@100", "@4", ""])
def test_what_is_no_item_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"memory slice|MIG profile"):
        LayoutItem.parse(text)


def test_nothing_wanted_is_a_layout_without_instances():
    assert place(geometry("a30-24gb"), []) == ()


def test_the_double_memory_instance_may_take_the_last_slice():
    assert starts("a100-80gb", "1g.20gb@6") == [6]


# --- compute instances -------------------------------------------------------------------------


def test_compute_instances_fill_one_gpu_instance_before_they_open_the_next():
    seats = place(geometry("h100-sxm5-80gb"), items(*["1c.3g.40gb"] * 4))
    assert [seat.instance for seat in seats].count(seats[0].instance) == 3
    assert len({seat.placement for seat in seats}) == 2


def test_compute_instances_of_several_sizes_share_a_gpu_instance():
    seats = place(geometry("h100-sxm5-80gb"), items("1c.3g.40gb", "2c.3g.40gb", "3g.40gb"))
    assert seats[0].instance == seats[1].instance != seats[2].instance


def test_a_loose_compute_instance_joins_a_gpu_instance_whose_place_is_fixed():
    seats = place(geometry("a100-40gb"), items("1c.3g.20gb", "1c.3g.20gb@0"))
    assert {seat.placement for seat in seats} == {Placement(0, 4)}


def test_compute_instances_of_different_starts_sit_in_different_gpu_instances():
    assert starts("a100-40gb", "1c.3g.20gb@4", "1c.3g.20gb@0") == [4, 0]


def test_seven_small_compute_instances_split_a_whole_gpu():
    assert len({seat.instance for seat in place(geometry("a100-40gb"), items(*["1c.7g.40gb"] * 7))}) == 1


@pytest.mark.parametrize(
    ("slices", "choices"), [(7, (1, 2, 3, 4, 7)), (4, (1, 2, 4)), (3, (1, 2, 3)), (1, (1,))]
)
def test_a_gpu_instance_can_be_split_into_certain_sizes_only(slices, choices):
    assert compute_choices(slices) == choices


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_id", "wanted", "kind", "words"),
    [
        ("h200-141gb", ["2g.25gb"], MisfitKind.UNKNOWN_PROFILE, ["2g.35gb", "h200-141gb"]),
        ("a100-40gb", ["4g.40gb"], MisfitKind.UNKNOWN_PROFILE, ["4g.20gb"]),
        ("a100-40gb", ["3c.4g.20gb"], MisfitKind.BAD_COMPUTE, ["1, 2, 4"]),
        ("a100-40gb", ["3g.20gb@1"], MisfitKind.BAD_START, ["0, 4"]),
        ("a100-40gb", ["1g.10gb"] * 5, MisfitKind.TOO_MANY, ["at most 4"]),
        ("a100-40gb", ["1g.5gb+me", "1g.5gb+me"], MisfitKind.TOO_MANY, ["at most 1"]),
        ("a100-40gb", ["1g.5gb"] * 8, MisfitKind.COMPUTE, ["8", "7"]),
        ("a100-40gb", ["4g.20gb", "2g.10gb", "2g.10gb"], MisfitKind.COMPUTE, ["4g.20gb", "8 compute slices"]),
        ("a30-24gb", ["1g.6gb+me", "2g.12gb+me"], MisfitKind.ENGINES, ["1g.6gb+me", "jpeg"]),
        ("h100-sxm5-80gb", ["3g.40gb", "3g.40gb", "1g.10gb"], MisfitKind.MEMORY, ["9 memory slices"]),
        ("h100-sxm5-80gb", ["3g.40gb@0", "4g.40gb"], MisfitKind.MEMORY, ["side by side"]),
        ("h100-sxm5-80gb", ["3g.40gb@0", "1g.10gb@3"], MisfitKind.MEMORY, ["overlap"]),
        ("h100-sxm5-80gb", ["3g.40gb@4", "3g.40gb@4"], MisfitKind.MEMORY, ["overlap"]),
    ],
)
def test_a_refusal_says_what_is_in_the_way(model_id, wanted, kind, words):
    error = refusal(model_id, *wanted)
    assert error.kind is kind
    assert all(word in str(error) for word in words), str(error)


def test_a_layout_of_a_hundred_thousand_items_is_refused_at_once():
    assert refusal("a100-40gb", *["1c.7g.40gb"] * 100_000).kind is MisfitKind.COMPUTE


# --- is it live already ------------------------------------------------------------------------


def live(*rows):
    return tuple(
        MigDevice(MigUuid(f"MIG-{n}"), n, n + 1, 0, profile, Placement(start, size), 1)
        for n, (profile, start, size) in enumerate(rows)
    )


BALANCED = live(("3g.40gb", 4, 4), ("2g.20gb", 2, 2), ("1g.10gb", 0, 1), ("1g.10gb", 1, 1))


@pytest.mark.parametrize(
    ("wanted", "same"),
    [
        (["1g.10gb", "3g.40gb", "1g.10gb", "2g.20gb"], True),
        (["1g.10gb@1", "3g.40gb", "1g.10gb", "2g.20gb@2"], True),
        (["1g.10gb@1", "3g.40gb", "1g.10gb@1", "2g.20gb"], False),
        (["1g.10gb@2", "3g.40gb", "1g.10gb", "2g.20gb"], False),
        (["1g.10gb", "3g.40gb", "2g.20gb"], False),
        (["1g.10gb", "3g.40gb", "1g.10gb", "2g.20gb", "1g.10gb"], False),
        (["1g.10gb+me", "3g.40gb", "1g.10gb", "2g.20gb"], False),
        ([], False),
    ],
)
def test_a_layout_is_live_where_profiles_and_fixed_starts_agree(wanted, same):
    assert matches(BALANCED, items(*wanted)) is same


def test_a_gpu_without_instances_matches_the_empty_layout():
    assert matches((), [])
