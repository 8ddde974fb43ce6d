"""Keys and values of labels, as Kubernetes takes them."""

from __future__ import annotations

import pytest

from partage.model.node_labels import parse_label_key, parse_label_value, parse_labels


@pytest.mark.parametrize("key", ["pool", "a", "A.b_c-d", "nvidia.com/mig.config", "x" * 63])
def test_a_key(key: str) -> None:
    assert parse_label_key(key) == key


@pytest.mark.parametrize(
    "key", ["", "-a", "a-", "/a", "a/", "a/b/c", "UPPER.com/a", "x" * 64, "a b", "é", ("d" * 254) + "/a"]
)
def test_no_key(key: str) -> None:
    with pytest.raises(ValueError, match="not the key"):
        parse_label_key(key)


@pytest.mark.parametrize(("value", "good"), [("", True), ("a.b_c-1", True), ("a b", False), ("-", False)])
def test_a_value(value: str, good: bool) -> None:
    if good:
        assert parse_label_value(value) == value
    else:
        with pytest.raises(ValueError, match="not the value"):
            parse_label_value(value)


def test_labels_in_one_text() -> None:
    assert parse_labels("pool=inference, example.com/zone=") == {"pool": "inference", "example.com/zone": ""}
    assert parse_labels(" ") == {}
    with pytest.raises(ValueError, match="KEY=VALUE"):
        parse_labels("pool")
