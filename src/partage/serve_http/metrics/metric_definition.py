"""What defines a metric."""

from __future__ import annotations

from enum import StrEnum

from partage.values import Frozen


class MetricKind(StrEnum):
    """The two kinds that are used. The name of a counter ends in ``_total`` where it is scraped."""

    GAUGE = "gauge"
    COUNTER = "counter"


class MetricDefinition(Frozen):
    """One metric. name: without ``partage_``. text: for ``# HELP``, one line."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    kind: MetricKind = MetricKind.GAUGE

    @property
    def scraped_name(self) -> str:
        """As Prometheus sees it."""
        return f"partage_{self.name}{'_total' if self.kind is MetricKind.COUNTER else ''}"


def counter(name: str, text: str, *labels: str) -> MetricDefinition:
    """A counter."""
    return MetricDefinition(name, text, labels, MetricKind.COUNTER)
