"""What follows from what a driver says of its profiles."""

from itertools import product

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import load_catalogue
from partage.model.geometry import Engines, MigProfile, ProfileSpec, driver_geometry
from partage.model.layout import DoesNotFit, LayoutItem, place

KNOWN = [model.geometry for model in load_catalogue().models if model.geometry]


def spec(name, size, starts, count=1, engines=None):
    profile = MigProfile.parse(name)
    return ProfileSpec(
        profile=profile,
        compute_slices=profile.gpu_slices,
        size=size,
        starts=starts,
        preferred_starts=(),
        max_count=count,
        engines=engines,
    )


@pytest.mark.parametrize("known", KNOWN, ids=lambda geometry: geometry.model)
def test_a_driver_that_says_what_the_catalogue_says_gives_the_same_geometry(known):
    """The order of starts too, which the catalogue's makers found by enumeration."""
    said = [replace(one, preferred_starts=()) for one in known.profiles]
    found = driver_geometry(known.model, said, known.max_instances)
    assert found is not None
    assert replace(found, misnamed=known.misnamed, from_driver=False) == known


def test_a_driver_that_says_no_places_says_nothing():
    assert driver_geometry("x", [], 7) is None
    assert driver_geometry("x", [spec("1g.10gb", 1, ())], 7) is None


def test_places_that_the_order_of_starts_misses_are_searched():
    """Here largest first takes the only place of another profile."""
    parts = [spec("2g.20gb", 4, (0, 4), 2), spec("1g.10gb", 1, (0,)), spec("1g.10gb+me", 1, (4, 5, 6, 7))]
    geometry = driver_geometry("x", [*parts, spec("4g.40gb", 8, (0,))], 7)
    assert geometry is not None
    for chosen in product(*([None, one] for one in geometry.profiles)):
        specs = [one for one in chosen if one]
        items = [LayoutItem(one.profile) for one in specs]
        fixed = [
            [LayoutItem(one.profile, start) for one, start in zip(specs, starts, strict=True)]
            for starts in product(*(one.starts for one in specs))
        ]
        possible = any(fits(geometry, one) for one in fixed)
        assert fits(geometry, items) == possible, items


def fits(geometry, items):
    try:
        place(geometry, items)
    except DoesNotFit:
        return False
    return True


def test_engines_that_instances_share_are_no_budget():
    whole = spec("4g.96gb", 12, (0,), 1, Engines(copy=2, decoder=4))
    part = spec("1g.24gb", 3, (0, 3, 6, 9), 4, Engines(copy=1, decoder=1))
    geometry = driver_geometry("x", [whole, part], 4)
    assert geometry is not None
    assert geometry.whole.engines == Engines(copy=None, decoder=4)
    assert place(geometry, [LayoutItem(part.profile)] * 4)


def test_more_instances_than_any_profile_alone_are_allowed_where_the_driver_says_so():
    """Thor: one compute instance and one with graphics, each at most once."""
    parts = [spec("2g.0gb", 2, (0,)), spec("1g.0gb+gfx", 1, (2,))]
    geometry = driver_geometry("x", [*parts, spec("3g.0gb", 3, (0,))], 2)
    assert geometry is not None
    assert len(place(geometry, [LayoutItem(one.profile) for one in parts])) == 2
