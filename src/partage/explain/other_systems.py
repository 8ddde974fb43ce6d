"""Pods that were written for other systems: in manifests taken as ``partage admission`` would have them, in a
cluster read back from what it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from partage.admission.decide.former import former_pod
from partage.admission.decide.template import sizes_of
from partage.admission.decide.translate import AdmissionTerms, RefusedPod, translate
from partage.admission.manifests import TranslatedObject, TranslationTerms, translated_object
from partage.claims.decide.book import BookDevice
from partage.explain.decide.claims import claim_book
from partage.explain.decide.node import NodeView
from partage.explain.decide.pod import PodNeeds
from partage.explain.pod_needs import pods_of
from partage.kubernetes.manifests.node import LineOf
from partage.kubernetes.manifests.pods import pod_specs_at
from partage.plan.offer.select import GeometryOf
from partage.values import Frozen

Object = Mapping[str, Any]
Found = tuple[str, Object, LineOf]
"""Path, document and lines of an object of a manifest."""


class TakenObjects(Frozen):
    """The objects of a manifest, as the webhook would have them. refused: pods that it would not let in, each
    with a sentence.
    """

    pods: tuple[PodNeeds, ...]
    objects: tuple[Found, ...]
    refused: tuple[tuple[PodNeeds, str], ...] = ()


def admission_terms(nodes: Iterable[NodeView], geometry_of: GeometryOf) -> AdmissionTerms:
    """What pods are translated by on these nodes. Names of resources are those that each system has at
    first.
    """
    listed: set[str] = set()
    devices: list[BookDevice] = []
    for node in nodes:
        listed |= {*map(str, node.names)} | {name for name, there in node.counted.items() if there.total}
        devices += claim_book(node, geometry_of).devices
    return AdmissionTerms(sizes=sizes_of(devices), listed=frozenset(listed), schedulers=None)


def is_asking(documents: Iterable[Object], listed: frozenset[str] = frozenset()) -> bool:
    """Whether one of the pods is written for another system. listed: names that device plugins have."""
    terms = AdmissionTerms(listed=listed, schedulers=None)
    return any(translate(pod, terms) is not None for document in documents for pod in _pods_in(document))


def taken(found: Sequence[Found], file: str, terms: AdmissionTerms) -> TakenObjects:
    """The objects with their pods."""
    pods: list[PodNeeds] = []
    objects: list[Found] = []
    refused: list[tuple[PodNeeds, str]] = []
    for path, document, line_of in found:
        result = translated_object(document, file, path, line_of, TranslationTerms(terms))
        needs = pods_of(result.document, file, path, line_of)
        if result.refused:
            refused += ((pod, _sentence(result)) for pod in needs[:1])
            continue
        pods += with_former(needs, result.document, terms, rewritten=result.translated)
        objects.append((path, result.document, line_of))
        objects += ((path, template, line_of) for template in result.templates)
    return TakenObjects(tuple(pods), tuple(objects), tuple(refused))


def _sentence(result: TranslatedObject) -> str:
    problems = (finding.problem for finding in result.findings)
    return " ".join(
        f"{problem.message}{f' ({problem.hint})' if problem.hint else ''}." for problem in problems
    )


def with_former(
    pods: Sequence[PodNeeds], document: Object, terms: AdmissionTerms, *, rewritten: bool = False
) -> tuple[PodNeeds, ...]:
    """The pods of an object, with what they were before. rewritten: they are so only in the answer."""
    return tuple(
        replace(needs, former=former_pod(pod, terms), rewritten=rewritten)
        for needs, pod in zip(pods, _pods_in(document), strict=True)
    )


def not_rewritten(pod: Object, terms: AdmissionTerms) -> str:
    """Why a pod of the cluster that is written for another system has no claims, a sentence; empty: it is not
    written so.
    """
    outcome = translate(pod, terms)
    if outcome is None:
        return ""
    said = f"It is written for {outcome.system}, and was not rewritten when it was made: "
    if isinstance(outcome, RefusedPod):
        return f"{said}{outcome.sentence}{f' ({outcome.hint})' if outcome.hint else ''}."
    becomes = " and one for ".join(claim.form.words for claim in outcome.claims)
    claims = f" with a claim for {becomes}" if becomes else ""
    return (
        f"{said}partage admission was not there, or the namespace is left out. Make it again, and it gets in"
        f"{claims}; or rewrite its manifest with partage migrate."
    )


def _pods_in(document: Object) -> list[Object]:
    """The pods, or templates of pods, in an object: metadata and spec."""
    found = []
    for keys in pod_specs_at(document):
        above: Any = document
        for key in keys[:-1]:
            above = above[key]
        found.append(above if keys[-1] == "spec" else {"spec": above[keys[-1]]})
    return found
