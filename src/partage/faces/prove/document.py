"""A report as a JSON document, ``kind: Proof``, and back. Keys are added, never renamed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partage.errors import InputError, Problem
from partage.faces.prove.model import Evidence, Outcome, Report, Row, Verdict, Which
from partage.model.share import Guarantee

_API_VERSION, _KIND = "partage/v1", "Proof"
_LARGEST_BYTES = 16 * 2**20


def to_document(report: Report) -> dict[str, Any]:
    """All of it. ``summary`` counts the verdicts, for readers that do not."""
    return {
        "apiVersion": _API_VERSION,
        "kind": _KIND,
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


def read_report(file: str) -> Report:
    """A report that was written down. Raises InputError for a file that is none."""
    try:
        path = Path(file)
        if path.stat().st_size > _LARGEST_BYTES:
            raise _wrong(file, f"is larger than {_LARGEST_BYTES >> 20} MiB")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise _wrong(file, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _wrong(file, f"is no JSON: {error}") from error
    return from_document(document, file)


def from_document(document: object, file: str = "") -> Report:
    """The report of a document. Raises InputError for anything else."""
    if not isinstance(document, dict) or document.get("kind") != _KIND:
        raise _wrong(file, "is no report of partage prove", "partage prove --report DIR writes one")
    if document.get("apiVersion") != _API_VERSION:
        raise _wrong(file, f"is of apiVersion {document.get('apiVersion')!r}, not {_API_VERSION!r}")
    try:
        return _report(document)
    except KeyError as error:
        raise _wrong(file, f"lacks the key {error.args[0]!r}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise _wrong(file, f"is not as a report is: {error}") from error


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


def _wrong(file: str, message: str, hint: str = "") -> InputError:
    return InputError([Problem(file, "", "error", message, hint)])
