"""How answers are worded."""

import pytest
from msgspec.structs import replace

from partage.answers import wording
from partage.model.strategy import Strategy
from partage.plan.reconcile.node_plan import Phase
from tests.plan.offers import offering


@pytest.mark.parametrize(
    ("strategy", "shared", "by_memory", "text"),
    [
        (Strategy.EXCLUSIVE, Strategy.EXCLUSIVE, False, "exclusive"),
        (Strategy.MPS, Strategy.MPS, False, "MPS x 4"),
        (Strategy.MPS, Strategy.MPS, True, "MPS by memory"),
        (Strategy.MIG, Strategy.EXCLUSIVE, False, "MIG"),
        (Strategy.MIG, Strategy.TIME_SLICING, False, "MIG, time-slicing x 4"),
    ],
)
def test_a_way_names_the_strategy_and_what_a_mig_device_is_split_into(strategy, shared, by_memory, text):
    offer = replace(offering(0, 4), strategy=strategy, shared=shared, by_memory=by_memory)
    assert wording.sharing_text(offer) == text


@pytest.mark.parametrize(("width", "text"), [(7, "exactly"), (6, "exact…"), (1, "e"), (0, "")])
def test_a_text_that_is_cut_off_shows_it(width, text):
    assert wording.shorten("exactly", width) == text


@pytest.mark.parametrize(
    ("phase", "reason", "pods", "processes", "text"),
    [
        (None, "", [], [], ""),
        (Phase.SETTLED, "", [], [], ""),
        (Phase.WAITING, "shares of it are held", ["b/x", "a/y", "b/x"], [], "waiting for pods a/y, b/x"),
        (Phase.WAITING, "no", [], ["process python3 (pid 7)"], "waiting for process python3 (pid 7)"),
        (Phase.WAITING, "GPU 3 has a neighbour", [], [], "waiting: has a neighbour"),
        (Phase.CHANGING, "it is being changed", [], [], "changing"),
        (Phase.FAILED, "no room", [], [], "failed: no room"),
        (Phase.BLOCKED, "GPU 3 cannot have 9g.99gb", [], [], "blocked: cannot have 9g.99gb"),
        (Phase.UNKNOWN, "", [], [], "not known yet"),
    ],
)
def test_a_gpu_that_is_not_settled_says_how_it_stands(phase, reason, pods, processes, text):
    assert wording.standing(3, phase, reason, pods, processes) == text


def test_every_phase_but_one_is_said():
    assert [phase for phase in Phase if not wording.standing(0, phase, "why", (), ())] == [Phase.SETTLED]
