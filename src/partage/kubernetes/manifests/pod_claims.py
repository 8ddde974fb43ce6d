"""The claims that a pod's spec names: what Kubernetes would refuse of them."""

from __future__ import annotations

from collections.abc import Iterator

from partage.kubernetes.manifests.node import CheckedProblem, ManifestNode
from partage.text import listed

_SHOWN = 6
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
                        f"it has: {listed(names, _SHOWN) or 'none'}",
                    )
