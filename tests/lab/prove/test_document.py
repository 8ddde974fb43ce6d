"""The report as a document: complete, read back as it was, and refused where it is none."""

import copy
import json

import pytest

from partage.errors import InputError
from partage.lab.prove.report import PROOF
from tests.lab.prove import reports


def _document():
    return json.loads(json.dumps(PROOF.to_document(reports.full())))


def test_a_report_comes_back_as_it_was():
    assert PROOF.from_document(_document()) == reports.full()


def test_each_row_says_what_was_promised_and_seen_or_why_it_was_not_tried():
    rows = {row["attack"]: row for row in _document()["rows"]}
    assert rows["mps-over"] == {
        "attack": "mps-over",
        "strategy": "MPS",
        "share": {
            "resource": "nvidia.com/gpu.shared",
            "gpu": 0,
            "device": "GPU-1",
            "replicas": 4,
            "memoryBytes": 20 << 30,
        },
        "guarantee": "guarded",
        "promised": "Promised over.",
        "tried": "Tried over.",
        "verdict": "kept",
        "seen": "it got 20 GiB | and <no> more",
        "reason": "",
        "evidence": "hardware",
    }
    assert (rows["mps-off"]["seen"], rows["mps-off"]["reason"]) == ("", "it takes a GPU")
    assert rows["mps-off"]["share"] is None


def test_the_verdicts_are_counted():
    assert _document()["summary"] == {"kept": 2, "weaker-than-promised": 1, "broken": 1, "not-tried": 1}


def test_keys_of_a_newer_version_are_passed_over():
    document = _document()
    document["novelty"] = document["rows"][0]["novelty"] = 1
    assert PROOF.from_document(document) == reports.full()


@pytest.mark.parametrize("key", ["at", "command", "versions", "driver", "rows", "gpus", "remarks"])
def test_a_document_without_a_key_is_refused_by_its_name(key):
    document = _document()
    del document[key]
    with pytest.raises(InputError, match=key):
        PROOF.from_document(document)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("verdict", "fine"),
        ("evidence", "hearsay"),
        ("guarantee", "sure"),
        ("share", 3),
        ("share", {"gpu": 1}),
    ],
)
def test_a_row_that_says_what_no_report_says_is_refused(key, value):
    document = copy.deepcopy(_document())
    document["rows"][0][key] = value
    with pytest.raises(InputError):
        PROOF.from_document(document)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no JSON"),
        (b"[]", "is no report"),
        (b'{"kind": "Bench"}', "is no report"),
        (b'{"kind": "Proof", "apiVersion": "v9"}', "apiVersion 'v9'"),
    ],
)
def test_a_file_that_is_no_report_is_refused(tmp_path, content, words):
    path = tmp_path / "any.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        PROOF.read(str(path))
