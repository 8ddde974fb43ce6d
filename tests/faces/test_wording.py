"""How answers are worded."""

import pytest

from partage.faces import wording
from partage.model.policy import Strategy


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
    assert wording.sharing_text(strategy, shared, 4) == text


@pytest.mark.parametrize(("width", "text"), [(7, "exactly"), (6, "exact…"), (1, "e"), (0, "")])
def test_a_text_that_is_cut_off_shows_it(width, text):
    assert wording.shorten("exactly", width) == text
