"""Metrics, from their definitions."""

from __future__ import annotations

from partage.admission import metrics as webhook_metrics
from partage.scheduler.metrics import DEFINITIONS, RESULTS
from partage.serve_http.metrics.dcgm_metrics import SPELLINGS
from partage.serve_http.metrics.metric_definitions import METRICS
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


def dcgm() -> str:
    """The names of dcgm-exporter that are served, in both spellings."""
    return table(("up to 4.8", "4.9"), [(code(old), code(new)) for old, new in SPELLINGS])


def extender() -> str:
    """The metrics of ``partage scheduler``."""
    rows = []
    for name, (text, kind) in DEFINITIONS.items():
        counted = kind == "counter"
        labels = code("result") + ": " + ", ".join(map(code, RESULTS)) if counted else ""
        rows.append((code(f"{name}_total" if counted else name), kind, labels, text))
    return table(("metric", "kind", "labels", "means"), rows)


def webhook() -> str:
    """The metrics of ``partage admission``."""
    results, dialects = webhook_metrics.RESULTS, webhook_metrics.DIALECTS
    labels = {
        "partage_admission_requests": f"`dialect`: {', '.join(map(code, dialects))}; "
        f"`result`: {', '.join(map(code, results))}",
        "partage_admission_templates": "`what`: `made`, `swept`",
    }
    rows = [
        (code(f"{name}_total" if kind == "counter" else name), kind, labels.get(name, ""), text)
        for name, (text, kind) in webhook_metrics.DEFINITIONS.items()
    ]
    return table(("metric", "kind", "labels", "means"), rows)
