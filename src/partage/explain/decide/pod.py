"""What a pod needs of a node, as far as the scheduler and the kubelet look at it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from partage.admission.decide.former import FormerPod
from partage.claims.decide.scheduling import PodClaim
from partage.kubernetes.decide.node_rules import Term, Toleration
from partage.model.pod import Container, Pod
from partage.values import Frozen

Ask = tuple[Container, str, int]
"""A container, a GPU resource and how much of it."""


class ClaimSource(Frozen):
    """From which object a claim of a pod is. name: as the pod calls it. kind: ``ResourceClaim`` or
    ``ResourceClaimTemplate``; object_name: of it.
    """

    name: str
    kind: str
    object_name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.object_name}"


class PodNeeds(Pod, kw_only=True):
    """A pod that is to run somewhere.

    title: ``Pod/train (namespace team)``, for people. node: the only node where it may run; empty: any.
    selector: nodeSelector. affinity: required node affinity, terms of which one has to hold; None: there is
    none. gpu_resources: the resources among its requests that GPUs are behind. not_judged: what is not looked
    at here, and may keep the pod waiting. claim_sources: where its claims are from; claims: those of them
    that have no devices yet; claims_missing: those that are not there; claims_at: the pools of which
    the others have devices, by their title. former: what it asked for in the words of another system;
    rewritten: it is so only here, in the answer.
    """

    title: str
    node: str = ""
    selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    gpu_resources: frozenset[str] = frozenset()
    not_judged: tuple[str, ...] = ()
    claim_sources: tuple[ClaimSource, ...] = ()
    claims: tuple[PodClaim, ...] = ()
    claims_missing: tuple[ClaimSource, ...] = ()
    claims_at: Mapping[str, str] = field(default_factory=dict)
    former: FormerPod | None = None
    rewritten: bool = False

    @property
    def asks(self) -> tuple[Ask, ...]:
        """Each container's requests for GPU resources, in the kubelet's order."""
        return tuple(
            (container, name, amount)
            for container in self.containers
            for name, amount in container.requests.items()
            if name in self.gpu_resources and amount
        )
