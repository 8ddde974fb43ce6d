"""The picture of a node."""

import io

import pytest
from rich.console import Console

from partage.answers.render.cards import HeldOnNode, cards_of
from partage.answers.render.picture import CARD_WIDTH, legend, picture
from partage.edges.files.catalogue import geometry_of
from partage.model.ids import GpuUuid, ResourceName, ShareId
from tests.answers.nodes import EXCLUSIVE, GUARDED, HARD, MIG, MPS, NONE, SLICED, gpu, node, offering

_MIGS = (("3g.40gb", 4, 4, 40), ("1g.10gb", 0, 1, 10))


def _drawn(inventory, offer, holders=None, troubles=None, width=CARD_WIDTH):
    text = io.StringIO()
    cards = cards_of(inventory, offer, HeldOnNode(holders or {}, troubles or {}), geometry_of)
    Console(file=text, width=width, color_system=None).print(picture(cards, width))
    return text.getvalue()


def _bar(drawn):
    return drawn.splitlines()[2].strip("│").strip()


def test_a_card_says_its_product_its_way_its_share_and_its_guarantee():
    drawn = _drawn(node(gpu(0)), {"GPU-0": (offering(0, MPS, 4, GUARDED, threads_percent=25),)})
    assert "GPU 0  H100 80GB HBM3" in drawn
    assert "MPS x 4" in drawn
    assert "4 shares of 20 GiB and 25% of the SMs" in drawn
    assert "guarded: the MPS daemon refuses more" in drawn


def test_every_share_is_a_cell_and_held_ones_are_full():
    drawn = _drawn(node(gpu(0)), {"GPU-0": (offering(0, SLICED, 4, NONE),)}, {"GPU-0::2": "team/nb"})
    cells = _bar(drawn).split()
    assert len(cells) == 4
    assert [set(cell) for cell in cells] == [{"░"}, {"░"}, {"█"}, {"░"}]
    assert "nb" in drawn


def test_an_exclusive_card_is_one_cell_over_the_whole_width():
    drawn = _drawn(node(gpu(0)), {"GPU-0": (offering(0, EXCLUSIVE, 1, HARD),)}, {"GPU-0": "default/train"})
    assert set(_bar(drawn)) == {"█"}
    assert len(_bar(drawn)) == CARD_WIDTH - 4


def test_more_shares_than_columns_become_one_bar_with_a_count():
    holders = {f"GPU-0::{n}": "a/b" for n in range(12)}
    drawn = _drawn(node(gpu(0)), {"GPU-0": (offering(0, SLICED, 48, NONE),)}, holders)
    assert "12 of 48 held" in drawn
    assert 0 < _bar(drawn).count("█") < _bar(drawn).count("░")


def test_mig_devices_stand_at_their_memory_slices_and_gaps_show():
    offer = {
        "GPU-0": (
            offering(0, EXCLUSIVE, 1, HARD, strategy=MIG, device="MIG-0-0", profile="3g.40gb"),
            offering(0, EXCLUSIVE, 1, HARD, strategy=MIG, device="MIG-0-1", profile="1g.10gb"),
        )
    }
    drawn = _drawn(node(gpu(0, *_MIGS)), offer, {"MIG-0-0": "a/b"})
    bar = _bar(drawn)
    assert [part[0] for part in bar.split()] == ["░", "·", "█"], (
        "1g at slice 0, nothing at 1 to 3, 3g from 4 on"
    )
    half = len(bar) // 2
    assert bar[half + 1 :].strip("█") == ""
    assert "3g.40gb" in drawn


def test_a_sick_card_says_what_is_wrong_with_it():
    drawn = _drawn(
        node(gpu(0)), {"GPU-0": (offering(0, EXCLUSIVE, 1, HARD),)}, troubles={"GPU-0": "unhealthy: XID 48"}
    )
    assert "unhealthy: XID 48" in drawn


def test_a_lost_card_keeps_its_place():
    drawn = _drawn(node(gpu(0), gpu(2), lost=(1,)), {}, width=CARD_WIDTH)
    assert drawn.index("GPU 0") < drawn.index("GPU 1  lost") < drawn.index("GPU 2")


@pytest.mark.parametrize("width", [40, 48, 97, 100, 200])
def test_no_line_is_wider_than_the_terminal(width):
    offer = {f"GPU-{n}": (offering(n, SLICED, 7, NONE),) for n in range(8)}
    drawn = _drawn(node(*(gpu(n) for n in range(8))), offer, {"GPU-3::1": "x/" + "y" * 80}, width=width)
    assert max(map(len, drawn.splitlines())) <= width


