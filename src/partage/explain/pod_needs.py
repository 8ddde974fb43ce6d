"""Pods as manifests or the API server have them, to what they need of a node, and to what is not judged.

The scheduler may still refuse the pod for that: noun phrases. What no manifest shows (quotas of a namespace,
priorities of other pods) is not here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import ceil
from typing import Any

from msgspec.structs import replace

from partage.errors import InputError, Problem
from partage.explain.decide.amounts import CPU
from partage.explain.decide.pod_and_node import ClaimSource, PodNeeds
from partage.kubernetes.manifests.manifest import gpus_of_whole_pod, name_findings, requests_without_limits
from partage.kubernetes.manifests.node import CheckedProblem, LineOf, ManifestNode
from partage.kubernetes.manifests.pods import (
    BY_NAME,
    BY_TEMPLATE,
    affinity_of,
    object_place,
    pod_claim_findings,
    pod_specs_at,
    tolerations_of,
)
from partage.model.ids import MEMORY_RESOURCE, VENDOR
from partage.model.pod import Container
from partage.text import listed
from partage.units import parse_quantity

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_SHOWN = 4


def not_judged(spec: ManifestNode) -> tuple[str, ...]:
    """Of a pod's spec. Preferences are left out: they keep no pod waiting."""
    return tuple(_not_judged(spec))


def other_pods(top: ManifestNode) -> str:
    """The other pods that the object makes; empty for one pod."""
    count = top.at("spec", "parallelism" if top.at("kind").value == "Job" else "replicas").value
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        return ""
    return f"the other {count - 1} pods that the object makes: one was tried"


def _not_judged(spec: ManifestNode) -> Iterator[str]:
    gates = [str(node.at("name").value) for node in spec.at("schedulingGates").items]
    if gates:
        yield f"scheduling gates ({listed(gates, _SHOWN)}): nothing places the pod before they are removed"
    if spec.at("affinity", "podAffinity", _REQUIRED).items:
        yield "required nearness to other pods (podAffinity)"
    if spec.at("affinity", "podAntiAffinity", _REQUIRED).items:
        yield "required distance from other pods (podAntiAffinity)"
    spread = spec.at("topologySpreadConstraints").items
    if any(node.at("whenUnsatisfiable").value != "ScheduleAnyway" for node in spread):
        yield "how its pods have to be spread (topologySpreadConstraints)"
    claimed = [node for node in spec.at("volumes").items if _is_claim(node)]
    if claimed:
        names = [str(node.at("name").value) for node in claimed]
        yield f"volumes that may be tied to some nodes ({listed(names, _SHOWN)})"
    yield from _of_containers(spec)
    if (runtime := spec.at("runtimeClassName").value) and not spec.at("overhead").keys:
        yield f"the nodes and the overhead of the runtime class {runtime}"
    if (scheduler := spec.at("schedulerName").value) not in (None, "", "default-scheduler"):
        yield f"the rules of the scheduler {scheduler}"


def _of_containers(spec: ManifestNode) -> Iterator[str]:
    containers = [node for key in ("initContainers", "containers") for node in spec.at(key).items]
    if any(port.at("hostPort").value for container in containers for port in container.at("ports").items):
        yield "ports of the node (hostPort)"


def _is_claim(volume: ManifestNode) -> bool:
    return bool({"persistentVolumeClaim", "ephemeral"}.intersection(volume.keys))


def pods_of(
    document: Mapping[str, Any], file: str = "", path: str = "", line_of: LineOf | None = None
) -> tuple[PodNeeds, ...]:
    """The pod, or a pod of each kind that a Deployment, Job, PyTorchJob and the like make; () for any other
    object.

    Raises InputError with all amounts and names that cannot be read, and what the API server would refuse.
    """
    top = object_place(document, file, path, line_of)
    found = []
    namespace, name = (_if_text(top.at("metadata", key).value) for key in ("namespace", "name"))
    places = pod_specs_at(document)
    for keys in places:
        spec = top.at(*keys)
        title = top.owner if len(places) == 1 else f"{top.owner}, {spec.path.removeprefix(f'{path}.')}"
        pod = _SpecReader(spec).pod(namespace, name, title)
        others = other_pods(top)
        found.append(replace(pod, not_judged=(*pod.not_judged, others)) if others else pod)
    return tuple(found)


