"""The pods and nodes of a cluster as a trace and a fleet that can be shared: which, and as what. Pure.

Left out is what a trace has no words for, with the reason. Names, namespaces, labels and images are left out
unless they are asked for: pods and nodes are numbered, and times count from the first pod on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import field
from msgspec.structs import replace

from partage.admission.decide.need import GpuRules, PodGpuNeed
from partage.claims.decide.book import ClaimBook
from partage.claims.decide.scheduling import PodClaim, Unplaced, place
from partage.claims.model.claim import ClaimSpec, DeviceClass
from partage.kubernetes.decide.node_rules import NodeRules
from partage.model.pod import ScheduledPod
from partage.plan.placement.mix import PodType
from partage.text import count_of
from partage.values import Frozen
from partage.whatif.decide.gpu_amounts import (
    CannotPlay,
    ClaimedPart,
    GpuAmount,
    GpuNode,
    amount_of_need,
    amount_of_parts,
    amount_of_resources,
    is_gpu_resource,
)

_OF_ITS_NODE = frozenset({"DaemonSet", "Node"})
"""Controllers of pods that belong to one node."""


class PodRecord(Frozen):
    """A pod of the cluster.

    need: in the words of another system. wrong: why these cannot be meant; may be empty. claims: what its
    claims ask for, without those that an older pod has, too (of_others). parts: the devices that these have;
    (): not all have theirs. waits_for_claims: one is not there yet. rules: for its nodes. created_s, bound_s,
    ended_s: seconds of a clock; None: not yet, or not known. ended: it has.
    """

    pod: ScheduledPod
    need: PodGpuNeed | None = None
    wrong: str = ""
    claims: tuple[PodClaim, ...] = ()
    parts: tuple[ClaimedPart, ...] = ()
    waits_for_claims: bool = False
    of_others: bool = False
    rules: NodeRules = field(default_factory=NodeRules)
    created_s: float = 0.0
    bound_s: float | None = None
    ended_s: float | None = None
    ended: bool = False

    @property
    def asks_for_gpus(self) -> bool:
        """Whether it is more than CPUs and memory."""
        by_claim = bool(self.claims) or self.waits_for_claims or self.of_others
        resources = any(is_gpu_resource(name) for name, _ in self.pod.devices)
        return self.need is not None or bool(self.wrong) or by_claim or resources


class TraceLine(Frozen):
    """A pod as a line of a trace, with the columns of ``whatif.pod_trace``. times: seconds from the first pod
    on. node: where it is or was; empty: nowhere yet.
    """

    name: str
    asks: PodType
    created_s: int
    bound_s: int | None
    ended_s: int | None
    node: str


class ClusterRecording(Frozen):
    """nodes: with the names that ``lines`` use. left_out: how many pods, by the reason, what follows the word
    pod. notes: alike, of pods that are not quite as they are there.
    """

    lines: tuple[TraceLine, ...]
    nodes: tuple[GpuNode, ...]
    left_out: Mapping[str, int]
    notes: Mapping[str, int]


def recording_of(
    pods: Sequence[PodRecord],
    nodes: Sequence[GpuNode],
    classes: Mapping[str, DeviceClass],
    *,
    keep_names: bool = False,
) -> ClusterRecording:
    """classes: of the cluster. nodes: with all that pods can have of them."""
    return _Recorder(pods, nodes, classes, keep_names=keep_names).run()


class _Recorder:
    def __init__(
        self,
        pods: Sequence[PodRecord],
        nodes: Sequence[GpuNode],
        classes: Mapping[str, DeviceClass],
        *,
        keep_names: bool,
    ) -> None:
        self._pods = sorted(pods, key=lambda each: (each.created_s, each.pod.namespace, each.pod.name))
        ordered = sorted(nodes, key=lambda node: node.name)
        digits = len(str(len(ordered)))
        self._names = {
            node.name: node.name if keep_names else f"node-{number:0{digits}}"
            for number, node in enumerate(ordered, 1)
        }
        self._nodes = {node.name: node for node in ordered}
        self._models = Counter(node.model for node in ordered)
        self._kinds = {node.name: _kind(node) for node in ordered}
        self._classes, self._keep_names = classes, keep_names
        self._allowed: dict[tuple[NodeRules, GpuRules], _Allowed] = {}
        self._by_claims: dict[tuple[tuple[ClaimSpec, ...], _Kind], tuple[ClaimedPart, ...] | None] = {}
        self._left_out: Counter[str] = Counter()
        self._notes: Counter[str] = Counter()

    def run(self) -> ClusterRecording:
        zero = self._pods[0].created_s if self._pods else 0.0
        digits = len(str(len(self._pods)))
        lines: list[TraceLine] = []
        cpu, memory = Counter[str](), Counter[str]()
        for record in self._pods:
            pod = record.pod
            if pod.owner in _OF_ITS_NODE:
                if not record.ended:
                    cpu[pod.node] += pod.cpu_milli
                    memory[pod.node] += pod.memory_mib
                continue
            try:
                line = self._line(record, zero)
            except CannotPlay as why:
                self._left_out[why.reason] += 1
                continue
            name = f"{pod.namespace}/{pod.name}" if self._keep_names else f"pod-{len(lines) + 1:0{digits}}"
            lines.append(replace(line, name=name))
        nodes = tuple(
            replace(
                node,
                name=self._names[name],
                cpu_milli=max(0, node.cpu_milli - cpu[name]),
                memory_mib=max(0, node.memory_mib - memory[name]),
            )
            for name, node in self._nodes.items()
        )
        return ClusterRecording(tuple(lines), nodes, dict(self._left_out), dict(self._notes))

    def _line(self, record: PodRecord, zero: float) -> TraceLine:
        """Without a name. Raises CannotPlay."""
        pod = record.pod
        here = self._nodes.get(pod.node)
        if pod.node and here is None:
            raise CannotPlay("on a node that is not recorded")
        if not record.asks_for_gpus and here is None:
            raise CannotPlay("waiting and asking for no GPU, with no node to be recorded on")
        amount, models = GpuAmount(0, 0), frozenset[str]()
        if record.asks_for_gpus:
            amount, models = self._gpus(record, here)
        times = [
            None if moment is None else max(0, round(moment - zero))
            for moment in (record.created_s, record.bound_s, record.ended_s)
        ]
        created, bound, ended = times[0] or 0, times[1], times[2]
        bound = None if here is None else max(created, created if bound is None else bound)
        if record.ended:
            ended = max(created if bound is None else bound, ended or 0)
        return TraceLine(
            "",
            PodType(
                pod.cpu_milli,
                pod.memory_mib,
                amount.gpus,
                amount.milli,
                frozenset() if models >= {*self._models} else models,
            ),
            created,
            bound,
            ended if record.ended else None,
            self._names[pod.node] if here is not None else "",
        )

    # --- GPUs ---------------------------------------------------------------------------------------

    def _gpus(self, record: PodRecord, here: GpuNode | None) -> tuple[GpuAmount, frozenset[str]]:
        """What it asks for, and the models that it may have. Raises CannotPlay."""
        if record.wrong:
            raise CannotPlay(f"with words that cannot be meant: {record.wrong}")
        if record.waits_for_claims:
            raise CannotPlay("waiting for a ResourceClaim that is not there yet")
        allowed = self._nodes_for(record)
        amount, of = self._amount(record, here, allowed)
        could = [(node.model, self._amount_of(record, node)) for node in allowed.kinds]
        other = {model for model, there in could if there is not None and not amount.is_like(there)}
        models = {model for model, there in could if there is not None and amount.is_like(there)} | {of.model}
        if other - models:
            self._notes[_OTHER_PART] += 1
        if any(allowed.counts[model] < self._models[model] for model in models):
            self._notes[_BY_LABELS] += 1
        if record.of_others:
            self._notes[_TOGETHER] += 1
        return amount, frozenset(models)

    def _nodes_for(self, record: PodRecord) -> _Allowed:
        """Those to which its labels, affinity, tolerations and annotations let it."""
        rules = record.rules, GpuRules() if record.need is None else record.need.rules
        found = self._allowed.get(rules)
        if found is None:
            nodes = [
                node
                for node in self._nodes.values()
                if rules[0].allow(node.name, node.labels, node.taints) and _meets(rules[1], node)
            ]
            kinds = {self._kinds[node.name]: node for node in nodes}
            counts = Counter(node.model for node in nodes)
            found = self._allowed[rules] = _Allowed(tuple(kinds.values()), counts)
        return found

    def _amount(
        self, record: PodRecord, here: GpuNode | None, allowed: _Allowed
    ) -> tuple[GpuAmount, GpuNode]:
        """What it is of the node where it is, else of the first that would do; and that node."""
        if here is not None:
            return self._of_node(record, here, record.parts), here
        why = CannotPlay("allowed on none of the nodes")
        for node in allowed.kinds:
            try:
                return self._of_node(record, node, ()), node
            except CannotPlay as error:
                why = error
        raise why

    def _of_node(self, record: PodRecord, node: GpuNode, parts: tuple[ClaimedPart, ...]) -> GpuAmount:
        """parts: that its claims have; (): what they would get of the node."""
        if record.need is not None:
            return amount_of_need(record.need, node)
        found = [
            amount_of_parts(parts or self._would_get(record, node), node),
            amount_of_resources(record.pod.devices, node),
        ]
        amounts = [amount for amount in found if amount is not None]
        return GpuAmount(
            sum(amount.gpus for amount in amounts),
            max((amount.milli for amount in amounts), default=0),
        )

    def _would_get(self, record: PodRecord, node: GpuNode) -> tuple[ClaimedPart, ...]:
        """Devices of the node, with nobody on it. Raises CannotPlay."""
        if not record.claims:
            return ()
        key = tuple(claim.spec for claim in record.claims), self._kinds[node.name]
        if key not in self._by_claims:
            placed = place(record.claims, ClaimBook(node.devices), self._classes)
            self._by_claims[key] = (
                None
                if isinstance(placed, Unplaced)
                else tuple(ClaimedPart(given.device, given.amounts) for given in placed.given)
            )
        parts = self._by_claims[key]
        if parts is None:
            raise CannotPlay("with claims for which no allowed node has devices")
        return parts

    def _amount_of(self, record: PodRecord, node: GpuNode) -> GpuAmount | None:
        """What it would be of such a node, with nobody on it; None: it can never have it."""
        try:
            return self._of_node(record, node, ())
        except CannotPlay:
            return None


_OTHER_PART = "with another part of other GPUs that are allowed: only those of the same part are recorded"
_BY_LABELS = "choosing nodes by more than the GPU model: that is not recorded"
_TOGETHER = "sharing a claim with another pod: it counts once"

_Kind = tuple[object, ...]


def _kind(node: GpuNode) -> _Kind:
    """Nodes of one kind give a pod the same."""
    devices = tuple(
        (device.shared, *map(device.text, ("mode", "productName", "profile"))) for device in node.devices
    )
    return node.model, node.gpus, node.gpu_bytes, tuple(sorted(node.units)), devices


class _Allowed(Frozen):
    """kinds: one node of each kind. counts: how many of each model."""

    kinds: tuple[GpuNode, ...]
    counts: Mapping[str, int]


def _meets(rules: GpuRules, node: GpuNode) -> bool:
    """Whether annotations let a pod have GPUs of this model; those of single GPUs are not looked at."""
    model = node.model.lower()
    wanted = not rules.models or any(word in model for word in rules.models)
    return wanted and not any(word in model for word in rules.not_models)


def reason_words(noun: str, counts: Mapping[str, int]) -> Iterator[str]:
    """``12 pods on a node that is not recorded``, the most frequent first."""
    for reason, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"{count_of(count, noun)} {reason}"
