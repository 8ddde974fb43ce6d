"""Profile names as NVIDIA's tools compute them from memory."""

import pytest

from partage.model.profile import MigProfile, profile_by_memory
from partage.units import GIB, MIB
from tests.oracle import enumerate_mig as oracle

ROWS = [
    pytest.param(model, row, id=f"{model['id']}-{row['name']}")
    for model in oracle.facts()["models"]
    for row in model["profiles"]
    if row["memory_mib"] and (model["memory_total_mib"] or model["name_total_gib"])
]


@pytest.mark.parametrize(("model", "row"), ROWS)
def test_the_name_follows_from_the_memory_for_every_published_row(model, row):
    total = model["memory_total_mib"] * MIB if model["memory_total_mib"] else model["name_total_gib"] * GIB
    published = MigProfile.parse(row["name"])
    computed = profile_by_memory(row["slices"], row["memory_mib"] * MIB, total, published.attributes)
    assert str(computed) == row["name"]


@pytest.mark.parametrize(
    ("slices", "eighths", "total_gib", "name"),
    [
        (1, 1, 180, "1g.23gb"),  # 22.5: half to even would say 22
        (3, 4, 141, "3g.71gb"),  # 70.5: half to even would say 70
        (2, 2, 186, "2g.47gb"),  # 46.5: half to even would say 46
        (3, 4, 269, "3g.135gb"),  # 134.5: half to even would say 134
        (1, 1, 189, "1g.24gb"),  # the same device id as the 186 GiB card
    ],
)
def test_halves_are_rounded_away_from_zero(slices, eighths, total_gib, name):
    assert str(profile_by_memory(slices, total_gib * GIB * eighths // 8, total_gib * GIB)) == name


def test_a_share_is_rounded_up_to_eighths_before_the_gigabytes_are_counted():
    """An H100 NVL's 1g has 10.75 GiB and is called 12."""
    assert str(profile_by_memory(1, 11008 * MIB, 94 * GIB)) == "1g.12gb"


def test_a_total_that_is_no_whole_number_of_gibibytes_counts_as_the_next_one():
    assert str(profile_by_memory(7, 143_000 * MIB, 143_771 * MIB)) == "7g.141gb"


def test_an_integrated_gpu_reports_no_memory_and_its_profiles_have_zero_in_the_name():
    assert str(profile_by_memory(1, 0, 0, ("me",))) == "1g.0gb+me"
