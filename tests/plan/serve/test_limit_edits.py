"""What a runtime is told of a container's memory limits."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.driver_limit import DriverLimit, LimitWay
from partage.model.ids import GpuUuid, ResourceName
from partage.model.share import AllocationRefused
from partage.plan.serve.limit_edits import (
    LimitTerms,
    limit_set,
    limit_terms,
    limit_variables,
    limits_spec,
    set_in,
)
from partage.units import GIB, MIB

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
NAME, OTHER = ResourceName("nvidia.com/gpu.shared"), ResourceName("nvidia.com/gpu.large")
HOOK = limit_terms("/var/lib/partage/bin/partage-limit-hook", "/", "", nvidia=True)
SETS = st.dictionaries(st.sampled_from([A, B, GpuUuid("GPU-c")]), st.integers(1, 2**20), min_size=1).map(
    lambda found: tuple(DriverLimit(gpu, amount * MIB) for gpu, amount in found.items())
)


def test_the_hook_has_a_value_for_each_gpu_as_arguments() -> None:
    limits = limit_set([DriverLimit(B, 2 * GIB), DriverLimit(A, GIB)], NAME)
    spec = limits_spec(limits, limit_terms("/p/hook", "/run/nvidia/driver", "", nvidia=False))
    (device,) = spec["devices"]
    assert limits.device == f"{spec['kind']}={device['name']}"
    (hook,) = device["containerEdits"]["hooks"]
    assert (hook["hookName"], hook["path"]) == ("createRuntime", "/p/hook")
    assert hook["args"] == [
        "partage-limit-hook",
        "set",
        "--driver-root=/run/nvidia/driver",
        f"GPU-a={GIB}",
        f"GPU-b={2 * GIB}",
    ]
    assert hook["timeout"] > 0


@given(SETS, SETS)
def test_a_name_is_of_one_set_of_one_resource_in_any_order(
    one: tuple[DriverLimit, ...], other: tuple[DriverLimit, ...]
) -> None:
    same = sorted(one) == sorted(other)
    assert (limit_set(one, NAME).device == limit_set(other, NAME).device) is same
    assert limit_set(one[::-1], NAME) == limit_set(one, NAME)
    assert limit_set(one, NAME).name != limit_set(one, OTHER).name


@given(SETS)
def test_a_file_says_which_set_it_is_of(limits: tuple[DriverLimit, ...]) -> None:
    assert set_in(json.dumps(limits_spec(limit_set(limits, NAME), HOOK)).encode()) == limit_set(limits, NAME)


def test_a_file_of_the_version_before_is_known() -> None:
    """It had one name for all resources, and no grant."""
    now = limits_spec(limit_set([DriverLimit(A, GIB)], NAME), HOOK)
    (device,) = now["devices"]
    device["name"] = device["name"][:-16]
    device["containerEdits"]["hooks"][0]["env"].pop()
    found = set_in(json.dumps(now).encode())
    assert found is not None
    assert (found.name, found.limits) == (device["name"], (DriverLimit(A, GIB),))


def test_an_option_of_another_version_is_no_limit() -> None:
    limits = limit_set([DriverLimit(A, GIB)], NAME)
    text = json.dumps(limits_spec(limits, HOOK)).replace('"set", ', '"set", "--wait=5", ')
    assert "--wait=5" in text
    assert set_in(text.encode()) == limits


def test_a_file_without_a_limit_is_of_none() -> None:
    assert set_in(json.dumps(limits_spec(limit_set([], NAME), HOOK)).encode()) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-2],
        lambda text: text.replace("GPU-a=", "GPU-z="),
        lambda text: text.replace(str(GIB), "1"),
        lambda text: text.replace("hooks", "mounts"),
        lambda text: text.replace('"name": "set-', '"name": "../set-'),
        lambda text: re.sub('("name": "set-[0-9a-f]+)', r"\1/../other", text),
        lambda text: "[]",
    ],
)
def test_a_damaged_file_is_of_none(damage: object) -> None:
    text = json.dumps(limits_spec(limit_set([DriverLimit(A, GIB)], NAME), HOOK))
    assert set_in(text.encode())
    assert set_in(damage(text).encode()) is None  # type: ignore[operator]


@pytest.mark.parametrize(
    ("trouble", "nvidia", "way"),
    [
        ("", True, LimitWay.HOOK),
        ("", False, LimitWay.HOOK),
        ("noexec", True, LimitWay.NVIDIA),
        ("noexec", False, None),
    ],
)
def test_ours_is_taken_where_it_can_be(trouble: str, nvidia: bool, way: LimitWay | None) -> None:
    assert limit_terms("/p", "/", trouble, nvidia=nvidia).way is way


def test_nvidias_hook_is_told_one_value_and_no_request() -> None:
    nvidia = limit_terms("/p", "/", "noexec", nvidia=True)
    equal = [DriverLimit(A, GIB), DriverLimit(B, GIB)]
    assert limit_variables(equal, nvidia) == {
        "NVIDIA_GPU_MEMORY_REQUEST": "0",
        "NVIDIA_GPU_MEMORY_LIMIT": "1024",
    }
    assert limit_variables(equal, HOOK) == {}
    assert limit_variables([], LimitTerms()) == {}
    with pytest.raises(AllocationRefused, match=r"different memory limits.*noexec"):
        limit_variables([DriverLimit(A, GIB), DriverLimit(B, 2 * GIB)], nvidia)
    with pytest.raises(AllocationRefused, match="cannot be set before it starts: noexec"):
        limit_variables(equal, limit_terms("/p", "/", "noexec", nvidia=False))
