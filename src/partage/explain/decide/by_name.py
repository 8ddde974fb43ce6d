"""GPUs that a pod asks for by a resource's name, and gets by a claim.

The scheduler decides it node by node: where the device plugin lists any of the name, it gives them; else a
DeviceClass with the name does (Kubernetes 1.37, extendeddynamicresources.go and noderesources/fit.go).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from partage.claims.decide.scheduling import PodClaim
from partage.claims.model.claim import ClaimRequest, ClaimSpec, DeviceAsk, DeviceClass
from partage.explain.decide.node import NodeView
from partage.explain.decide.pod import PodNeeds
from partage.model.pod import Container
from partage.model.share import resources_of

IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Before the name of a class: every class can be asked for by this name."""
CLAIM_BY_NAME = "extended-resources"


def class_named(name: str, classes: Mapping[str, DeviceClass]) -> str:
    """The class from which a claim gets what is asked for by this name; empty: there is none."""
    if name.startswith(IMPLICIT) and name.removeprefix(IMPLICIT) in classes:
        return name.removeprefix(IMPLICIT)
    return min(
        (device_class.name for device_class in classes.values() if device_class.extended == name), default=""
    )


def with_claim_by_name(pod: PodNeeds, node: NodeView) -> PodNeeds:
    """The pod with the claim that the scheduler would make for it on this node, if it makes one."""
    requests: list[ClaimRequest] = []
    containers = []
    for number, container in enumerate(pod.containers):
        by_claim = {name: found for name in container.requests if (found := _class_on(name, node))}
        for place, (name, device_class) in enumerate(by_claim.items()):
            called = f"container-{number}-request-{place}"
            ask = DeviceAsk(called, device_class, count=container.requests[name])
            requests.append(ClaimRequest(called, (ask,)))
        containers.append(_without(container, by_claim))
    if not requests:
        return pod
    claim = PodClaim(CLAIM_BY_NAME, ClaimSpec("the claim for its limits", tuple(requests)), pod.namespace)
    return replace(pod, containers=tuple(containers), claims=(*pod.claims, claim))


def _class_on(name: str, node: NodeView) -> str:
    counted = node.counted.get(name)
    listed = (
        counted is not None and counted.total > 0 if node.in_cluster else name in resources_of(node.offer)
    )
    return "" if listed else class_named(name, node.classes)


def _without(container: Container, names: Mapping[str, str]) -> Container:
    kept = {name: amount for name, amount in container.requests.items() if name not in names}
    return replace(container, requests=kept)
