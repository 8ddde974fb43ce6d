"""Manifests of pods that were written for other systems: what becomes of each object, or why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from partage.admission.decide.pod import PatchStep, patched
from partage.admission.decide.quotas import NamespaceQuota, uncounted
from partage.admission.decide.settings import DialectSettings, with_hami_config
from partage.admission.decide.template import ClaimForm
from partage.admission.decide.translate import (
    AdmissionTerms,
    ClaimOfPod,
    RefusedPod,
    TranslatedPod,
    translate,
)
from partage.claims.check import ClaimTerms, claim_findings
from partage.claims.decide.nearest import nearest
from partage.claims.decide.scheduling import PodClaim, Unplaced, place
from partage.claims.manifests import ClaimObjectReader
from partage.codec.yaml_document import read_document
from partage.errors import InputError, Problem
from partage.kubernetes.manifests.input_files import ManifestInput, Paper, objects
from partage.kubernetes.manifests.node import CheckedProblem, Keys, LineOf, ManifestNode
from partage.kubernetes.manifests.pods import is_own_kind, object_place, pod_specs_at
from partage.values import Frozen


class TranslationTerms(Frozen):
    """What objects are translated by. judged_by: what the claims are judged by; None: they are not. hint: how
    to get what is told; may be empty. quotas: that are known, with their namespace; empty: any.
    """

    admission: AdmissionTerms
    judged_by: ClaimTerms | None = None
    hint: str = ""
    quotas: tuple[tuple[str, NamespaceQuota], ...] = ()


class TranslatedObject(Frozen):
    """An object with what became of its pods. document: as it is now. forms: the templates that it needs.
    namespace: of both. findings: what is said about it. translated, refused: whether one of its pods was.
    """

    document: Mapping[str, Any]
    forms: tuple[ClaimForm, ...] = ()
    namespace: str = ""
    findings: tuple[CheckedProblem, ...] = ()
    refused: bool = False

    @property
    def templates(self) -> list[dict[str, Any]]:
        """The objects that it needs beside it."""
        return [form.manifest(self.namespace) for form in self.forms]

    @property
    def translated(self) -> bool:
        """Whether a pod of it was."""
        return bool(self.findings) and not self.refused


def translated_object(
    document: Mapping[str, Any],
    file: str,
    path: str,
    line_of: LineOf | None,
    terms: TranslationTerms,
) -> TranslatedObject:
    """One object."""
    top = object_place(document, file, path, line_of)
    return _ObjectTranslator(top, terms).run()


def settings_of(papers: Iterable[Paper], settings: DialectSettings) -> DialectSettings:
    """With what HAMi's ConfigMap among the files says."""
    for paper in papers:
        if isinstance(paper, ManifestInput):
            for _, document, _ in objects(paper):
                settings = _with_config_map(settings, document)
    return settings


def _with_config_map(settings: DialectSettings, document: Mapping[str, Any]) -> DialectSettings:
    data = document.get("data")
    if document.get("kind") != "ConfigMap" or not isinstance(data, Mapping):
        return settings
    for text in data.values():
        if isinstance(text, str) and "resourceCountName" in text:
            try:
                settings = with_hami_config(settings, read_document(text.encode(), "").value)
            except InputError:
                continue
    return settings


def quotas_in(papers: Iterable[Paper]) -> tuple[tuple[str, NamespaceQuota], ...]:
    """The ResourceQuotas among the files, each with its namespace."""
    found = []
    for paper in papers:
        for _, document, _ in objects(paper) if isinstance(paper, ManifestInput) else ():
            place = ManifestNode("", "", document, None)
            if document.get("kind") == "ResourceQuota":
                namespace, name = (place.at("metadata", key).value or "" for key in ("namespace", "name"))
                limits = frozenset(place.at("spec", "hard").keys)
                found.append((str(namespace), NamespaceQuota(str(name), limits)))
    return tuple(found)


