"""What a pod needs of a node, as far as the scheduler and the kubelet look at it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from partage.admission.decide.former import FormerPod
from partage.claims.decide.scheduling import PodClaim
from partage.model.pod import Container, Pod
from partage.values import Frozen

NAME_FIELD = "metadata.name"
"""The only field of a Node that an affinity can name."""


class Toleration(Frozen):
    """A toleration. An empty key tolerates every key, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Whether a taint does not keep the pod away."""
        if self.effect not in ("", effect) or self.key not in ("", key):
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == value)


class LabelRule(Frozen):
    """What a node's label has to be. operator: ``In``, ``NotIn``, ``Exists``, ``DoesNotExist``, ``Gt``,
    ``Lt``. of_field: key is a field of the Node, not a label.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()
    of_field: bool = False

    def holds(self, labels: Mapping[str, str], node: str) -> bool:
        """Whether a node with this name and these labels meets it."""
        has = ({NAME_FIELD: node} if self.of_field else labels).get(self.key)
        match self.operator:
            case "In":
                return has in self.values
            case "NotIn":
                return has not in self.values
            case "Exists":
                return has is not None
            case "DoesNotExist":
                return has is None
            case "Gt" | "Lt":
                return _compared(self.operator, has, self.values)
        return False

    def __str__(self) -> str:
        """``pool in (a, b)``, ``pool = a``."""
        match self.operator:
            case "In" if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case "In" | "NotIn":
                word = "in" if self.operator == "In" else "not in"
                return f"{self.key} {word} ({', '.join(self.values)})"
            case "Exists" | "DoesNotExist":
                return f"{self.key} {'exists' if self.operator == 'Exists' else 'does not exist'}"
        return f"{self.key} {'>' if self.operator == 'Gt' else '<'} {', '.join(self.values)}"


def _compared(operator: str, has: str | None, values: tuple[str, ...]) -> bool:
    try:
        there, wanted = int(has or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return there > wanted if operator == "Gt" else there < wanted


Term = tuple[LabelRule, ...]
"""Rules that all have to hold."""


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
