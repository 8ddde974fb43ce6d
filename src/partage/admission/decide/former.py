"""A pod that was translated, as it was before: in its own system's words.

Read back from the annotations of the translation. A tenant may have written them, so they count for what is
said about this pod, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import field

from partage.admission.decide.need import AmountWord
from partage.admission.decide.pod import TRANSLATED, patched
from partage.admission.decide.template import rule_expressions
from partage.admission.decide.translate import (
    FORMER_SCHEDULER,
    FORMER_SELECTOR,
    GUARANTEE,
    AdmissionTerms,
    ClaimOfPod,
    TranslatedPod,
    translate,
)
from partage.values import Frozen

_CLAIM = "partage-gpu"
BY_ANNOTATION = "by annotation"


class ClaimWords(Frozen):
    """How a claim of a pod was asked for. containers: that have it. home: the line of a policy that would
    make a home for it. amounts: as its first container writes them. rules: the annotations behind its
    expressions.
    """

    containers: tuple[str, ...]
    becomes: str
    home: str
    amounts: tuple[AmountWord, ...]
    rules: Mapping[str, str]


class FormerWords(Frozen):
    """A pod that was written for another system. asked: in the words of that system."""

    system: str
    asked: str


class FormerPod(FormerWords):
    """What it asked for before. guarantee: as the annotation says it. scheduler: of before; empty: the same
    as now. claims: by the pod's name for each; empty where the words can no longer be read as these claims.
    warnings: what of it has no effect, clauses.
    """

    guarantee: str
    scheduler: str = ""
    claims: Mapping[str, ClaimWords] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def former_pod(pod: Mapping[str, Any], terms: AdmissionTerms) -> FormerPod | None:
    """pod: as the API server has it, or the template of one. None: it was not translated."""
    notes = _mapping(_mapping(pod.get("metadata")).get("annotations"))
    system, colon, asked = str(notes.get(TRANSLATED, "")).partition(": ")
    if not colon:
        return None
    scheduler = str(notes.get(FORMER_SCHEDULER, ""))
    found = translate(as_before(pod), terms)
    there = {*_claims_in(pod)}
    claims: dict[str, ClaimWords] = {}
    warnings: tuple[str, ...] = ()
    if isinstance(found, TranslatedPod) and found.system == system:
        same = {(claim.name, user.name) for claim in found.claims for user in claim.containers} == there
        claims = {claim.name: _words(claim, found) for claim in found.claims} if same else {}
        warnings = found.warnings
    if asked == BY_ANNOTATION and (marks := _marks(claims)):
        asked = marks
    return FormerPod(system, asked, str(notes.get(GUARANTEE, "")), scheduler, claims, warnings)


def _words(claim: ClaimOfPod, of: TranslatedPod) -> ClaimWords:
    users = claim.containers
    names = tuple(user.name for user in users)
    return ClaimWords(names, claim.form.words, claim.home, users[0].words, rule_expressions(of.rules))


def _marks(claims: Mapping[str, ClaimWords]) -> str:
    """``annotation gpu-memory: '40000'``."""
    said = [word.form.format(word.now) for words in claims.values() for word in words.amounts]
    return ", ".join(dict.fromkeys(said))


def as_before(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The pod with what the translation took out, and without what it put in."""
    before = patched(pod, ())
    metadata, spec = before.get("metadata"), before.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        return before
    notes = metadata.get("annotations")
    notes = notes if isinstance(notes, dict) else {}
    _, _, asked = str(notes.pop(TRANSLATED, "")).partition(": ")
    amounts = dict(_amounts(asked))
    for container in _containers(spec):
        resources = container.get("resources")
        resources = resources if isinstance(resources, dict) else {}
        claims = resources.get("claims")
        kept = [row for row in claims if not _is_ours(row)] if isinstance(claims, list) else []
        limits = resources.get("limits")
        had = amounts.get(str(container.get("name")), {})
        limits = {**(limits if isinstance(limits, dict) else {}), **had}
        container["resources"] = {**resources, "claims": kept, "limits": limits}
    rows = spec.get("resourceClaims")
    if isinstance(rows, list):
        spec["resourceClaims"] = [row for row in rows if not _is_ours(row)]
    selector = dict(_pairs(str(notes.get(FORMER_SELECTOR, "")), ", "))
    if selector:
        now = spec.get("nodeSelector")
        spec["nodeSelector"] = {**(now if isinstance(now, dict) else {}), **selector}
    return before


def _amounts(asked: str) -> Iterator[tuple[str, dict[str, str]]]:
    """By container, from ``main nvidia.com/gpu=1 nvidia.com/gpumem=3000; side ...``."""
    for row in asked.split("; "):
        name, _, words = row.partition(" ")
        yield name, dict(_pairs(words, " "))


def _pairs(text: str, between: str) -> Iterator[tuple[str, str]]:
    for word in text.split(between):
        key, equals, value = word.partition("=")
        if equals:
            yield key, value


def _claims_in(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Claims that a translation made, with the containers that have them."""
    for container in _containers(_mapping(pod.get("spec"))):
        claims = _mapping(container.get("resources")).get("claims")
        for row in claims if isinstance(claims, list) else ():
            if _is_ours(row):
                yield str(row.get("name")), str(container.get("name"))


def _is_ours(row: object) -> bool:
    return isinstance(row, Mapping) and str(row.get("name", "")).startswith(_CLAIM)


def _containers(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for group in ("initContainers", "containers"):
        rows = spec.get(group)
        yield from (row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}
