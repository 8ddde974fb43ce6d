"""The text of the metrics, against what the official library writes and reads."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from partage.serve_http.metrics.exposition import (
    Family,
    filled,
    label_template,
    label_text,
    wants_openmetrics,
    write,
)
from partage.serve_http.metrics.metric_definitions import METRICS
from partage.serve_http.metrics.metrics import process_families

NAMES = ("namespace", "pod", "device")
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r\x85\u2028\u2029"), max_size=20)
ROWS = st.lists(
    st.tuples(st.tuples(TEXTS, TEXTS, TEXTS), st.floats() | st.integers(0, 2**53).map(float)),
    max_size=4,
    unique_by=lambda row: row[0],
)


def read(text: bytes, *, openmetrics: bool) -> list[tuple[object, ...]]:
    """What the official parser makes of it; NaN as text, because it is not equal to itself."""
    parse = openmetrics_families if openmetrics else text_string_to_metric_families
    return [
        (
            one.name,
            one.documentation,
            one.type,
            sample.name,
            sorted(sample.labels.items()),
            _plain(sample.value),
        )
        for one in parse(text.decode())
        for sample in one.samples
    ]


def _plain(value: float) -> float | str:
    return "NaN" if math.isnan(value) else value


@given(st.tuples(TEXTS, TEXTS, TEXTS))
@example(('"', "{0}", "\\\n"))
def test_many_rows_of_one_metric_are_labelled_as_one_is(values: tuple[str, str, str]) -> None:
    assert filled(label_template(NAMES), values) == label_text(zip(NAMES, values, strict=True))


class Library(Collector):
    """The same family, of the library's kind."""

    def __init__(self, kind: str, text: str, rows: list[tuple[tuple[str, ...], float]]) -> None:
        family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        self.family: Metric = family("partage_x", text, labels=NAMES)
        for values, number in rows:
            self.family.add_metric(values, number)

    def collect(self) -> list[Metric]:
        return [self.family] if self.family.samples else []


@given(st.sampled_from(["gauge", "counter"]), TEXTS, ROWS, st.booleans())
def test_it_says_what_the_official_library_says(
    kind: str, text: str, rows: list[tuple[tuple[str, ...], float]], openmetrics: bool
) -> None:
    if kind == "counter":
        rows = [(values, abs(number)) for values, number in rows if math.isfinite(number)]
    registry = CollectorRegistry()
    registry.register(Library(kind, text, rows))
    labelled = [(label_text(zip(NAMES, values, strict=True)), number) for values, number in rows]
    ours = write([Family("partage_x", text, kind, labelled)], openmetrics=openmetrics)
    theirs = (
        generate_openmetrics(registry, escaping="underscores", version="1.0.0")
        if openmetrics
        else generate_latest(registry)
    )
    assert read(ours, openmetrics=openmetrics) == read(theirs, openmetrics=openmetrics)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        # Prometheus 2 and 3
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text;q=0, text/plain", False),
        (";;,,;q=;version=abc", False),
    ],
)
def test_the_scraper_chooses_the_format(accept: str, expected: bool) -> None:
    assert wants_openmetrics(accept) is expected


def test_text_that_is_not_unicode_spoils_nothing() -> None:
    family = Family("partage_x", "x", "gauge", [(label_text([("pod", "a\udc80b")]), 1.0)])
    assert b'pod="a?b"' in write([family], openmetrics=False)


def test_names_and_labels_keep_the_rules_of_both_formats() -> None:
    for one in METRICS.values():
        assert not one.name.endswith("_total")
        assert len(set(one.labels)) == len(one.labels)
        assert one.text.endswith(".")


def test_the_process_has_the_usual_figures() -> None:
    names = {one.name for one in process_families()}
    assert {"process_resident_memory_bytes", "process_cpu_seconds", "process_open_fds"} <= names
