"""A ResourceClaim of the API server: what is read of it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.claims.model.claim import ClaimConfig, ClaimResult, ConfigSource, Consumer, parse_claim
from partage.claims.model.names import OWN_NAMES
from partage.codec.values import CodecError
from partage.model.claim import ClaimRef
from partage.units import GIB, exact_quantity, parse_quantity

DRIVER = OWN_NAMES.driver

RESULT = {
    "request": "gpu/soft",
    "driver": DRIVER,
    "pool": "node-a-partage",
    "device": "gpu-00000000",
    "shareID": "5f0d1b9e-2c3a-4c58-9a61-2f6f4f1f0c11",
    "consumedCapacity": {"memory": "19Gi", "cores": "0"},
    "bindingConditions": ["x"],
    "tolerations": None,
}
OTHER = {
    "request": "nic",
    "driver": "dranet",
    "pool": "p",
    "device": "eth0",
    "consumedCapacity": {"bandwidth": "500m"},
}
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "part", "namespace": "team-a", "uid": "uid-1", "finalizers": ["x"], "generation": 3},
    "spec": {"devices": {"requests": [{"name": "gpu", "later": {}}]}},
    "status": {
        "allocation": {
            "allocationTimestamp": "2026-11-24T21:00:00Z",
            "nodeSelector": {"nodeSelectorTerms": []},
            "devices": {
                "results": [RESULT, OTHER],
                "config": [
                    {
                        "source": "FromClass",
                        "opaque": {"driver": DRIVER, "parameters": {"kind": "ShareConfig"}},
                    },
                    {
                        "source": "FromClaim",
                        "requests": ["gpu"],
                        "opaque": {"driver": "x", "parameters": [1]},
                    },
                    {"source": "FromClaim", "somethingNew": {}},
                ],
            },
        },
        "reservedFor": [{"resource": "pods", "name": "infer", "uid": "uid-2"}],
        "devices": [{"driver": DRIVER}],
    },
}


def parsed(claim: Any = CLAIM):
    return parse_claim(json.dumps(claim).encode(), DRIVER)


def with_consumed(**consumed: object):
    return parsed(changed(["status", "allocation", "devices", "results", 0, "consumedCapacity"], consumed))


def changed(path: list[Any], value: object) -> Any:
    claim = json.loads(json.dumps(CLAIM))
    inner = claim
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return claim


def test_all_that_is_needed_is_read() -> None:
    claim = parsed()
    assert claim.ref == ClaimRef("team-a", "part", "uid-1")
    assert claim.allocated
    assert claim.results == (
        ClaimResult(
            "gpu/soft",
            "node-a-partage",
            "gpu-00000000",
            DRIVER,
            "5f0d1b9e-2c3a-4c58-9a61-2f6f4f1f0c11",
            {"memory": 19 * GIB, "cores": 0},
        ),
        ClaimResult("nic", "p", "eth0", "dranet"),
    )
    assert claim.results[0].asked == "gpu"
    assert claim.configs == (
        ClaimConfig(ConfigSource.CLASS, (), DRIVER, b'{"kind": "ShareConfig"}'),
        ClaimConfig(ConfigSource.CLAIM, ("gpu",), "x", b"[1]"),
    )
    assert claim.reserved_for == (Consumer("pods", "infer", "uid-2"),)


def test_a_claim_that_has_nothing_yet() -> None:
    for status in ("{}", "null", '{"allocation": null, "reservedFor": null}'):
        claim = parsed({"metadata": CLAIM["metadata"], "status": json.loads(status)})
        assert (claim.allocated, claim.results) == (False, ())


def test_admin_access() -> None:
    path = ["status", "allocation", "devices", "results", 0, "adminAccess"]
    assert parsed(changed(path, True)).results[0].admin_access


@pytest.mark.parametrize(
    ("amount", "number"),
    [("10Gi", 10 * GIB), ("1500M", 1_500_000_000), ("25", 25), ("1e3", 1000), ("1k", 1000), ("0", 0),
     ("1.5Gi", 3 * GIB // 2), ("2000m", 2), ("9" * 28, int("9" * 28)), (7, 7)],
)  # fmt: skip
def test_amounts(amount: object, number: int) -> None:
    assert with_consumed(memory=amount).results[0].consumed == {"memory": number}


@pytest.mark.parametrize(
    "amount",
    ["-1", "-10Gi", "0.5", "1m", "1e-3", "1e999999999", "1E+100", "9" * 33, "", " 1", "1 Gi", "1gi", "NaN",
     "inf", "٣", "0x10", "1_000", None, 1.5, True, [], {}, -1],
    ids=repr,
)  # fmt: skip
def test_amounts_that_are_none_are_refused_with_their_path(amount: object) -> None:
    with pytest.raises(CodecError) as caught:
        with_consumed(memory=amount)
    assert "memory" in str(caught.value) or "consumedCapacity" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["metadata"], None),
        (["metadata", "uid"], None),
        (["metadata", "uid"], 7),
        (["status"], "allocated"),
        (["status", "allocation", "devices", "results"], {}),
        (["status", "allocation", "devices", "results", 0, "driver"], None),
        (["status", "allocation", "devices", "results", 0, "shareID"], 7),
        (["status", "allocation", "devices", "config", 0, "source"], "FromNowhere"),
    ],
)
def test_what_is_needed_has_to_be_there(path: list[Any], value: object) -> None:
    with pytest.raises(CodecError):
        parsed(changed(path, value))


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"{", b"[" * 100_000, b"\xff"], ids=len)
def test_what_is_no_claim_at_all(content: bytes) -> None:
    with pytest.raises(CodecError):
        parse_claim(content, DRIVER)


@given(st.integers(0, 10**15), st.booleans())
def test_an_amount_is_written_as_it_is_read(amount: int, binary: bool) -> None:
    assert parse_quantity(exact_quantity(amount, binary=binary)) == amount


@pytest.mark.parametrize(
    ("amount", "binary", "text"),
    [(0, True, "0"), (0, False, "0"), (100, False, "100"), (1000, False, "1k"), (1024, False, "1024"),
     (512, True, "512"), (1024, True, "1Ki"), (79 * GIB, True, "79Gi"), (1536 * 2**20, True, "1536Mi"),
     (1000, True, "1k"), (2**20 + 1, True, "1048577")],
)  # fmt: skip
def test_quantities_as_the_api_server_writes_them(amount: int, *, binary: bool, text: str) -> None:
    assert exact_quantity(amount, binary=binary) == text
