"""How long answers take: a histogram that any thread may add to, and the page that shows metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus

from partage.serve_http.http import Answer, Page, PageRequest
from partage.serve_http.metrics.exposition import (
    OPENMETRICS,
    TEXT,
    Family,
    histogram_rows,
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


def metrics_page(families: Callable[[], Iterable[Family]]) -> Page:
    """``/metrics``."""

    def page(request: PageRequest) -> Answer:
        openmetrics = wants_openmetrics(request.accept)
        body = write(families(), openmetrics=openmetrics)
        return HTTPStatus.OK, OPENMETRICS if openmetrics else TEXT, body

    return page
