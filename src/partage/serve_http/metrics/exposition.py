"""Metrics as text: Prometheus' text format 0.0.4, or OpenMetrics 1.0; histograms and counts of answers, to
which any thread may add. Own code: docs/adr/0100.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus

from msgspec import Struct

from partage.serve_http.http import Answer, Page, PageRequest

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS_TYPE = "application/openmetrics-text"

_VALUE_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Family(Struct):
    """All samples of one metric. name: without ``_total``. kind: gauge, counter, histogram or unknown.

    rows: what ``label_text`` makes of the labels, and the number; of a histogram, what ``histogram_rows``
    makes.
    """

    name: str
    text: str
    kind: str
    rows: list[tuple[str, float]]


def label_text(labels: Iterable[tuple[str, str]]) -> str:
    """Labels as they stand in both formats, ordered by name, without the braces."""
    return ",".join([f'{name}="{escaped(value)}"' for name, value in sorted(labels)])


def escaped(value: str) -> str:
    """The value of a label."""
    return value.translate(_VALUE_ESCAPES) if "\\" in value or "\n" in value or '"' in value else value


def wants_openmetrics(accept: str) -> bool:
    """Whether a scraper with this ``Accept`` reads OpenMetrics."""
    for item in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in item.split(";"))
        if kind == _OPENMETRICS_TYPE:
            return not any(
                parameter.startswith("q=") and parameter.removeprefix("q=").strip("0.") == ""
                for parameter in parameters
            )
    return False


def label_template(names: Sequence[str]) -> str:
    """As ``label_text`` writes them, with a place for each value, by its number: for ``str.format``."""
    return ",".join([f'{name}="{{{at}}}"' for at, name in sorted(enumerate(names), key=lambda one: one[1])])


def filled(template: str, values: Sequence[str]) -> str:
    """The labels of a row. Most values need no escapes, so that all of them are looked at together."""
    together = "".join(values)
    if "\\" in together or '"' in together or "\n" in together:
        values = [escaped(value) for value in values]
    return template.format(*values)


def write(families: Iterable[Family], *, openmetrics: bool) -> bytes:
    """The whole text. Families without samples are left out."""
    lines: list[str] = []
    for family in families:
        if not family.rows:
            continue
        counter = family.kind == "counter"
        sample = f"{family.name}_total" if counter else family.name
        declared = family.name if openmetrics else sample
        kind = "untyped" if family.kind == "unknown" and not openmetrics else family.kind
        text = family.text.translate(_VALUE_ESCAPES if openmetrics else _HELP_ESCAPES)
        lines.append(f"# HELP {declared} {text}\n# TYPE {declared} {kind}\n")
        if family.kind == "histogram":
            lines += [f"{sample}{part} {_number(value)}\n" for part, value in family.rows]
        else:
            lines += _samples(sample, family.rows)
    if openmetrics:
        lines.append("# EOF\n")
    return "".join(lines).encode("utf-8", errors="replace")


def histogram_rows(buckets: Iterable[tuple[float, int]], total: float, count: int) -> list[tuple[str, float]]:
    """buckets: the longest of each, and how many are not longer. Buckets with less are in those with more."""
    rows: list[tuple[str, float]] = [(f'_bucket{{le="{most}"}}', counted) for most, counted in buckets]
    return [*rows, ('_bucket{le="+Inf"}', count), ("_sum", total), ("_count", count)]


def _samples(name: str, rows: Sequence[tuple[str, float]]) -> list[str]:
    """The lines of a family. There are thousands, and nearly all are numbers with labels."""
    if rows[0][0] and math.isfinite(sum([value for _, value in rows])):
        return [f"{name}{{{labels}}} {float(value)!r}\n" for labels, value in rows]
    return [
        f"{name}{{{labels}}} {_number(value)}\n" if labels else f"{name} {_number(value)}\n"
        for labels, value in rows
    ]


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


class Durations:
    """buckets_s: the longest of each, seconds."""

    def __init__(self, buckets_s: Sequence[float]) -> None:
        self._buckets_s, self._lock = buckets_s, threading.Lock()
        self._buckets = [0] * len(buckets_s)
        self._sum_s, self._count = 0.0, 0

    def ended(self, seconds: float) -> None:
        """One answer."""
        with self._lock:
            self._sum_s += seconds
            self._count += 1
            for number, most in enumerate(self._buckets_s):
                self._buckets[number] += seconds <= most

    def rows(self) -> list[tuple[str, float]]:
        """Of a histogram."""
        with self._lock:
            buckets = list(zip(self._buckets_s, self._buckets, strict=True))
            return histogram_rows(buckets, self._sum_s, self._count)


class AnswerCounts:
    """Answers since the start. labels: of what they are counted by. first: values that are shown before they
    come. seconds: how long they took.
    """

    def __init__(
        self, labels: Sequence[str], buckets_s: Sequence[float], first: Iterable[Sequence[str]] = ()
    ) -> None:
        self._labels, self._lock = labels, threading.Lock()
        self._counts: Counter[tuple[str, ...]] = Counter({tuple(values): 0 for values in first})
        self.seconds = Durations(buckets_s)

    def ended(self, seconds: float, *values: str) -> None:
        """One answer. values: of the labels."""
        with self._lock:
            self._counts[values] += 1
        self.seconds.ended(seconds)

    def rows(self) -> list[tuple[str, float]]:
        """Of a counter."""
        with self._lock:
            return [
                (label_text(list(zip(self._labels, values, strict=True))), float(count))
                for values, count in self._counts.items()
            ]


def metrics_page(families: Callable[[], Iterable[Family]]) -> Page:
    """``/metrics``."""

    def page(request: PageRequest) -> Answer:
        openmetrics = wants_openmetrics(request.accept)
        body = write(families(), openmetrics=openmetrics)
        return HTTPStatus.OK, OPENMETRICS if openmetrics else TEXT, body

    return page
