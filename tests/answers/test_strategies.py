"""Every strategy is known where types cannot say that one is missing: colours, styles, the schema."""

import json
from importlib.resources import files
from typing import get_args

import pytest

from partage.answers.render.cards import DeviceBlock, GpuCard, Mark, ShareCell
from partage.answers.render.node_drawing import draw
from partage.answers.render.picture import picture
from partage.model.policy import Sharing
from partage.model.strategy import SHARING_STRATEGIES, Strategy
from partage.slurm.model import GresName


@pytest.mark.parametrize("strategy", Strategy)
def test_a_gpu_under_it_is_drawn(strategy: Strategy) -> None:
    block = DeviceBlock("", 1, (ShareCell(Mark.FREE, 1),))
    card = GpuCard(0, "H100", strategy.traits.word, strategy, (block,), "1 share", "hard")
    assert draw([card], "").shapes
    assert picture([card], 80).row_count == 1


@pytest.mark.parametrize("strategy", Strategy)
def test_the_pages_have_its_colours_by_day_and_by_night(strategy: Strategy) -> None:
    styles = files("partage.serve_http.pages").joinpath("static/page.css").read_text(encoding="utf-8")
    assert styles.count(f".{strategy} {{ --full") == 2


@pytest.mark.parametrize("strategy", Strategy)
def test_it_is_a_key_of_policies(strategy: Strategy) -> None:
    text = files("partage.edges.files").joinpath("schema/policy.schema.json").read_text(encoding="utf-8")
    assert strategy in json.loads(text)["$defs"]["entry"]["properties"]


def test_each_way_to_share_a_device_has_a_value_in_policies() -> None:
    assert [value.strategy for value in get_args(Sharing)] == list(SHARING_STRATEGIES)


@pytest.mark.parametrize("strategy", Strategy)
def test_slurm_can_count_its_shares(strategy: Strategy) -> None:
    assert strategy.traits.gres in ("", *GresName)
