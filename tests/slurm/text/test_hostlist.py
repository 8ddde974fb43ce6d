"""Slurm's short form of names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.slurm.text.hostlist import expand_hostlist, format_hostlist, in_hostlist, node_names, split_list

_NAMES = st.lists(
    st.builds(
        lambda head, number, width: f"{head}{number:0{width}}",
        st.sampled_from(["g", "/dev/nvidia", "node-a", "rack2-n", ""]),
        st.integers(0, 1200),
        st.integers(1, 4),
    )
    | st.sampled_from(["login", "a", "h100"]),
    max_size=30,
    unique=True,
)


@given(_NAMES)
def test_the_short_form_means_the_same_names(names):
    assert expand_hostlist(format_hostlist(names)) == names


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["g1", "g2", "g3"], "g[1-3]"),
        (["g001", "g002", "g010"], "g[001-002,010]"),
        (["g9", "g10"], "g[9-10]"),
        (["g09", "g10"], "g[09-10]"),
        (["g1", "h1"], "g1,h1"),
        (["g1"], "g1"),
        (["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia7"], "/dev/nvidia[0-1,7]"),
        (["login", "g1"], "login,g1"),
    ],
)
def test_short_forms(names, short):
    assert format_hostlist(names) == short
    assert expand_hostlist(short) == names


@pytest.mark.parametrize("text", ["g[1-", "g1]", "g[a-b]", "g[3-1]", "g[]", "g[1-999999999]", "g[[1]]"])
def test_what_is_no_list_of_names_is_refused(text):
    with pytest.raises(ValueError, match=r"g|range"):
        expand_hostlist(text)


def test_several_ranges_in_one_name():
    assert expand_hostlist("r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]


def test_commas_in_brackets_separate_nothing():
    assert split_list("a[1,2],b") == ["a[1,2]", "b"]


@given(_NAMES, st.text("gn01235-[],", max_size=12))
def test_a_name_is_in_the_short_form_of_its_names(names, text):
    assert all(in_hostlist(name, format_hostlist(names)) for name in names)
    try:
        meant = expand_hostlist(text)
    except ValueError:
        return
    for name in ("g1", "g01", "g2", "n05", *meant):
        assert in_hostlist(name, text) == (name in meant)


def test_a_list_that_means_very_many_names_takes_no_time():
    assert in_hostlist("g7", "n[0-99999]" * 40 + ",g[0-999999999]")
    assert not in_hostlist("g7x", "g[0-999999999]")


NO_NAMES = ("", ",", "n1\nNodeName=evil", "n1 Gres=gpu:9", "n1#", "n1\\", "n1\u2028x", "g[1-2]\n", "\x1b[31m")
NO_NODES = ("-n", "n-", "../n", "a/b", "default", "n" * 300, "g1,g1", "n\u0661")


@pytest.mark.parametrize("text", [*NO_NAMES, *NO_NODES])
def test_what_is_more_than_names_of_nodes_is_refused(text):
    with pytest.raises(ValueError, match=r"is not the name of a node|bracket|twice"):
        node_names(text)


def test_names_of_nodes():
    assert node_names("g[1-2],login-0.a_b") == ("g1", "g2", "login-0.a_b")
