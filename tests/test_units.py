"""Amounts of memory and percentages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.units import (
    GIB,
    MIB,
    format_bytes,
    format_duration,
    format_exactly,
    parse_bytes,
    parse_duration,
    parse_percent,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("8Gi", 8 * GIB),
        ("512Mi", 512 * MIB),
        ("8G", 8 * 10**9),
        ("1.5Gi", 3 * GIB // 2),
        (" 7 ", 7),
        ("0.5", 1),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize("text", ["", "0", "-1Gi", "8 GB", "8gi", "0.0", "1e3", "٣Gi", "9" * 100, "Gi"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_bytes(text)


def test_amounts_that_are_compared_are_not_rounded() -> None:
    exact = {5 * GIB: "5 GiB", 11 * GIB // 2: "5.5 GiB", 21 * GIB // 4: "5376 MiB", 256 * MIB: "256 MiB"}
    assert {amount: format_exactly(amount) for amount in exact} == exact


def test_gib_and_mib_say_how_they_are_written() -> None:
    with pytest.raises(ValueError, match=r"such as 8Gi or 512Mi: write 1\.5Gi"):
        parse_bytes("1.5GiB")
    for written, meant in (("1GB", "1Gi"), ("8gb", "8Gi"), ("8gi", "8Gi"), ("500mb", "500Mi"), ("2g", "2Gi")):
        with pytest.raises(ValueError, match=rf"such as 8Gi or 512Mi: write {meant}$"):
            parse_bytes(written)
    with pytest.raises(ValueError, match=r"such as 8Gi or 512Mi$"):
        parse_bytes("1 card")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2),
        ("500m", 0.5),
        ("1.5Gi", 1.5 * GIB),
        ("16G", 16e9),
        ("1e3", 1000),
        ("2k", 2000),
        (".5", 0.5),
        ("0", 0),
    ],
)
def test_numbers_of_kubernetes(text: str, number: float) -> None:
    assert float(parse_quantity(text)) == number


@pytest.mark.parametrize("text", ["", "-1", "1 Gi", "1gi", "Gi", "1e", "٣", "1" * 40, "1.5.2"])
def test_what_is_no_number_of_kubernetes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an amount"):
        parse_quantity(text)


@given(st.integers(1, 2**20))
def test_whole_mebibytes_survive_printing_within_rounding(mebibytes: int) -> None:
    printed = format_bytes(mebibytes * MIB)
    assert parse_bytes(printed.replace(" ", "").removesuffix("B")) == pytest.approx(mebibytes * MIB, rel=0.06)


@pytest.mark.parametrize(("text", "percent"), [("20%", 20), ("100 %", 100), ("1%", 1)])
def test_percentages(text: str, percent: int) -> None:
    assert parse_percent(text) == percent


@pytest.mark.parametrize("text", ["0%", "101%", "20", "-5%", "2.5%", "%"])
def test_what_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="percentage"):
        parse_percent(text)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("168h", 604800)])
def test_times(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "10", "m", "1d", "169h", "-1s", "1.5h", "٣s", "9" * 40 + "s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_duration(text)


@pytest.mark.parametrize(("seconds", "text"), [(90, "90 s"), (600, "10 min"), (7200, "2 h"), (1, "1 s")])
def test_times_for_people(seconds: int, text: str) -> None:
    assert format_duration(seconds) == text
