"""Profile names as NVIDIA's tools compute them from memory."""

import pytest

from partage.model.geometry import MigProfile, named_gigabytes
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
    assert named_gigabytes(row["memory_mib"] * MIB, total) == published.gigabytes


@pytest.mark.parametrize(
    ("eighths", "total_gib", "gigabytes"),
    [
        (1, 180, 23),  # 22.5: half to even would say 22
        (4, 141, 71),  # 70.5: half to even would say 70
        (2, 186, 47),  # 46.5: half to even would say 46
        (4, 269, 135),  # 134.5: half to even would say 134
        (1, 189, 24),  # the same device id as the 186 GiB card
    ],
)
def test_halves_are_rounded_away_from_zero(eighths, total_gib, gigabytes):
    assert named_gigabytes(total_gib * GIB * eighths // 8, total_gib * GIB) == gigabytes


def test_a_share_is_rounded_up_to_eighths_before_the_gigabytes_are_counted():
    """An H100 NVL's 1g has 10.75 GiB and is called 12."""
    assert named_gigabytes(11008 * MIB, 94 * GIB) == 12


def test_a_total_that_is_no_whole_number_of_gibibytes_counts_as_the_next_one():
    assert named_gigabytes(143_000 * MIB, 143_771 * MIB) == 141


def test_an_integrated_gpu_reports_no_memory_and_its_profiles_have_zero_in_the_name():
    assert named_gigabytes(0, 0) == 0


@pytest.mark.parametrize(
    ("product", "instance_mib", "total_mib", "gigabytes"),
    [
        ("A100 40GB 1g", 4864, 40960, 5),
        ("A100 40GB 1g, double memory", 9856, 40960, 10),
        ("A100 40GB 3g", 19968, 40960, 20),
        ("H100 80GB 1g", 9984, 81559, 10),
        ("H100 80GB 7g", 81152, 81559, 80),
        ("H100 NVL 1g has 10.75 GiB", 11008, 95830, 12),
        ("H200 3g is 70.5, rounded up", 71424, 143771, 71),
        ("B200 1g is 22.5, rounded up", 22784, 183359, 23),
        ("Thor shares its CPU's memory", 1024, 0, 0),
    ],
)
def test_the_gigabytes_of_a_name_are_eighths_of_the_gpus(product, instance_mib, total_mib, gigabytes):
    assert named_gigabytes(instance_mib * MIB, total_mib * MIB) == gigabytes, product
