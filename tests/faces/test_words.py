"""How answers are worded."""

import pytest

from partage.faces import words
from partage.model.policy import Strategy


@pytest.mark.parametrize(
    ("values", "text"),
    [([], ""), ([3], "3"), ([0, 1], "0-1"), ([5, 0, 1, 2, 7], "0-2, 5, 7"), ([2, 2, 3], "2-3")],
)
def test_consecutive_numbers_are_said_as_a_run(values, text):
    assert words.numbers(values) == text


def test_one_gpu_is_singular():
    assert words.gpus([4]) == "GPU 4"
    assert words.gpus([4, 5]) == "GPUs 4-5"


@pytest.mark.parametrize(
    ("strategy", "shared", "text"),
    [
        (Strategy.EXCLUSIVE, Strategy.EXCLUSIVE, "exclusive"),
        (Strategy.MPS, Strategy.MPS, "MPS x 4"),
        (Strategy.MIG, Strategy.EXCLUSIVE, "MIG"),
        (Strategy.MIG, Strategy.TIME_SLICING, "MIG, time-slicing x 4"),
    ],
)
def test_a_way_names_the_strategy_and_what_a_mig_device_is_split_into(strategy, shared, text):
    assert words.way(strategy, shared, 4) == text


@pytest.mark.parametrize(("width", "text"), [(7, "exactly"), (6, "exact…"), (1, "e"), (0, "")])
def test_a_text_that_is_cut_off_shows_it(width, text):
    assert words.shorten("exactly", width) == text


def test_a_long_list_ends_in_how_many_more_there_are():
    assert words.listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert words.listed(["a", "b"], 2) == "a, b"
