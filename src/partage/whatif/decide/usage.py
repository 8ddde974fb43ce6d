"""How much of the GPUs is used, free and of no use, over the time of a trace. All in thousandths of a GPU;
moments, which are answers, in GPUs.

Held: what running pods hold. Asked: what they asked for; a share may be larger. Blocked: what is free while
pods wait; whatever fits has been scheduled, so none of them can use it. Stranded: what is free, and no pod of
the trace fits there now, waiting or not: CPU or memory of the node is used up, or no pod asks for such
shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partage.model.ids import ResourceName
from partage.values import Answer
from partage.whatif.decide.demand import Unmet
from partage.whatif.decide.kube_scheduler import Node, PodClass


class Moment(Answer):
    """GPUs and waiting pods at one time. at_s: of the trace. created: pods until then."""

    at_s: float
    created: int
    held: float
    asked: float
    stranded: float
    waiting: int


class Usage:
    """moments: after every event, several of one time. held_milli, asked_milli, stranded_milli, waiting
    (number of pods): now. The other figures are products of amount and time.
    """

    def __init__(self, nodes: Sequence[Node], fitting: _Fitting, first_s: float) -> None:
        self._nodes = nodes
        self._fitting = fitting
        self.first_s = self.now_s = first_s
        self.capacity = float(sum(node.devices.offer.capacity_milli for node in nodes))
        self.offered = sum(sum(node.devices.free_milli.values()) for node in nodes)
        self.moments: list[Moment] = []
        self.held_time = self.asked_time = self.free_time = 0.0
        self.blocked_time = self.stranded_time = 0.0
        self.peak_held = self.peak_asked = 0.0
        self._held_on = [0.0] * len(nodes)
        self._stranded_on = [0.0] * len(nodes)
        self.held_milli = self.asked_milli = self.stranded_milli = 0.0
        self.waiting = 0
        for at in range(len(nodes)):
            self.changed(at)

    @classmethod
    def start(cls, nodes: Sequence[Node], classes: Iterable[PodClass], first_s: float) -> Usage:
        """Before the first pod. classes: of all pods of the trace."""
        return cls(nodes, _Fitting(classes), first_s)

    @property
    def span_s(self) -> float:
        """From the first event to the last."""
        return self.now_s - self.first_s

    def advance(self, now_s: float) -> None:
        """Time passes, and nothing has happened meanwhile."""
        passed = now_s - self.now_s
        if passed > 0:
            free = self.offered - self.held_milli
            self.held_time += self.held_milli * passed
            self.asked_time += self.asked_milli * passed
            self.free_time += free * passed
            self.blocked_time += (free if self.waiting else 0.0) * passed
            self.stranded_time += self.stranded_milli * passed
            self.now_s = now_s

    def asked(self, milli: float) -> None:
        """A pod that asked for so much has started; less than 0: has ended."""
        self.asked_milli += milli

    def changed(self, at: int) -> None:
        """A node is not as it was."""
        node = self._nodes[at]
        held = node.devices.held_milli
        self.held_milli += held - self._held_on[at]
        self._held_on[at] = held
        stranded = self._fitting.stranded(node)
        self.stranded_milli += stranded - self._stranded_on[at]
        self._stranded_on[at] = stranded

    def note(self, created: int, waiting: int) -> None:
        """All that happens at this moment has happened."""
        self.waiting = waiting
        self.peak_held = max(self.peak_held, self.held_milli)
        self.peak_asked = max(self.peak_asked, self.asked_milli)
        amounts = (self.held_milli, self.asked_milli, self.stranded_milli)
        held, asked, stranded = (max(0.0, round(milli / 1000, 3)) for milli in amounts)
        self.moments.append(Moment(self.now_s, created, held, asked, stranded, waiting))


class _Fitting:
    """Which pods of the trace could use which shares: those that ask for least stand for the rest."""

    def __init__(self, classes: Iterable[PodClass]) -> None:
        self._least: dict[tuple[int, ResourceName], list[PodClass]] = {}
        for pod in sorted(classes, key=lambda one: (one.cpu, one.memory)):
            for kind, need in enumerate(pod.needs):
                if not isinstance(need, Unmet):
                    for name, _ in need:
                        self._add(pod, kind, name)

    def _add(self, pod: PodClass, kind: int, name: ResourceName) -> None:
        """Unless one that is there fits wherever this one does. They come with the least CPU first."""
        known = self._least.setdefault((kind, name), [])
        if not any(_fits_wherever(other, pod, kind) for other in known):
            known.append(pod)

    def stranded(self, node: Node) -> float:
        """What is free on a node, and of no use to any pod."""
        free = node.devices.free_milli.items()
        return sum(
            milli
            for name, milli in free
            if milli > 0.001 and not any(map(node.fits, self._least.get((node.kind, name), ())))
        )


def _fits_wherever(one: PodClass, other: PodClass, kind: int) -> bool:
    mine, theirs = one.needs[kind], other.needs[kind]
    assert not isinstance(mine, Unmet), "only pods that fit on the kind are kept"
    assert not isinstance(theirs, Unmet), "only pods that fit on the kind are asked about"
    amounts = dict(theirs)
    return (
        one.wants.claims == other.wants.claims
        and one.cpu <= other.cpu
        and one.memory <= other.memory
        and all(count <= amounts.get(name, 0) for name, count in mine)
    )
