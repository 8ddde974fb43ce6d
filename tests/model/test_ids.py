"""Resource names, socket names, ids of shares."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.ids import (
    LONGEST_RESOURCE_NAME,
    ShareId,
    device_uuid,
    parse_resource_name,
    parse_share_id,
    plugin_socket_name,
    share_id,
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gpu", "nvidia.com/gpu"),
        ("nvidia.com/gpu.shared", "nvidia.com/gpu.shared"),
        ("mig-1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
        ("example.org/gpu", "example.org/gpu"),
    ],
)
def test_names_get_nvidias_domain_where_none_stands(text: str, name: str) -> None:
    assert parse_resource_name(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU",
        "nvidia.com/",
        "/gpu",
        "a/b/c",
        "gpu_1",
        "kubernetes.io/gpu",
        "x.kubernetes.io/gpu",
        "-gpu",
        "gpu.",
    ],
)
def test_what_kubernetes_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"resource name|domain"):
        parse_resource_name(text)


def test_the_longest_name_has_63_characters_in_all() -> None:
    fits = "g" * (LONGEST_RESOURCE_NAME - len("nvidia.com/"))
    assert len(parse_resource_name(fits)) == LONGEST_RESOURCE_NAME
    with pytest.raises(ValueError, match="longer than 63"):
        parse_resource_name(fits + "g")


def test_sockets_are_called_as_nvidias_plugin_calls_them() -> None:
    assert plugin_socket_name(parse_resource_name("gpu.shared")) == "nvidia-gpu.shared.sock"
    assert plugin_socket_name(parse_resource_name("example.org/gpu")) == "example.org-gpu.sock"


@given(st.text(min_size=1).filter(lambda text: "::" not in text), st.none() | st.integers(0, 10**6))
def test_share_ids_say_device_and_number(device: str, replica: int | None) -> None:
    if not device.endswith(":"):
        assert parse_share_id(share_id(device_uuid(device), replica)) == (device, replica)


def test_an_id_without_a_number_behind_the_colons_is_a_whole_device() -> None:
    assert parse_share_id(ShareId("GPU-1::x")) == ("GPU-1::x", None)
