"""The claims of pods: from manifests, or from a cluster, with what other claims have there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import field
from msgspec.structs import replace

from partage.claims.decide.book import ClaimBook, DeviceKey, Taking, counters_in, devices_in
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
from partage.explain.decide.node import NodeView
from partage.explain.decide.pod import ClaimSource, PodNeeds
from partage.kubernetes.manifests.node import LineOf
from partage.units import parse_quantity
from partage.values import Frozen

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
    on_node: dict[str, list[SliceSpec]] = {}
    for row in found.slices:
        if (spec := _slice(row)) is not None:
            on_node.setdefault(spec.node_name, []).append(spec)
    of_pool: dict[str, list[Taking]] = {}
    for row in found.claims:
        for taking in _takings(row):
            of_pool.setdefault(taking.device[1], []).append(taking)
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
