"""Amounts of GPU memory of a whole pod: what its containers cannot have together, or only by luck.

Pure: parsed documents in, findings out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from partage.errors import InputError
from partage.explain.decide.never import Admission
from partage.explain.decide.pod_and_node import PodNeeds
from partage.explain.pod_needs import pods_of
from partage.kubernetes.manifests.manifest import Resources, is_by_memory
from partage.kubernetes.manifests.node import CheckedProblem, LineOf, ManifestNode
from partage.kubernetes.manifests.pods import object_place, pod_specs_at
from partage.model.ids import GpuUuid, ResourceName
from partage.model.policy import AllocationPolicy
from partage.model.share import DeviceOffer, Resource
from partage.units import format_bytes


def amount_findings(
    document: Mapping[str, Any],
    file: str,
    path: str = "",
    offered: Resources | None = None,
    line_of: LineOf | None = None,
) -> Iterator[CheckedProblem]:
    """What is wrong with the amounts of each of one object's pods together. An amount that cannot be read is
    left to ``findings``. offered: None if not known.
    """
    try:
        pods = pods_of(document, file, path, line_of)
    except InputError:
        return
    top = object_place(document, file, path, line_of)
    for pod, keys in zip(pods, pod_specs_at(document), strict=True):
        yield from _of_pod(pod, top.at(*keys), offered or {})


def _of_pod(pod: PodNeeds, spec: ManifestNode, offered: Resources) -> Iterator[CheckedProblem]:
    asked = dict.fromkeys(name for container in pod.containers for name in container.requests)
    for name in asked:
        if is_by_memory(name, offered):
            yield from _bound(pod, spec, name)
            if (resource := offered.get(ResourceName(name))) is not None:
                yield from _together(pod, spec, resource)


def _bound(pod: PodNeeds, spec: ManifestNode, name: str) -> Iterator[CheckedProblem]:
    """The kubelet gives the units of ordinary init containers to the containers after them, in their order.
    One that gets a part of its amount so has to find the rest on the same GPU.
    """
    again = 0
    for place, container in zip(_places(spec), pod.containers, strict=True):
        amount = container.requests.get(name, 0)
        had = min(again, amount)
        if 0 < had < amount:
            yield place.at("resources", "limits", name).warning(
                f"{container.words} asks for {amount}, and gets {had} of them from an init container before "
                "it: the rest has to be free on the same GPU, else the node refuses the pod",
                f"let the init containers ask for nothing, or for {_first_of(pod, name)}",
            )
            return
        again = max(again, amount) if container.kind == "init" else again - had


def _places(spec: ManifestNode) -> Iterator[ManifestNode]:
    for group in ("initContainers", "containers"):
        yield from spec.at(group).items


def _first_of(pod: PodNeeds, name: str) -> str:
    first = next((container for container in pod.lasting if container.requests.get(name)), None)
    return "as little" if first is None else f"{first.requests[name]}, as {first.words}"


def _together(pod: PodNeeds, spec: ManifestNode, resource: Resource) -> Iterator[CheckedProblem]:
    """On a node where nothing is held. An amount that no GPU has at all is told of its container."""
    offer: dict[GpuUuid, tuple[DeviceOffer, ...]] = {}
    for row in resource.offerings:
        offer[row.gpu] = (*offer.get(row.gpu, ()), row)
    name = resource.name
    alone = replace(
        pod,
        containers=tuple(
            replace(container, requests={key: n for key, n in container.requests.items() if key == name})
            for container in pod.containers
        ),
        gpu_resources=frozenset({str(name)}),
    )
    free = {name: [share for row in resource.offerings for share in row.share_ids]}
    largest = max(row.count for row in resource.offerings)
    if any(container.requests.get(name, 0) > largest for container in alone.containers):
        return
    refusal = Admission(offer, (), AllocationPolicy.DISTRIBUTED).refusal(alone, free, {})
    if refusal is None:
        return
    unit = format_bytes(resource.offerings[0].memory_bytes)
    if refusal.container is None or not refusal.at_node:
        text = (
            f"asks for {alone.totals[name]} x {unit} of GPU memory in all, and the node offers "
            f"{resource.count}: the pod would stay pending"
        )
        yield spec.error(text, "ask for less, or use two pods", here=True)
        return
    text = (
        f"{refusal.container.words} asks for {refusal.amount} x {unit} of GPU memory, and beside what the "
        "other containers of the pod get no GPU has so much: the pod would fail, even if nothing else is held"
    )
    yield spec.error(text, "ask for less, or use two pods", here=True)
