"""The recorded run: complete, read back as it was, and refused where it is none."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.errors import InputError
from partage.lab.bench.model import BenchCell
from partage.lab.bench.plot import figure
from partage.lab.bench.report import BENCH, bench_lines
from partage.lab.place import TenantMode
from tests.examples import examples
from tests.lab.bench import runs


def _through_json(bench):
    return json.loads(json.dumps(BENCH.to_document(bench)))


def test_a_run_comes_back_as_it_was():
    document = _through_json(runs.full())
    assert _through_json(BENCH.from_document(document)) == document
    small = runs.bench(runs.pi(runs.SMALL, TenantMode.MPS, 2, (1.5,)), memory=runs.full().memory)
    assert BENCH.from_document(_through_json(small)) == small


def test_failures_and_unknown_counts_come_back_too():
    cell = BenchCell(runs.SMALL, TenantMode.MPS, 2, (runs.failed("hung", "silent", 2),), 1, 2, clients_seen=2)
    assert BENCH.from_document(_through_json(runs.bench(cell))).cells == (cell,)


def test_the_document_has_every_sample_and_says_what_it_is():
    document = BENCH.to_document(runs.full())
    assert (document["apiVersion"], document["kind"]) == ("partage/v1", "Bench")
    latencies = [
        value
        for cell in document["cells"]
        for repeat in cell["repeats"]
        for turn in repeat["turns"]
        for value in turn.get("latenciesUs", ())
    ]
    turns = sum(len(repeat.samples) for cell in runs.full().cells for repeat in cell.repeats
                if cell.experiment is runs.INFERENCE)  # fmt: skip
    assert len(latencies) == 100 * turns
    assert document["machine"]["driver"] == "595.1"
    assert document["settings"]["deadlineSeconds"] == 120.0
    assert document["summary"][0]["repeats"] >= 2


def test_keys_of_a_newer_version_are_passed_over():
    document = _through_json(runs.full())
    known = BENCH.from_document(document)
    document["novelty"] = document["machine"]["novelty"] = document["cells"][0]["novelty"] = 1
    assert BENCH.from_document(document) == known


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON"),
        ("[]", "is no recorded run"),
        ('{"kind": "Plan"}', "is no recorded run"),
        ('{"kind": "Bench", "apiVersion": "partage/v2"}', "apiVersion"),
        ('{"kind": "Bench", "apiVersion": "partage/v1"}', "missing required field `at`"),
    ],
)
def test_what_is_no_recorded_run_is_refused_in_a_sentence(tmp_path, text, words):
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        BENCH.read(str(file))


def test_a_file_without_end_is_refused(tmp_path):
    large = tmp_path / "large.json"
    large.write_bytes(b" " * 2000)
    with pytest.raises(InputError, match="is larger than 0 MiB"):
        replace(BENCH, largest_bytes=1000).read(str(large))
    with pytest.raises(InputError, match="not a regular file"):
        BENCH.read("/dev/zero")


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="cannot be read"):
        BENCH.read("/no/such/run.json")


def _paths(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _paths(one, (*path, key))
    elif isinstance(value, list):
        for number, one in enumerate(value[:2]):
            yield from _paths(one, (*path, number))


SMALL_RUN = runs.bench(
    runs.pi(runs.SMALL, TenantMode.ALONE, 1, (1.0,)),
    runs.pi(runs.SMALL, TenantMode.TIME_SLICING, 2, (1.0,)),
    runs.pi(runs.SMALL, TenantMode.MPS, 2, (1.0,)),
    runs.inference(TenantMode.ALONE, 1, 10, 20),
    memory=runs.full().memory,
)
PATHS = [path for path in _paths(_through_json(SMALL_RUN)) if path]


@given(
    path=st.sampled_from(PATHS),
    value=st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text(max_size=3) | st.just([]),
)
@settings(max_examples=examples(150), deadline=None)
def test_any_damaged_document_is_shown_or_refused(path, value):
    document = _through_json(SMALL_RUN)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    try:
        bench = BENCH.from_document(document)
    except InputError:
        return
    assert BENCH.to_document(bench)["kind"] == "Bench"
    assert list(bench_lines(bench))
    assert figure(bench).get_suptitle()
