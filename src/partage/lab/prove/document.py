"""A report as a JSON document, ``kind: Proof``."""

from __future__ import annotations

from typing import Any

from partage.answers.documents.lab import DocumentKind
from partage.lab.prove.model import ProofReport, ProofVerdict


def _derived(report: ProofReport, found: dict[str, Any]) -> dict[str, Any]:
    """How many rows have each verdict."""
    del found
    return {"summary": {str(verdict): report.count(verdict) for verdict in ProofVerdict}}


PROOF = DocumentKind(
    "Proof",
    "report of partage prove",
    "partage prove --report DIR writes one",
    16 * 2**20,
    ProofReport,
    _derived,
)
