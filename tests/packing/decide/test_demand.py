"""Demands in words."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.errors import InputError
from partage.model.geometry import MigProfile
from partage.packing.decide.demand import Demand, check_names

NAMES = st.sampled_from(["3g.40gb", "1g.10gb", "1g.10gb+me", "1c.3g.40gb", "1g.24gb-me", "7g.80gb"])


@given(wanted=st.dictionaries(NAMES, st.integers(1, 9_999_999), min_size=1))
def test_a_demand_reads_as_it_is_written(wanted):
    text = ",".join(f"{name}={count}" for name, count in wanted.items())
    assert str(Demand.parse(text)) == text


def test_spaces_do_not_matter_and_a_profile_alone_is_one():
    assert str(Demand.parse(" 3g.40gb , 1g.10gb = 9 ")) == "3g.40gb=1,1g.10gb=9"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nothing is demanded"),
        (" , ", "nothing is demanded"),
        ("3g.40gb=0", "at least 1"),
        ("3g.40gb=-2", "at least 1"),
        ("3g.40gb=two", "at least 1"),
        ("3g.40gb=99999999", "at least 1"),
        ("3g.40gb=", "at least 1"),
        ("=3", "not a MIG profile"),
        ("3g.40=1", "not a MIG profile"),
        ("3g.40gb=1,,1g.10gb", "not a MIG profile"),
        ("3g.40gb=1,3g.40gb=2", "twice"),
        ("3g.40gb=1;1g.10gb=2", "at least 1"),
    ],
)
def test_a_slip_is_refused_with_an_example(text, words):
    with pytest.raises(InputError) as caught:
        Demand.parse(text)
    assert words in str(caught.value)
    assert all(problem.path == "--demand" and problem.hint for problem in caught.value.problems)


def test_all_slips_are_told_at_once():
    with pytest.raises(InputError) as caught:
        Demand.parse("x,3g.40gb=0,1g.10gb=1")
    assert len(caught.value.problems) == 2


@given(text=st.text(max_size=40))
def test_any_text_is_a_demand_or_is_refused(text):
    with suppress(InputError):
        assert Demand.parse(text).wanted


def test_a_name_that_no_model_has_is_answered_with_the_nearest_names():
    known = [MigProfile.parse(name) for name in ("3g.40gb", "3g.47gb", "2g.20gb", "7g.80gb", "3g.71gb")]
    with pytest.raises(InputError) as caught:
        check_names(Demand.parse("3g.45gb=2,3g.40gb=1"), known)
    assert [problem.hint for problem in caught.value.problems] == ["nearest: 3g.47gb, 3g.40gb, 3g.71gb"]


def test_a_split_that_no_instance_has_is_refused():
    with pytest.raises(InputError, match="1, 2, 4 slices only"):
        check_names(Demand.parse("3c.4g.40gb"), [MigProfile.parse("4g.40gb")])
