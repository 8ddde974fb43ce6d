"""Answers counted, and how long they took: any thread may add; and the page that shows metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus

from partage.serve_http.http import Answer, Page, PageRequest
from partage.serve_http.metrics.exposition import (
    OPENMETRICS,
    TEXT,
    Family,
    histogram_rows,
    label_text,
    wants_openmetrics,
    write,
)


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
