"""Metrics, from their definitions."""

from __future__ import annotations

from partage.agent.status.metric_definitions import METRICS
from tools.reference.tables import code, table


def metrics() -> str:
    """The table of all metrics of the agent's own."""
    return table(
        ("metric", "kind", "labels", "means"),
        [
            (code(one.scraped_name), one.kind, ", ".join(map(code, one.labels)), one.text)
            for one in METRICS.values()
        ],
    )
