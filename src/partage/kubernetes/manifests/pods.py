"""Kubernetes objects in files: which documents are objects, where the pods of an object are, to which nodes
such a pod may go, and what Kubernetes would refuse of the claims that it names. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from partage.kubernetes.decide.node_rules import LabelRule, Term, Toleration
from partage.kubernetes.manifests.node import CheckedProblem, Keys, LineOf, ManifestNode
from partage.text import listed

POD_SPEC_AT = {
    "Pod": ("spec",),
    "PodTemplate": ("template", "spec"),
    "Deployment": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
    "DaemonSet": ("spec", "template", "spec"),
    "ReplicaSet": ("spec", "template", "spec"),
    "ReplicationController": ("spec", "template", "spec"),
    "Job": ("spec", "template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
}
"""The path to the pod in the kinds of Kubernetes itself."""
_OWN_GROUPS = ("", "apps", "batch")
"""The groups of these kinds: Volcano has a Job, too, whose pods are elsewhere."""

_DEEPEST = 12
"""Levels that are looked through in objects of other kinds. The deepest known pod (JobSet) is 8 down."""


def is_manifest(document: object) -> bool:
    """Whether this looks like a Kubernetes object (ours carry ``apiVersion: partage/v1``), or is meant as
    one: a Pod whose apiVersion was forgotten.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("kind"), str):
        return False
    version = document.get("apiVersion")
    if version is None:
        return document["kind"] in POD_SPEC_AT
    return isinstance(version, str) and not version.startswith("partage/")


def objects_of(document: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a document with their paths: itself, or the items of a List. Items of a PodList, as the
    API server sends it, do not say that they are Pods.
    """
    kind = str(document.get("kind"))
    if kind.endswith("List") and isinstance(document.get("items"), list):
        of_all = {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")}
        for number, each in enumerate(document["items"]):
            bare = of_all["kind"] and isinstance(each, Mapping) and "kind" not in each
            item = {**of_all, **each} if bare else each
            if is_manifest(item):
                yield f"{path}.items[{number}]".lstrip("."), item
    else:
        yield path, document


def is_own_kind(document: Mapping[str, Any]) -> bool:
    """Whether it is a pod, or Kubernetes itself makes pods of it; also where the apiVersion was forgotten."""
    version = document.get("apiVersion")
    group = version.rpartition("/")[0] if isinstance(version, str) else ""
    return document.get("kind") in POD_SPEC_AT and group in _OWN_GROUPS


def pod_specs_at(document: Mapping[str, Any]) -> tuple[Keys, ...]:
    """The keys that lead to the specs of the pods that an object makes; () if it makes none.

    Kinds that Kubernetes does not have itself (PyTorchJob, RayCluster, JobSet, InferenceService, ...) can
    make several pods: what has a list of containers is one.
    """
    if is_own_kind(document):
        return (POD_SPEC_AT[document["kind"]],)
    return tuple(_pods_below(document.get("spec"), ("spec",)))


def _pods_below(value: object, keys: Keys) -> Iterator[Keys]:
    if len(keys) > _DEEPEST:
        return
    if isinstance(value, Mapping):
        if _is_pod_spec(value):
            yield keys
            return
        for key, inner in value.items():
            yield from _pods_below(inner, (*keys, str(key)))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _pods_below(inner, (*keys, number))


def _is_pod_spec(value: Mapping[str, Any]) -> bool:
    rows = value.get("containers")
    return (
        isinstance(rows, list)
        and bool(rows)
        and all(isinstance(row, Mapping) and ("image" in row or "resources" in row) for row in rows)
    )


def object_name(document: Mapping[str, Any]) -> str:
    """``Deployment/train``, ``Deployment/train (namespace team-a)``."""
    metadata = document.get("metadata")
    about = metadata if isinstance(metadata, Mapping) else {}
    name = next((text for key in ("name", "generateName") if isinstance(text := about.get(key), str)), "")
    namespace = f" (namespace {about['namespace']})" if isinstance(about.get("namespace"), str) else ""
    return "/".join(part for part in (str(document["kind"]), name) if part) + namespace


def object_place(document: Mapping[str, Any], file: str, path: str, line_of: LineOf | None) -> ManifestNode:
    """An object as a place in a file. path: of the object."""
    return ManifestNode(file, path, document, line_of, owner=object_name(document))


TextOf = Callable[[ManifestNode], str]
"""The text of a place; empty where there is none."""

_AFFINITY = (
    "affinity",
    "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
)


def affinity_of(spec: ManifestNode, text_of: TextOf) -> tuple[Term, ...] | None:
    """Terms of which one has to hold; None: there is none."""
    place = spec.at(*_AFFINITY)
    return tuple(tuple(_rules(term, text_of)) for term in place.items) if place.items else None


def _rules(term: ManifestNode, text_of: TextOf) -> Iterator[LabelRule]:
    for part, of_field in (("matchExpressions", False), ("matchFields", True)):
        for rule in term.at(part).items:
            values = tuple(text_of(value) for value in rule.at("values").items)
            key, operator = text_of(rule.at("key")), text_of(rule.at("operator"))
            yield LabelRule(key, operator, values, of_field)


def tolerations_of(spec: ManifestNode, text_of: TextOf) -> tuple[Toleration, ...]:
    """In the order of the spec."""
    return tuple(_toleration(place, text_of) for place in spec.at("tolerations").items)


def _toleration(place: ManifestNode, text_of: TextOf) -> Toleration:
    key, value, effect = (text_of(place.at(word)) for word in ("key", "value", "effect"))
    return Toleration(key, text_of(place.at("operator")) or "Equal", value, effect)


BY_NAME, BY_TEMPLATE = "resourceClaimName", "resourceClaimTemplateName"


def pod_claim_findings(spec: ManifestNode) -> Iterator[CheckedProblem]:
    """Claims from nothing or from two objects; containers that name a claim which the pod does not have."""
    places = spec.at("resourceClaims").items
    names = sorted(str(place.at("name").value) for place in places)
    for place in places:
        if (place.at(BY_NAME).value is None) is (place.at(BY_TEMPLATE).value is None):
            yield place.error(
                f"claim {place.at('name').value or '?'} needs one of {BY_NAME} and {BY_TEMPLATE}",
                "the name of an object in the pod's namespace",
            )
    for group in ("initContainers", "containers"):
        for container in spec.at(group).items:
            for claim in container.at("resources", "claims").items:
                if claim.at("name").value not in names:
                    yield claim.error(
                        f"the pod has no claim {claim.at('name').value} under resourceClaims",
                        f"it has: {listed(names) or 'none'}",
                    )