def test_compute_slices_stand_below_the_memory_of_their_instance():
    migs = (("3g.40gb", 0, 4, 40), ("1g.20gb", 4, 2, 20))
    offer = {
        "GPU-0": (
            offering(0, EXCLUSIVE, 1, HARD, strategy=MIG, device="MIG-0-0", profile="3g.40gb"),
            offering(0, EXCLUSIVE, 1, HARD, strategy=MIG, device="MIG-0-1", profile="1g.20gb"),
        )
    }
    lines = _drawn(node(gpu(0, *migs)), offer, {"MIG-0-0": "a/b"}).splitlines()
    memory, compute = (line.strip("│ ").split() for line in lines[2:4])
    assert [part[0] for part in memory] == ["█", "░", "·"]
    assert [part[0] for part in compute] == ["█", "█", "█", "x", "░", "x", "·"]
    assert len(lines) == 7


def test_a_device_that_is_not_offered_is_no_gap():
    drawn = _drawn(node(gpu(0, *_MIGS)), {"GPU-0": ()})
    assert "MIG mode, offers nothing" in drawn
    assert [part[0] for part in _bar(drawn).split()] == ["-", "·", "-"]


def test_the_legend_says_what_an_empty_bar_is():
    offer = {GpuUuid("GPU-0"): (offering(0, EXCLUSIVE, 1, HARD),)}
    lost = cards_of(node(gpu(0), lost=(1,)), offer, HeldOnNode(), geometry_of)
    whole = cards_of(node(gpu(0)), offer, HeldOnNode(), geometry_of)
    assert "· the GPU is lost" in legend(lost).plain
    assert "no MIG device" not in legend(lost).plain
    assert "·" not in legend(whole).plain


def test_the_legend_says_more_where_there_is_more():
    whole = cards_of(
        node(gpu(0)), {GpuUuid("GPU-0"): (offering(0, EXCLUSIVE, 1, HARD),)}, HeldOnNode(), geometry_of
    )
    cut = cards_of(node(gpu(0, *_MIGS)), {GpuUuid("GPU-0"): ()}, HeldOnNode(), geometry_of)
    assert "compute" not in legend(whole).plain
    assert "compute slices" in legend(cut).plain
    assert "not offered" in legend(cut).plain


WITHDRAWN = frozenset((ResourceName("nvidia.com/gpu"), ShareId(f"GPU-0::{n}")) for n in (2, 3))


def _waiting(replicas, withdrawn=WITHDRAWN):
    offer = {GpuUuid("GPU-0"): (offering(0, SLICED, replicas, NONE),)}
    use = HeldOnNode({ShareId("GPU-0::0"): "a/nb"}, {}, withdrawn, {GpuUuid("GPU-0"): "waiting for pod a/nb"})
    return cards_of(node(gpu(0), gpu(1)), offer, use, geometry_of)


def test_withdrawn_shares_are_not_drawn_as_free_and_the_card_says_what_it_waits_for():
    text = io.StringIO()
    Console(file=text, width=100, color_system=None).print(picture(_waiting(4), 100))
    drawn = text.getvalue()
    assert [set(cell) for cell in _bar(drawn).split()[:4]] == [{"█"}, {"░"}, {"/"}, {"/"}]
    assert "waiting for pod a/nb" in drawn
    assert "none: a neighbour" in drawn
    assert "/ withdrawn" in legend(_waiting(4)).plain
    assert "withdrawn" not in legend(_waiting(4, frozenset())).plain


def test_withdrawn_shares_show_in_a_bar_of_many_too():
    shares = frozenset((ResourceName("nvidia.com/gpu"), ShareId(f"GPU-0::{n}")) for n in range(1, 48))
    text = io.StringIO()
    Console(file=text, width=100, color_system=None).print(picture(_waiting(48, shares), 100))
    assert set(_bar(text.getvalue()).split("│")[0].strip()) == {"█", "/"}


UNITS = offering(0, SLICED, 140, NONE, by_memory=True, memory_bytes=1 << 30)


def test_units_are_drawn_as_amounts_one_for_each_pod():
    held = {f"GPU-0-_-{n}": "a/big" for n in range(70)} | {f"GPU-0-_-{n}": "a/small" for n in range(70, 105)}
    drawn = _drawn(node(gpu(0)), {"GPU-0": (UNITS,)}, held)
    assert "105 GiB of 140 GiB held" in drawn
    big, small, free = _bar(drawn).split()
    assert [set(part) for part in (big, small, free)] == [{"█"}, {"█"}, {"░"}]
    assert len(big) == pytest.approx(2 * len(small), abs=2)
    assert len(small) == pytest.approx(len(free), abs=2)


def test_amounts_that_are_too_narrow_for_a_column_are_one_bar():
    drawn = _drawn(node(gpu(0)), {"GPU-0": (UNITS,)}, {"GPU-0-_-3": "a/tiny"})
    assert "1 GiB of 140 GiB held" in drawn
    assert _bar(drawn).count("█") == 1, "a single unit is seen, too"
    assert "0 of 140 GiB held" not in drawn
