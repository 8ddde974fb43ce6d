"""Limits of the driver's as values: whole MiB, the hook's words, and what is left for data."""

from __future__ import annotations

import pytest

from partage.model.driver_limit import DriverLimit, usable_bytes
from partage.model.ids import GpuUuid
from partage.units import GIB, MIB

GPU = GpuUuid("GPU-00000000-0000-0000-0000-000000000000")


@pytest.mark.parametrize("limit_bytes", [0, -MIB, MIB - 1, GIB + 1])
def test_a_limit_is_in_whole_mib(limit_bytes: int) -> None:
    with pytest.raises(ValueError, match="whole MiB"):
        DriverLimit(GPU, limit_bytes)


def test_a_limit_is_an_argument_of_the_hook() -> None:
    assert str(DriverLimit(GPU, GIB)) == f"{GPU}=1073741824"


@pytest.mark.parametrize(
    ("limit_mib", "taken_mib"), [(30000, 29184), (48943, 48128), (3000, 2560), (10240, 9728), (2048, 1536)]
)
def test_what_others_measured_is_within_what_is_said(limit_mib: int, taken_mib: int) -> None:
    """Source: facts, "What one process could take": an RTX PRO 6000 with driver 615.71.09."""
    least, most = usable_bytes(limit_mib * MIB)
    assert least <= taken_mib * MIB <= most


def test_a_small_limit_may_leave_nothing() -> None:
    assert usable_bytes(GIB) == (0, 768 * MIB)
