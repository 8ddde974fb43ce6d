"""Defined metrics as families."""

from __future__ import annotations

from collections.abc import Iterable

from partage.serve_http.metrics.exposition import Family, filled, label_template
from partage.serve_http.metrics.metric_definitions import METRICS

Labels = tuple[str, ...] | str
"""The values of the labels; or what ``text_of`` has made of them, where several metrics have the same."""
Row = tuple[Labels, float]
"""The labels, and the number."""

_TEMPLATES = {name: label_template(defined.labels) for name, defined in METRICS.items()}


def metric(name: str, rows: Iterable[Row]) -> Family:
    """A defined metric."""
    defined = METRICS[name]
    template = _TEMPLATES[name]
    texts = [
        (labels if isinstance(labels, str) else filled(template, labels), number) for labels, number in rows
    ]
    return Family(f"partage_{name}", defined.text, defined.kind.value, texts)


def text_of(name: str, values: tuple[str, ...]) -> str:
    """The labels of one row as they stand in the text. It is the same for metrics with the same labels."""
    return filled(_TEMPLATES[name], values)


def figure(name: str, value: float) -> Family:
    """A metric without labels."""
    return metric(name, [((), float(value))])
