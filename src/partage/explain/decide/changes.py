"""What would let a pod run: a change of the pod, of the node or of its policy, or an end that is waited for.

Each is a sentence that begins with what to do. ``apply`` carries them out on values.
"""

from __future__ import annotations

from partage.explain.decide.amounts import Unit, request_text
from partage.explain.decide.reasons import NodeReason, taint_text
from partage.model.ids import GpuUuid
from partage.text import count_of, listed, shortened
from partage.values import Frozen, Tagged

_NAMELESS, _CLAIM = "?", "claim "


class AskFewer(Tagged):
    """A container asks for less. then: 0: for nothing."""

    container: str
    unit: Unit
    now: int
    then: int

    def __str__(self) -> str:
        resource = self.unit.resource
        if not self.then:
            return f"ask for no {resource} in {self.container}"
        now = Unit(resource).bare(self.now)
        return f"ask for {_asked(self.unit, self.then)} in place of {now} in {self.container}"


class AskOther(Tagged):
    """A container asks for another resource, which this node offers."""

    container: str
    resource: str
    now: int
    other: Unit
    then: int

    def __str__(self) -> str:
        asked = request_text(self.resource, self.now)
        return f"ask for {_asked(self.other, self.then)} in place of {asked} in {self.container}"


def _asked(unit: Unit, amount: int) -> str:
    """``aliyun.com/gpu-mem: 5 (5 GiB)``."""
    memory = f" ({unit.bare(amount)})" if unit.bytes else ""
    return f"{request_text(unit.resource, amount)}{memory}"


class RaiseReplicas(Tagged):
    """An entry of the policy makes more shares of each GPU. origin: ``gpus[1]``."""

    origin: str
    source: str
    now: int
    then: int

    def __str__(self) -> str:
        where = f" of {self.source}" if self.source else " of the policy"
        return f"raise replicas from {self.now} to {self.then} in {self.origin}{where}"


class WaitForPods(Tagged):
    """Pods end, and give back what they hold. pods: ``namespace/pod``."""

    pods: tuple[str, ...]

    def __str__(self) -> str:
        claims = [who for who in self.pods if who.startswith(_CLAIM)]
        names = [who for who in self.pods if not who.startswith((_NAMELESS, _CLAIM))]
        nameless = len(self.pods) - len(names) - len(claims)
        parts = [f"{'pod' if len(names) == 1 else 'pods'} {listed(names)}"] if names else []
        if claims:
            parts.append(f"the pods of {listed(claims)}")
        if nameless:
            parts.append(f"{count_of(nameless, 'pod')} that the kubelet does not name yet")
        one = len(self.pods) == 1 and not claims
        return f"wait until {' and '.join(parts)} {'has' if one else 'have'} ended, or end it"


class WaitForGpu(Tagged):
    """A GPU becomes as the policy wants it. pods: it waits for them."""

    gpu: int
    uuid: GpuUuid
    pods: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.pods:
            return f"wait until GPU {self.gpu} has changed; partage show says how far it is"
        return f"wait until GPU {self.gpu} has changed, which waits for {listed(self.pods)} to end"


class Uncordon(Tagged):
    """New containers are let on a GPU again. node: of a cluster; empty: this one."""

    gpu: int
    uuid: GpuUuid
    node: str = ""

    def __str__(self) -> str:
        return f"partage uncordon {self.gpu}{f' --node {self.node}' if self.node else ''}"


class RepairGpu(Tagged):
    """A GPU is healthy again."""

    gpu: int
    uuid: GpuUuid

    def __str__(self) -> str:
        return f"repair or reset GPU {self.gpu}; partage show says what is wrong with it"


class RepairNode(Tagged):
    """The node, its kubelet or its agent works again. what: what to do."""

    what: str

    def __str__(self) -> str:
        return self.what


class UncordonNode(Tagged):
    """The node takes pods again."""

    node: str

    def __str__(self) -> str:
        return f"kubectl uncordon {self.node}"


class Tolerate(Tagged):
    """The pod tolerates a taint."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return (
            f"add to the pod's tolerations {_toleration(self)}, or remove "
            f"the taint {taint_text(self.key, self.value, self.effect)}"
        )


class LabelNode(Tagged):
    """The node gets a label that the pod's nodeSelector wants."""

    node: str
    key: str
    value: str

    def __str__(self) -> str:
        return (
            f"kubectl label node {self.node} {self.key}={self.value}, or take {self.key} out of the pod's "
            "nodeSelector"
        )


class DropAffinity(Tagged):
    """The pod's required node affinity lets it run on this node. rule: the first one that does not hold."""

    rule: str

    def __str__(self) -> str:
        return f"let the pod's node affinity take this node too: {self.rule} does not hold here"


class DropNodeName(Tagged):
    """The pod is not bound to another node by its nodeName."""

    node: str

    def __str__(self) -> str:
        return f"take nodeName: {self.node} out of the pod"


class ClaimChange(Tagged):
    """A request of a claim asks for something else. source: the object that has it. now, then: as in a
    manifest.
    """

    source: str
    request: str
    now: str
    then: str


class ClaimLess(ClaimChange):
    """It asks for less of a capacity. theirs: the same in the words of the system for which the pod was
    written; empty: for none.
    """

    capacity: str
    theirs: str = ""

    def __str__(self) -> str:
        if self.theirs:
            return f"ask for {self.theirs} ({self.capacity} {self.then} of the claim)"
        return (
            f"ask for {self.capacity}: {self.then} in place of {self.now} in request {self.request} of "
            f"{self.source}"
        )


class ClaimOtherClass(ClaimChange):
    """It names another class."""

    def __str__(self) -> str:
        return (
            f"name deviceClassName: {self.then} in place of {self.now} in request {self.request} of "
            f"{self.source}"
        )


class DropSelector(Tagged):
    """A request of a claim does without one of its expressions. theirs: the annotation behind it; empty: the
    claim was written as such.
    """

    source: str
    request: str
    expression: str
    theirs: str = ""

    def __str__(self) -> str:
        if self.theirs:
            return f"change the pod's annotation {self.theirs}, or take it out"
        return (
            f"change the expression {shortened(self.expression, 120)} in request {self.request} of "
            f"{self.source}, or take it out"
        )


class TolerateDevice(Tagged):
    """A request of a claim tolerates the taint of a device."""

    source: str
    request: str
    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return (
            f"add to the tolerations of request {self.request} of {self.source} {_toleration(self)}, or "
            "remove the taint from the device"
        )


class MakeClaimObject(Tagged):
    """The object is made from which a claim of the pod is to be."""

    source: str

    def __str__(self) -> str:
        return f"make the {self.source}, or name another one in the pod's resourceClaims"


def _toleration(taint: Tolerate | TolerateDevice) -> str:
    """As it stands in a manifest."""
    operator = f"operator: Equal, value: {taint.value}" if taint.value else "operator: Exists"
    return f"{{key: {taint.key}, {operator}, effect: {taint.effect}}}"


Change = (
    AskFewer
    | AskOther
    | RaiseReplicas
    | WaitForPods
    | WaitForGpu
    | Uncordon
    | RepairGpu
    | RepairNode
    | UncordonNode
    | Tolerate
    | LabelNode
    | DropAffinity
    | DropNodeName
    | ClaimLess
    | ClaimOtherClass
    | DropSelector
    | TolerateDevice
    | MakeClaimObject
)


class NodeFinding(Frozen):
    """options: ways out, the smallest first; each is one change, or several that are needed together. None:
    no way out is known.
    """

    reason: NodeReason
    options: tuple[tuple[Change, ...], ...] = ()
