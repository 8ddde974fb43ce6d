"""Pods of other systems, for tests."""

from __future__ import annotations

from typing import Any

from partage.admission.decide.need import (
    BytesOfGpu,
    EvenShares,
    GpuNeed,
    PartOfGpu,
    WholeGpu,
)
from partage.admission.decide.template import ClaimableSize, ClaimableSizes
from partage.admission.decide.translate import AdmissionTerms, RefusedPod, TranslatedPod, translate
from partage.units import GIB, MIB

SIZES = ClaimableSizes((ClaimableSize(79 * GIB, GIB), ClaimableSize(39 * GIB, GIB)), (10 * GIB, 40 * GIB))
TERMS = AdmissionTerms(sizes=SIZES)


def container(limits: dict[str, Any] | None = None, name: str = "main", **more: Any) -> dict[str, Any]:
    """One that asks for these amounts."""
    made: dict[str, Any] = {"name": name, "image": "x", **more}
    return made if limits is None else {**made, "resources": {"limits": limits}}


def pod(
    *containers: dict[str, Any],
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod of these containers."""
    metadata: dict[str, Any] = {"name": "p"}
    if annotations:
        metadata["annotations"] = annotations
    if labels:
        metadata["labels"] = labels
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [*containers], **spec},
    }


def translated(document: dict[str, Any], terms: AdmissionTerms = TERMS) -> TranslatedPod:
    """What becomes of it."""
    found = translate(document, terms)
    assert isinstance(found, TranslatedPod), found
    return found


def refused(document: dict[str, Any], terms: AdmissionTerms = TERMS) -> str:
    """The sentence and the hint."""
    found = translate(document, terms)
    assert isinstance(found, RefusedPod), found
    return f"{found.sentence} | {found.hint}"


def needs(document: dict[str, Any], terms: AdmissionTerms = TERMS) -> dict[str, str]:
    """What each container gets, in short, by its name."""
    return {
        user.name: said(user.need)
        for claim in translated(document, terms).claims
        for user in claim.containers
    }


def said(need: GpuNeed) -> str:
    """``2 x 3000Mi, 30 %``."""
    match need.memory:
        case WholeGpu():
            memory = "whole"
        case BytesOfGpu(memory_bytes=memory_bytes):
            memory = f"{memory_bytes // MIB}Mi"
        case PartOfGpu(part=part):
            memory = f"{part}"
        case EvenShares(shares=shares, most=most):
            memory = f"{shares} of {most}"
    return f"{need.count} x {memory}" + (f", {need.cores} %" if need.cores else "")
