"""Memory slices and compute slices of one GPU, before they are drawn."""

import pytest
from msgspec.structs import replace

from partage.answers.node_plan import make_plan
from partage.answers.render.slices import SliceUse, slices_of
from partage.edges.files.catalogue import geometry_of, load_catalogue
from partage.model.geometry import Placement
from partage.model.gpu import EmptyInstance
from partage.model.layout import named_layouts, place
from tests.answers.nodes import EXCLUSIVE, HARD, MIG, gpu, offering

MARKS = {SliceUse.RUNS: "#", SliceUse.IDLE: "x", SliceUse.UNCUT: ".", SliceUse.ABSENT: " "}


def planned(layout, machine):
    """The slices of the first GPU of a machine as a layout would have them."""
    from partage.edges.files.policy import parse_policy

    text = f"version: partage/v1\ngpus: [{{select: all, mig: {{layout: {layout}}}}}]"
    plan = make_plan(parse_policy(text, "p"), machine, None, report=None)
    (first, *_) = plan.inventory
    slices = slices_of(first, plan.offer[first.uuid], geometry_of(first))
    assert slices is not None
    return slices


def memory(slices):
    return [(width, instance.label if instance else "") for width, instance in slices.memory_row]


def uses(slices):
    return "".join(MARKS[one.use] for one in slices.compute_row)


@pytest.mark.parametrize(
    ("layout", "machine", "row", "compute"),
    [
        ("[3g.40gb@0, 3g.40gb@4]", "h100-sxm5-80gb", [(4, "3g.40gb")] * 2, "###x### "),
        (
            "[4g.40gb, 1g.10gb@6]",
            "h100-sxm5-80gb",
            [(4, "4g.40gb"), (2, ""), (1, "1g.10gb"), (1, "")],
            "####..# ",
        ),
        ("all-1g.20gb", "h100-sxm5-80gb", [(2, "1g.20gb")] * 4, "#x#x#x# "),
        ("all-7g.80gb", "h100-sxm5-80gb", [(8, "7g.80gb")], "####### "),
        ("[1c.3g.40gb@4]", "h100-sxm5-80gb", [(4, ""), (4, "1c.3g.40gb")], "....#xx "),
        ("all-balanced", "a30-24gb", [(2, "2g.12gb"), (1, "1g.6gb"), (1, "1g.6gb")], "####"),
        ("[2g.48gb@6]", "rtx-pro-6000-blackwell-server", [(6, ""), (6, "2g.48gb")], "..##"),
    ],
)
def test_every_instance_stands_at_its_slices_with_its_compute_slices_below(layout, machine, row, compute):
    slices = planned(layout, machine)
    assert memory(slices) == row
    assert uses(slices) == compute


@pytest.mark.parametrize(
    "model", [m for m in load_catalogue().simulated_models() if m.geometry], ids=lambda model: model.id
)
def test_the_rows_are_equally_long_and_every_named_layout_shows_all_its_compute_slices(model):
    for name, items in named_layouts(model.geometry).items():
        slices = planned(name, model.id)
        assert sum(width for width, _ in slices.memory_row) == model.geometry.memory_slices
        assert sum(one.width for one in slices.compute_row) == model.geometry.memory_slices
        placed = place(model.geometry, items)
        assert uses(slices).count("#") == sum(one.spec.compute_slices for one in placed), name


def test_what_lives_on_a_gpu_and_is_not_offered_is_shown_all_the_same():
    live = gpu(0, ("3g.40gb", 4, 4, 40), ("1g.10gb", 0, 1, 10))
    offer = (offering(0, EXCLUSIVE, 1, HARD, strategy=MIG, device="MIG-0-0", profile="3g.40gb"),)
    slices = slices_of(live, offer, geometry_of(live))
    assert slices is not None
    assert memory(slices) == [(1, "1g.10gb"), (3, ""), (4, "3g.40gb")]
    assert [len(instance.offerings) for instance in slices.instances] == [0, 1]


def test_an_instance_without_a_mig_device_takes_its_place():
    from msgspec.structs import replace

    live = replace(
        gpu(0, ("3g.40gb", 4, 4, 40)), empty_instances=(EmptyInstance(5, "2g.20gb", Placement(2, 2)),)
    )
    slices = slices_of(live, (), geometry_of(live))
    assert slices is not None
    assert memory(slices) == [(2, ""), (2, "2g.20gb"), (4, "3g.40gb")]
    assert uses(slices) == "..xx### "


def test_mig_devices_whose_places_only_root_may_read_are_not_drawn_in_slices():
    one = gpu(0, ("3g.40gb", 4, 4, 40))
    hidden = replace(one, mig_devices=tuple(replace(mig, placement=None) for mig in one.mig_devices))
    offer = (offering(0, EXCLUSIVE, 1, HARD, strategy=MIG, device="MIG-0-0", profile="3g.40gb"),)
    assert slices_of(one, offer, geometry_of(one)) is not None
    assert slices_of(hidden, offer, geometry_of(hidden)) is None
    assert slices_of(hidden, (), geometry_of(hidden)) is None


def test_a_whole_gpu_has_no_slices():
    assert slices_of(gpu(0), (offering(0, EXCLUSIVE, 1, HARD),), geometry_of(gpu(0))) is None


def test_a_model_that_nobody_knows_shows_its_memory_alone():
    live = gpu(0, ("3g.40gb", 4, 4, 40))
    offer = (offering(0, EXCLUSIVE, 1, HARD, strategy=MIG, device="MIG-0-0", profile="3g.40gb"),)
    slices = slices_of(live, offer, None)
    assert slices is not None
    assert memory(slices) == [(4, ""), (4, "3g.40gb")]
    assert slices.compute_row == ()
