"""Why a pod does not run on a node, or gets nothing of a GPU: each reason a sentence."""

from __future__ import annotations

from partage.explain.decide.amounts import Unit
from partage.explain.decide.claim_reasons import ClaimReason, GpuForClaim
from partage.text import listed
from partage.values import Frozen, Tagged

# --- of a node --------------------------------------------------------------------------------------


class WrongNode(Tagged):
    """The pod is for other nodes. rule: what it wants of a node; has: what this one has of it."""

    rule: str
    has: str

    def __str__(self) -> str:
        return f"the pod wants a node with {self.rule}; this one has {self.has}"


class NodeNotReady(Tagged):
    """The kubelet of the node does not work."""

    reason: str

    def __str__(self) -> str:
        return f"the node is not ready: {self.reason}"


class NodeGivesNothing(Tagged):
    """The node can give no GPU at all now."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class NotOffered(Tagged):
    """No GPU of the node is offered under that name."""

    resource: str
    offered: tuple[str, ...]

    def __str__(self) -> str:
        there = listed(self.offered) or "no GPU"
        return f"nothing here is offered as {self.resource}; the node offers {there}"


class PolicyNotInForce(Tagged):
    """The name is not offered, and the policy that was asked for is not in force."""

    resource: str
    reason: str

    def __str__(self) -> str:
        return f"nothing here is offered as {self.resource}, and {self.reason}"


class OneShareOnly(Tagged):
    """A container may hold one share of such a GPU, and asks for several."""

    resource: str
    asked: int
    container: str

    def __str__(self) -> str:
        return (
            f"{self.container} asks for {self.asked} x {self.resource}, which are shares of a GPU: a "
            "container gets one, because more shares give it no more of the GPU"
        )


class LargerThanGpu(Tagged):
    """What a container asks for has to come from one GPU, and none is so large."""

    unit: Unit
    asked: int
    largest: int
    container: str

    def __str__(self) -> str:
        asked = self.unit.text(self.asked)
        largest = self.unit.bare(self.largest)
        return f"{self.container} asks for {asked}, all of one GPU, and the largest one here has {largest}"


class MoreThanNode(Tagged):
    """The pod asks for more than the node has, even with nobody else on it."""

    unit: Unit
    asked: int
    total: int

    def __str__(self) -> str:
        has = self.unit.bare(self.total) if self.total else "none"
        return f"the pod asks for {self.unit.text(self.asked)}; the node has {has}"


class NotTogether(Tagged):
    """Each container's part has to come from one GPU, and beside the other containers none has enough."""

    unit: Unit
    asked: int
    container: str

    def __str__(self) -> str:
        asked = self.unit.text(self.asked)
        return (
            f"{self.container} asks for {asked}, all of one GPU, and no GPU here has that beside what the "
            "other containers of the pod get"
        )


class NodeCordoned(Tagged):
    """The node takes no new pods (``kubectl cordon``)."""

    def __str__(self) -> str:
        return "the node takes no new pods: it is cordoned (kubectl cordon)"


class NodeTaintView(Frozen):
    """A taint. why: what set it, a sentence; empty: not known."""

    key: str
    value: str
    effect: str
    why: str = ""


class Tainted(Tagged):
    """A taint that the pod does not tolerate."""

    taint: NodeTaintView

    def __str__(self) -> str:
        taint = taint_text(self.taint.key, self.taint.value, self.taint.effect)
        return f"the node has the taint {taint}" + (f", because {self.taint.why}" if self.taint.why else "")


def taint_text(key: str, value: str, effect: str) -> str:
    """``nvidia.com/gpu=true:NoSchedule``."""
    return f"{key}={value}:{effect}" if value else f"{key}:{effect}"


class AllHeld(Tagged):
    """Other pods hold what it asks for. free: of asked; total: that the node has. at_node: the scheduler
    would send the pod, and the node would refuse it. together: free, over all GPUs, where one GPU has to give
    everything; None elsewhere.
    """

    unit: Unit
    asked: int
    free: int
    total: int
    together: int | None = None

    def __str__(self) -> str:
        asked = self.unit.text(self.asked)
        free = self.unit.bare(self.free) if self.free else "none"
        if self.together is None or self.together <= self.free:
            total = self.unit.bare(self.total)
            return f"other pods hold it: {asked} is asked for, and of {total} here {free} is free"
        together = self.unit.bare(self.together)
        return (
            f"no single GPU has enough free: {asked} is asked for, all of one GPU, and the GPU with most has "
            f"{free} free ({together} on all GPUs together)"
        )


class CounterShort(Tagged):
    """The scheduler counts too little left of a resource that no GPU is behind, or of one that it counts
    lower than the agent does."""

    unit: Unit
    asked: int
    free: int

    def __str__(self) -> str:
        free = self.unit.bare(self.free) if self.free > 0 else "nothing"
        asked = self.unit.text(self.asked)
        return f"the pod asks for {asked}; {free} of it is left on the node, as the scheduler counts"


# --- of a GPU --------------------------------------------------------------------------------------


class GpuCordoned(Tagged):
    """It has free shares, and a person keeps new containers off it."""

    gpu: int

    def __str__(self) -> str:
        return f"GPU {self.gpu} is cordoned: nobody gets another share of it"


class GpuUnhealthy(Tagged):
    """It has a fault, or does not answer."""

    gpu: int
    reason: str

    def __str__(self) -> str:
        return f"GPU {self.gpu} is not healthy: {self.reason}"


class GpuChanging(Tagged):
    """It is not as the policy wants it, and gives no share until it is."""

    gpu: int
    reason: str

    def __str__(self) -> str:
        return f"GPU {self.gpu} gives no share until it has changed: {self.reason}"


class GpuOffersOther(Tagged):
    """It is offered under other names."""

    gpu: int
    resource: str
    offered: tuple[str, ...]

    def __str__(self) -> str:
        return f"it is offered as {listed(self.offered)}" if self.offered else "it is not offered"


class GpuHeld(Tagged):
    """Other pods hold it, or so much of it that too little is free."""

    gpu: int
    unit: Unit
    free: int
    total: int
    pods: tuple[str, ...]

    def __str__(self) -> str:
        who = listed(self.pods) or "pods that are not named yet"
        if self.total == 1:
            return f"held by {who}"
        free = self.unit.bare(self.free) if self.free else "none"
        return f"{free} of {self.unit.bare(self.total)} is free; held by {who}"


class GpuTooSmall(Tagged):
    """It could not give so much if nobody held anything of it."""

    gpu: int
    unit: Unit
    asked: int
    total: int

    def __str__(self) -> str:
        total = self.unit.bare(self.total)
        return f"it has {total}, and {self.unit.bare(self.asked)} is asked for"


class GpuGivesPart(Tagged):
    """It is free, and one of several that are asked for."""

    gpu: int
    resource: str
    free: int
    asked: int

    def __str__(self) -> str:
        return f"free: it could give {self.free} of the {self.asked} that are asked for"


NodeReason = (
    WrongNode
    | NodeNotReady
    | NodeGivesNothing
    | NotOffered
    | PolicyNotInForce
    | OneShareOnly
    | LargerThanGpu
    | MoreThanNode
    | NotTogether
    | NodeCordoned
    | Tainted
    | AllHeld
    | CounterShort
    | GpuCordoned
    | GpuUnhealthy
    | GpuChanging
    | ClaimReason
)
GpuReason = (
    GpuCordoned
    | GpuUnhealthy
    | GpuChanging
    | GpuOffersOther
    | GpuHeld
    | GpuTooSmall
    | GpuGivesPart
    | GpuForClaim
)
