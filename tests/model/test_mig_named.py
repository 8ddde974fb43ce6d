"""Layouts by their name: the rule, on every model."""

from collections import Counter

import pytest

from partage.edges.files.catalogue import load_catalogue
from partage.model.layout import (
    DoesNotFit,
    LayoutItem,
    MisfitKind,
    named_layouts,
    parse_layout_name,
    place,
    resolve_layout,
)

MODELS = [model for model in load_catalogue().models if model.geometry is not None]


def geometry(model_id):
    model = load_catalogue().by_id(model_id)
    assert model is not None
    assert model.geometry is not None
    return model.geometry


def counts(items):
    return dict(Counter(map(str, items)))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.id)
def test_every_named_layout_of_every_model_fits(model):
    for name, items in named_layouts(model.geometry).items():
        assert len(place(model.geometry, items)) == len(items) > 0, name


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.id)
def test_there_is_one_name_per_profile_and_the_balanced_one_and_each_parses_to_itself(model):
    names = list(named_layouts(model.geometry))
    assert len(names) == len(model.geometry.profiles) + 1
    assert [parse_layout_name(name) for name in names] == names


@pytest.mark.parametrize(
    ("model_id", "wanted"),
    [
        ("a100-40gb", {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}),
        ("a100-80gb", {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}),
        ("a30-24gb", {"1g.6gb": 2, "2g.12gb": 1}),
        ("h100-nvl-94gb", {"1g.12gb": 2, "2g.24gb": 1, "3g.47gb": 1}),
        ("gh200-96gb", {"1g.12gb": 2, "2g.24gb": 1, "3g.48gb": 1}),
        ("h200-141gb", {"1g.18gb": 2, "2g.35gb": 1, "3g.71gb": 1}),
        ("gh200-144gb", {"1g.18gb": 2, "2g.36gb": 1, "3g.72gb": 1}),
        ("b200-180gb", {"1g.23gb": 2, "2g.45gb": 1, "3g.90gb": 1}),
        ("gb200-186gb", {"1g.23gb": 2, "2g.47gb": 1, "3g.93gb": 1}),
        ("b300-269gb", {"1g.34gb": 2, "2g.67gb": 1, "3g.135gb": 1}),
        ("gb300-278gb", {"1g.35gb": 2, "2g.70gb": 1, "3g.139gb": 1}),
        ("rtx-pro-6000-blackwell-server", {"1g.24gb": 2, "2g.48gb": 1}),
    ],
)
def test_all_balanced_is_what_mig_parted_ships_for_that_card(model_id, wanted):
    assert counts(named_layouts(geometry(model_id))["all-balanced"]) == wanted


@pytest.mark.parametrize(
    ("model_id", "name", "wanted"),
    [
        ("a100-40gb", "all-1g.5gb", {"1g.5gb": 7}),
        ("a100-40gb", "all-1g.10gb", {"1g.10gb": 4}),
        ("a100-40gb", "all-1g.5gb.me", {"1g.5gb+me": 1}),
        ("rtx-pro-6000-blackwell-server", "all-1g.24gb-me", {"1g.24gb-me": 4}),
        ("rtx-pro-6000-blackwell-server", "all-1g.24gb.me.all", {"1g.24gb+me.all": 1}),
        ("rtx-pro-6000-blackwell-server", "all-2g.48gb.gfx", {"2g.48gb+gfx": 2}),
    ],
)
def test_all_of_a_profile_is_as_many_as_fit(model_id, name, wanted):
    assert counts(resolve_layout(geometry(model_id), (), name).items) == wanted


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("all-1g.10gb+me", "all-1g.10gb.me"),
        ("all-1g.24gb-me", "all-1g.24gb-me"),
        ("all-enabled", "all-enabled"),
    ],
)
def test_a_name_is_understood_with_plus_or_dot(text, name):
    assert parse_layout_name(text) == name


@pytest.mark.parametrize(
    "text", ["", "all", "all-", "balanced", "all-3g", "all-1c.3g.40gb", "all-1g.10gb@4", "x" * 99]
)
def test_anything_else_is_no_name(text):
    with pytest.raises(ValueError, match="not the name of a layout"):
        parse_layout_name(text)


def test_a_name_that_the_model_has_not_gets_the_nearest():
    with pytest.raises(
        DoesNotFit, match=r"h100-sxm5-80gb has no layout all-2g\.35gb; nearest: all-2g\.20gb"
    ) as no:
        resolve_layout(geometry("h100-sxm5-80gb"), (), "all-2g.35gb")
    assert no.value.kind is MisfitKind.UNKNOWN_NAME


def test_a_layout_without_a_name_is_what_it_says():
    items = (LayoutItem.parse("3g.71gb@4"), LayoutItem.parse("2g.25gb"))
    said = resolve_layout(geometry("h200-141gb"), items)
    assert (said.items, said.doubt) == (items, "")