def with_gpu_resources(pod: PodNeeds, offered: Collection[str]) -> PodNeeds:
    """The pod, with the resources that GPUs are behind. offered: names that nodes offer."""
    asked = {name for container in pod.containers for name in container.requests}
    ours = {name for name in asked if name.startswith(f"{VENDOR}/") or name == MEMORY_RESOURCE}
    return replace(pod, gpu_resources=frozenset(ours | (asked & set(offered))))


def amount_of(resource: str, value: object) -> int:
    """A quantity as a whole number: CPUs in thousandths, memory in bytes. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not an amount")  # noqa: TRY004 - told as every wrong amount
    amount = parse_quantity(str(value).strip()) * (1000 if resource == CPU else 1)
    if "/" in resource and amount != int(amount):
        raise ValueError(f"{value!r} is not a whole number")
    return ceil(amount)


def _if_text(value: object) -> str:
    return value if isinstance(value, str) else ""


class _SpecReader:
    """Reads one pod spec, and collects what is wrong in it."""

    def __init__(self, spec: ManifestNode) -> None:
        self._spec = spec
        self._problems: list[Problem] = []

    def pod(self, namespace: str, name: str, title: str) -> PodNeeds:
        spec = self._spec
        inits = [self._init(place) for place in spec.at("initContainers").items]
        mains = [self._container(place) for place in spec.at("containers").items]
        if not mains:
            self._wrong(spec.at("containers"), "the pod has no containers", "a Pod, Deployment, Job, ...")
        self._refused(gpus_of_whole_pod(spec, None))
        pod_needs = PodNeeds(
            namespace=namespace,
            name=name,
            title=title,
            containers=(*inits, *mains),
            node=self._text(spec.at("nodeName")),
            selector=self._texts(spec.at("nodeSelector")),
            affinity=affinity_of(spec, self._text),
            tolerations=tolerations_of(spec, self._text),
            overhead=self._amounts(spec.at("overhead")),
            whole=self._whole((*inits, *mains)),
            not_judged=not_judged(spec),
            claim_sources=tuple(self._claims()),
        )
        if self._problems:
            raise InputError(self._problems)
        return pod_needs

    def _init(self, place: ManifestNode) -> Container:
        sidecar = place.at("restartPolicy").value == "Always"
        return replace(self._container(place), kind="sidecar" if sidecar else "init")

    def _container(self, place: ManifestNode) -> Container:
        limits, requests = place.at("resources", "limits"), place.at("resources", "requests")
        for amounts_in in (limits, requests):
            self._refused(name_findings(amounts_in, None))
        self._refused(requests_without_limits(place, None))
        # A limit without a request is the request, too.
        amounts = {**self._amounts(limits), **self._amounts(requests)}
        return Container(self._text(place.at("name")) or "without a name", amounts)

    def _whole(self, containers: Collection[Container]) -> dict[str, int]:
        """What is asked for the pod as a whole. A limit is the request where no container asks for any."""
        limits, requests = (self._amounts(self._spec.at("resources", key)) for key in ("limits", "requests"))
        asked = {name for container in containers for name in container.requests}
        return {**{name: amount for name, amount in limits.items() if name not in asked}, **requests}

    def _refused(self, findings: Iterable[CheckedProblem]) -> None:
        self._problems += [finding.problem for finding in findings]

    def _amounts(self, place: ManifestNode) -> dict[str, int]:
        found = {}
        for key in place.keys:
            try:
                found[key] = amount_of(key, place.at(key).value)
            except ValueError as error:
                self._wrong(place.at(key), str(error), "correct it")
        return {key: amount for key, amount in found.items() if amount}

    def _claims(self) -> Iterator[ClaimSource]:
        self._refused(pod_claim_findings(self._spec))
        for place in self._spec.at("resourceClaims").items:
            by_name, by_template = self._text(place.at(BY_NAME)), self._text(place.at(BY_TEMPLATE))
            kind = "ResourceClaim" if by_name else "ResourceClaimTemplate"
            yield ClaimSource(self._text(place.at("name")), kind, by_name or by_template)

    def _texts(self, place: ManifestNode) -> dict[str, str]:
        return {key: self._text(place.at(key)) for key in place.keys}

    def _text(self, place: ManifestNode) -> str:
        if place.value is None or isinstance(place.value, str):
            return place.value or ""
        self._wrong(place, f"{place.value!r} is not a text", "write it in quotes")
        return ""

    def _wrong(self, place: ManifestNode, message: str, hint: str = "") -> None:
        self._problems.append(place.error(message, hint).problem)
