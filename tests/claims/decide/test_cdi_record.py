"""The record of a claim in its CDI file."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.claims.decide.cdi import KIND, ClaimCdi, record_in, with_record
from partage.model.ids import ShareId
from tests.claims.test_files import done, record

CDI = ClaimCdi({"cdiVersion": "0.5.0", "kind": KIND, "devices": []}, ())


def test_the_record_comes_back_from_the_spec() -> None:
    found = with_record(CDI, done("a"))
    assert found.spec["cdiVersion"] == "0.6.0"
    assert found.spec | {"cdiVersion": "0.5.0", "annotations": None} == CDI.spec | {"annotations": None}
    assert record_in(json.dumps(found.spec).encode(), "uid-a") == done("a")


@pytest.mark.parametrize(
    ("spec", "uid"),
    [
        (CDI.spec, "uid-a"),
        (with_record(CDI, done("a")).spec, "uid-b"),
        (with_record(CDI, record("a")).spec, "uid-a"),
        ({"annotations": {"gpu.partage.dev/record": "{}"}}, "uid-a"),
        ({"annotations": {"gpu.partage.dev/record": "\ud800"}}, "uid-a"),
        ({"annotations": {"gpu.partage.dev/record": 1}}, "uid-a"),
        ([], "uid-a"),
    ],
    ids=["none", "of another claim", "only begun", "empty", "no text", "a number", "a list"],
)
def test_what_is_no_record_of_the_claim_is_none(spec: object, uid: str) -> None:
    assert record_in(json.dumps(spec).encode(), uid) is None


@given(st.binary(max_size=40))
def test_any_bytes_are_read(content: bytes) -> None:
    assert record_in(content, "uid-a") is None


def test_more_than_cdi_loaders_take_is_left_out() -> None:
    (share,) = done("a").shares
    many = replace(share, ids=tuple(ShareId(f"{share.uuid}-_-{number}") for number in range(8_000)))
    assert with_record(CDI, replace(done("a"), shares=(many,))) == CDI
    fits = replace(share, ids=many.ids[:4_000])
    written = with_record(CDI, replace(done("a"), shares=(fits,))).spec["annotations"]
    assert sum(len(key) + len(value.encode()) for key, value in written.items()) < 256 * 1024
