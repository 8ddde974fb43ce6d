"""The claims of pods, from manifests or a cluster, with what other claims have there; and pods that were
written for other systems: in manifests taken as ``partage admission`` would have them, in a cluster read back
from what it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import field
from msgspec.structs import replace

from partage.admission.decide.former import former_pod
from partage.admission.decide.template import sizes_of
from partage.admission.decide.translate import AdmissionTerms, RefusedPod, translate
from partage.admission.manifests import TranslatedObject, TranslationTerms, translated_object
from partage.claims.decide.book import BookDevice, ClaimBook, DeviceKey, Taking, counters_in, devices_in
from partage.claims.decide.classes import chart_classes
from partage.claims.decide.scheduling import PodClaim, not_evaluated
from partage.claims.manifests import (
    CLASS,
    KINDS,
    TEMPLATE,
    ClaimObjectReader,
    is_claim_object,
    names_in,
    read_or_refuse,
)
from partage.claims.model.claim import ClaimSpec, DeviceClass
from partage.claims.model.names import NAMES_OF_DRIVER, OWN_NAMES, ClaimNames
from partage.claims.model.slices import ServerVersion, SliceSpec, slice_of_json
from partage.codec.values import CodecError
from partage.explain.cluster_views import Object, rows_at
from partage.explain.decide.claims import claim_book
from partage.explain.decide.pod_and_node import ClaimSource, NodeView, PodNeeds
from partage.explain.pod_needs import pods_of
from partage.kubernetes.manifests.node import LineOf
from partage.kubernetes.manifests.pods import pod_specs_at
from partage.plan.offer.select import GeometryOf
from partage.units import parse_quantity
from partage.values import Frozen, grouped

_SpecKey = tuple[str, str, str]
"""Kind, namespace (empty: not said) and name."""

NOT_SERVED = "this cluster does not serve resource.k8s.io/v1, by which pods have claims"
_NOTHING_PUBLISHED = (
    "nothing of the node is published for claims: its policy has no 'via: claims', or dra.enabled is off in "
    "the chart, or its agent says why (partage show, /healthz: claims-not-served)"
)


class KnownClaims(Frozen):
    """Claims and templates, and the classes that they can name. pools: of claims that have devices: the pool,
    by ``namespace/name``. made: the claims that were made for a pod of the cluster, by the pod's name for
    each. names: of the driver that they mean, where no node says it.
    """

    specs: Mapping[_SpecKey, ClaimSpec] = field(default_factory=dict)
    classes: Mapping[str, DeviceClass] = field(default_factory=chart_classes)
    pools: Mapping[str, str] = field(default_factory=dict)
    made: Mapping[str, str] = field(default_factory=dict)
    names: ClaimNames = OWN_NAMES

    def spec(self, kind: str, namespace: str, name: str) -> ClaimSpec | None:
        """What the object asks for; None: there is none. One that says no namespace is in any."""
        return self.specs.get((kind, namespace, name)) or self.specs.get((kind, "", name))

    def over(self, other: KnownClaims) -> KnownClaims:
        """With what ``other`` has beside it; what is in both is as here, but for classes of the chart."""
        of_chart = chart_classes(self.names)
        written = {name: one for name, one in self.classes.items() if one != of_chart.get(name)}
        classes = {**self.classes, **other.classes, **written}
        return replace(other, specs={**other.specs, **self.specs}, classes=classes)


def claims_of_objects(found: Iterable[tuple[str, Object, LineOf]], file: str) -> KnownClaims:
    """The claims, templates and classes among the objects of a manifest, beside the chart's classes. Raises
    InputError with everything that is wrong in them.
    """
    kept = list(found)
    names = names_in(document for _, document, _ in kept)
    specs: dict[_SpecKey, ClaimSpec] = {}
    classes = chart_classes(names)
    for path, document, line_of in kept:
        if not is_claim_object(document):
            continue
        read = read_or_refuse(ClaimObjectReader(document, file, path, line_of, names))
        if isinstance(read, DeviceClass):
            classes[read.name] = read
        else:
            specs[_key(document)] = read
    return KnownClaims(specs, classes, names=names)


def _key(document: Object) -> _SpecKey:
    metadata = document.get("metadata")
    about = metadata if isinstance(metadata, Mapping) else {}
    return str(document.get("kind")), str(about.get("namespace") or ""), str(about.get("name") or "")


def with_claims(pod: PodNeeds, known: KnownClaims) -> PodNeeds:
    """The pod with what its claims ask for."""
    claims, missing, pools = [], [], {}
    for source in pod.claim_sources:
        kind, name = source.kind, source.object_name
        if made := known.made.get(source.name):
            kind, name = "ResourceClaim", made
        spec = known.spec(kind, pod.namespace, name)
        pool = known.pools.get(f"{pod.namespace}/{name}") if kind != TEMPLATE else None
        if pool is not None:
            pools[f"{kind} {name}"] = pool
        elif spec is None:
            missing.append(ClaimSource(source.name, kind, name))
        else:
            claims.append(PodClaim(source.name, spec, pod.namespace))
    doubts = tuple(dict.fromkeys(not_evaluated(claims, known.classes)))
    return replace(
        pod,
        claims=tuple(claims),
        claims_missing=tuple(missing),
        claims_at=pools,
        not_judged=(*pod.not_judged, *doubts),
    )


# --- a cluster ---------------------------------------------------------------------------------------


class ClaimObjects(Frozen):
    """What a cluster has for claims, as JSON. trouble: why there is nothing, a clause."""

    slices: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    templates: Sequence[Object] = ()
    classes: Sequence[Object] = ()
    server: str = ""
    trouble: str = ""


def claims_of_cluster(found: ClaimObjects, pod: Object | None = None) -> KnownClaims:
    """What is known there. pod: of the cluster, whose claims are meant; None: of a manifest.

    What cannot be read is left out: the API server has taken it.
    """
    specs: dict[_SpecKey, ClaimSpec] = {}
    classes: dict[str, DeviceClass] = {}
    for rows, kind in zip((found.claims, found.templates, found.classes), KINDS, strict=True):
        for row in rows:
            reader = ClaimObjectReader({"apiVersion": "resource.k8s.io/v1", **row, "kind": kind})
            if kind == CLASS:
                read = reader.device_class()
                classes[read.name] = read
            else:
                specs[_key({**row, "kind": kind})] = reader.spec()
    pools = {
        f"{key[1]}/{key[2]}": results[0][0][1]
        for row in found.claims
        if (results := _results(row))
        for key in [_key(row)]
    }
    made = {
        str(row.get("name")): str(row.get("resourceClaimName") or "")
        for row in rows_at(pod or {}, "status", "resourceClaimStatuses")
    }
    return KnownClaims(specs, classes, pools, made)


def with_books(views: Sequence[NodeView], found: ClaimObjects, known: KnownClaims) -> tuple[NodeView, ...]:
    """The nodes of a cluster with their devices for claims, and who has them."""
    on_node = grouped((spec.node_name, spec) for row in found.slices if (spec := _slice(row)) is not None)
    of_pool = grouped((taking.device[1], taking) for row in found.claims for taking in _takings(row))
    trouble = found.trouble or _too_old(found.server)
    views_with = []
    for view in views:
        slices = on_node.get(view.name, ())
        devices = devices_in(slices)
        pools = dict.fromkeys(device.pool for device in devices)
        here = tuple(taking for pool in pools for taking in of_pool.get(pool, ()))
        own = any(device.driver in NAMES_OF_DRIVER for device in devices)
        why = "" if own else trouble or view.claims_trouble or _NOTHING_PUBLISHED
        book = ClaimBook(devices, here, trouble=why, counters=counters_in(slices))
        views_with.append(replace(view, published=book, classes=known.classes, claims_trouble=why))
    return tuple(views_with)


def _too_old(server: str) -> str:
    try:
        return ServerVersion.parse(server).too_old if server else ""
    except ValueError:
        return ""


def _slice(row: Object) -> SliceSpec | None:
    """None: of no node, or in a shape that is not known here."""
    try:
        return slice_of_json(row.get("spec"))
    except CodecError:
        return None


def _takings(claim: Object) -> list[Taking]:
    _, namespace, name = _key(claim)
    pods = tuple(
        f"{namespace}/{row.get('name')}"
        for row in rows_at(claim, "status", "reservedFor")
        if row.get("resource") == "pods"
    )
    who = f"claim {namespace}/{name}"
    found = []
    for key, row in _results(claim):
        if row.get("adminAccess") is True:
            continue
        amounts = {}
        for capacity, value in (row.get("consumedCapacity") or {}).items():
            try:
                amounts[str(capacity)] = parse_quantity(str(value))
            except ValueError:
                continue
        found.append(Taking(key, who, pods, amounts))
    return found


def _results(claim: Object) -> list[tuple[DeviceKey, Object]]:
    return [
        ((str(row.get("driver")), str(row.get("pool")), str(row.get("device"))), row)
        for row in rows_at(claim, "status", "allocation", "devices", "results")
    ]


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
