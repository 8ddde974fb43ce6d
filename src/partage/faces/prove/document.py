"""A report as a JSON document, ``kind: Proof``, and back. Keys are added, never renamed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partage.faces.prove.model import Evidence, Outcome, Report, Row, Verdict, Which
from partage.faces.recorded import API_VERSION, Recorded
from partage.model.share import Guarantee

_LARGEST_BYTES = 16 * 2**20


def to_document(report: Report) -> dict[str, Any]:
    """All of it. ``summary`` counts the verdicts, for readers that do not."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Proof",
        "at": report.at,
        "command": list(report.command),
        "versions": dict(report.versions),
        "driver": {"version": report.driver, "cuda": report.cuda},
        "machine": report.machine,
        "gpus": list(report.gpus),
        "summary": {str(verdict): report.count(verdict) for verdict in Verdict},
        "remarks": list(report.remarks),
        "rows": [_row(row) for row in report.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    untried = row.outcome.verdict is Verdict.NOT_TRIED
    return {
        "attack": row.attack,
        "strategy": row.strategy,
        "share": None if row.share is None else _share(row.share),
        "guarantee": str(row.guarantee),
        "promised": row.promised,
        "tried": row.tried,
        "verdict": str(row.outcome.verdict),
        "seen": "" if untried else row.outcome.seen,
        "reason": row.outcome.seen if untried else "",
        "evidence": str(row.evidence),
    }


def _share(share: Which) -> dict[str, Any]:
    return {
        "resource": share.resource,
        "gpu": share.gpu,
        "device": share.device,
        "replicas": share.replicas,
        "memoryBytes": share.memory_bytes,
    }


# --- back --------------------------------------------------------------------------------------


def _report(document: Mapping[str, Any]) -> Report:
    return Report(
        at=str(document["at"]),
        command=tuple(map(str, document["command"])),
        versions={str(name): str(value) for name, value in document["versions"].items()},
        driver=str(document["driver"]["version"]),
        cuda=str(document["driver"]["cuda"]),
        machine=str(document["machine"]),
        gpus=tuple(map(str, document["gpus"])),
        rows=tuple(map(_row_of, document["rows"])),
        remarks=tuple(map(str, document["remarks"])),
    )


def _row_of(row: Mapping[str, Any]) -> Row:
    share = row["share"]
    return Row(
        attack=str(row["attack"]),
        strategy=str(row["strategy"]),
        guarantee=Guarantee(row["guarantee"]),
        promised=str(row["promised"]),
        tried=str(row["tried"]),
        outcome=Outcome(Verdict(row["verdict"]), str(row["seen"] or row["reason"])),
        evidence=Evidence(row["evidence"]),
        share=None if share is None else _which(share),
    )


def _which(share: Mapping[str, Any]) -> Which:
    return Which(
        resource=str(share["resource"]),
        gpu=int(share["gpu"]),
        device=str(share["device"]),
        replicas=int(share["replicas"]),
        memory_bytes=int(share["memoryBytes"]),
    )


_RECORDED = Recorded(
    "Proof", "report of partage prove", "partage prove --report DIR writes one", _LARGEST_BYTES, _report
)
read_report = _RECORDED.read
from_document = _RECORDED.from_document