class _ObjectTranslator:
    def __init__(self, top: ManifestNode, terms: TranslationTerms) -> None:
        self._top = top
        self._document = top.value
        self._terms, self._claim_terms, self._hint = terms.admission, terms.judged_by, terms.hint
        self._quotas = terms.quotas
        self._steps: list[PatchStep] = []
        self._forms: dict[str, ClaimForm] = {}
        self._findings: list[CheckedProblem] = []
        self._refused = False

    def run(self) -> TranslatedObject:
        places = pod_specs_at(self._document)
        for keys in places:
            self._pod(keys, several=len(places) > 1)
        namespace = self._top.at("metadata", "namespace").value
        done = bool(self._steps) and not self._refused
        return TranslatedObject(
            patched(self._document, self._steps) if done else self._document,
            tuple(self._forms.values()) if done else (),
            namespace if isinstance(namespace, str) else "",
            tuple(self._findings),
            self._refused,
        )

    def _pod(self, keys: Keys, *, several: bool) -> None:
        above = keys[:-1]
        place = self._top.at(*above) if above else self._top
        pod, owner = place.value, self._top.at("metadata", "annotations").value
        if keys[-1] != "spec" or not isinstance(pod, Mapping):
            pod = {"spec": self._top.at(*keys).value}  # a pod without metadata of its own
        # A pod's own annotations are read as such, those of what makes it beside them.
        outcome = translate(pod, self._terms, owner if above and isinstance(owner, Mapping) else None)
        spec = self._top.at(*keys)
        if several:
            spec = replace(spec, owner=f"{spec.owner}, {spec.path}")
        match outcome:
            case RefusedPod():
                self._refuse(spec, outcome)
            case TranslatedPod() if outcome.moved and not is_own_kind(self._document):
                return  # nothing in its pod is in another system's words
            case TranslatedPod() if not is_own_kind(self._document):
                kind, version = self._document.get("kind"), self._document.get("apiVersion")
                self._refuse(
                    spec,
                    RefusedPod(
                        outcome.system,
                        f"{kind} of {version} is not Kubernetes' own, and is read but not converted: each "
                        f"pod would ask for {_asked(outcome)}",
                        "a Job, Deployment or StatefulSet with the same pod",
                    ),
                )
            case TranslatedPod():
                self._translated(spec, above, outcome)

    def _refuse(self, spec: ManifestNode, refused: RefusedPod) -> None:
        self._refused = True
        if refused.unknown:
            said = f"written for {refused.system}: {refused.sentence}"
            self._findings.append(spec.warning(said, refused.hint))
        else:
            said = f"written for {refused.system}, and refused: {refused.sentence}"
            self._findings.append(spec.error(said, refused.hint))

    def _translated(self, spec: ManifestNode, above: Keys, outcome: TranslatedPod) -> None:
        becomes = f"becomes a pod with {_asked(outcome)}" if outcome.claims else "becomes a pod without GPUs"
        if outcome.moved:
            becomes = "keeps its resources, which a device plugin has to list"
        self._findings.append(spec.warning(f"written for {outcome.system}: {becomes}", self._hint))
        self._findings += (spec.warning(text) for text in outcome.warnings)
        namespace = self._top.at("metadata", "namespace").value or "default"
        quotas = [quota for of, quota in self._quotas if of in ("", namespace)]
        if (lost := uncounted(outcome, str(namespace), quotas)) is not None:
            self._findings.append(spec.warning(*lost))
        prefix = "".join(f"/{key}" for key in above)
        self._steps += (replace(step, path=prefix + step.path) for step in outcome.patch)
        judged: list[CheckedProblem] = []
        for form, home in {claim.form.name: (claim.form, claim.home) for claim in outcome.claims}.values():
            self._forms[form.name] = form
            judged += self._judged(spec, form, home)
        if not any(finding.problem.severity == "error" for finding in judged):
            judged += self._together(spec, outcome.claims)
        self._findings += dict.fromkeys(judged)

    def _judged(self, spec: ManifestNode, form: ClaimForm, home: str) -> Iterator[CheckedProblem]:
        """What is wrong with the claim on the machine: told of the pod, with what makes a home for it."""
        if self._claim_terms is None:
            return
        for found in claim_findings(form.manifest(), spec.file, "", None, self._claim_terms):
            problem: Problem = found.problem
            said = problem.message.partition(": ")[2]
            hint = home if problem.severity == "error" else problem.hint
            build = spec.error if problem.severity == "error" else spec.warning
            yield build(f"{form.words}: {said}", hint, here=found.here)

    def _together(self, spec: ManifestNode, claims: Sequence[ClaimOfPod]) -> Iterator[CheckedProblem]:
        """Whether what each claim finds there is enough for all of them."""
        terms = self._claim_terms
        if terms is None or terms.book is None or len(claims) < 2:
            return
        asked = [PodClaim(claim.name, ClaimObjectReader(claim.form.manifest()).spec()) for claim in claims]
        placed = place(asked, terms.book, terms.classes)
        if isinstance(placed, Unplaced):
            said = f"not all claims of the pod find a place on one node: {nearest(placed)}"
            yield spec.error(said, "ask for less, or use two pods", here=True)


def _asked(outcome: TranslatedPod) -> str:
    """``a claim for memory 3000Mi of gpu.partage.dev (main)``."""
    return " and ".join(
        f"a claim for {claim.form.words} ({', '.join(user.name for user in claim.containers)})"
        for claim in outcome.claims
    )
