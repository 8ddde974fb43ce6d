"""Play the pods of a trace on a fleet, event by event. Pure: time is that of the trace.

Pods are scheduled in the order of their creation. One that fits nowhere waits; when something ends, those
that fit now are scheduled, the oldest first. At one moment, ends come before creations. A pod that the
agent refuses fails, as on a real node; its controller makes the next one at once, which is then the youngest
of all.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from itertools import zip_longest

from partage.claims.decide.book import ClaimBook
from partage.model.share import AllocationRefused
from partage.plan.offer.desired import DesiredState
from partage.plan.placement.mix import WHOLE_MILLI
from partage.plan.serve.unit_allocation import NoRoom
from partage.values import Frozen, Tagged
from partage.whatif.decide.demand import Cause, Demand, NodeOffer, Unmet, demand_on, nearness
from partage.whatif.decide.kube_scheduler import Draw, KubeScheduler, Node, PodClass, drawn
from partage.whatif.decide.node_devices import Holding, NodeAllocator
from partage.whatif.decide.pods import Fleet, NodeKind, PodWants, TracePod
from partage.whatif.decide.usage import Usage

PROGRESS_EVERY = 200
"""Events between two calls of ``on_progress``."""


class Started(Tagged):
    """A pod got its devices. pod: its number in the trace; node: its number in the fleet."""

    at_s: float
    pod: int
    node: int
    holding: Holding


class Refused(Tagged):
    """The agent of the node to which a pod was sent refused it. no_room: no GPU had so much memory free."""

    at_s: float
    pod: int
    node: int
    text: str
    no_room: bool


class Ended(Tagged):
    """A pod ended."""

    at_s: float
    pod: int
    node: int


Event = Started | Refused | Ended


class _Outcome(Enum):
    STARTED = auto()
    REFUSED = auto()
    NO_ROOM = auto()


_Age = tuple[int, int]
"""Place among the creations of the trace; and of those that were refused and made again after it."""

Needs = tuple[Demand | Unmet, ...]
"""What a pod asks of the devices, by kind of node."""


class Played(Frozen):
    """What became of every pod.

    events: in order. never: by number of a pod, why it fits on no node at all. waiting: pods that wait at the
    end. asked_milli: by number of a pod that started, what it asked for. usage: of the GPUs over time.
    """

    events: tuple[Event, ...]
    never: Mapping[int, Unmet]
    waiting: tuple[int, ...]
    asked_milli: Mapping[int, float]
    usage: Usage


def play(
    pods: Sequence[TracePod],
    fleet: Fleet,
    desired: Sequence[DesiredState],
    *,
    books: Sequence[ClaimBook] = (),
    draw: Draw | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Played:
    """Play all pods. desired: what the policy offers on each kind of node. books: what each publishes for
    claims; (): nothing. draw: among equally good nodes;
    None: with seed 0. on_progress: pods that have been scheduled for the first time, of how many.
    """
    offers = [NodeOffer(state, book) for state, book in zip_longest(desired, books)]
    return _Play(pods, fleet, offers, draw or drawn(0)).run(on_progress)


class _Play:
    def __init__(
        self, pods: Sequence[TracePod], fleet: Fleet, offers: Sequence[NodeOffer], draw: Draw
    ) -> None:
        self._pods = pods
        self._fleet = fleet
        self._offers = offers
        self._nodes = [
            Node(name, kind, fleet.kinds[kind], NodeAllocator(self._offers[kind]))
            for name, kind in zip(fleet.names, fleet.kind_of, strict=True)
        ]
        self._scheduler = KubeScheduler(self._nodes)
        self._draw = draw
        self._classes: dict[PodWants, PodClass] = {}
        self._by_number: list[PodClass] = []
        self._events: list[Event] = []
        self._never: dict[int, Unmet] = {}
        self._asked: dict[int, float] = {}
        self._running: dict[int, Holding] = {}
        self._waiting: dict[Needs, dict[int, deque[int]]] = {}
        """Numbers of pods, the oldest first, by what they ask of the devices and the number of the class."""
        self._waits = 0
        self._due: list[tuple[float, int, int]] = []
        """When a pod ends, or a refusal on a node ends to count (pod: -1); and the node."""
        self._ending = 0  # pods that run and will end
        order = sorted(range(len(pods)), key=lambda number: pods[number].created_s)
        self._arrivals = deque(order)
        self._age: dict[int, _Age] = {number: (place, 0) for place, number in enumerate(order)}
        self._refusals = 0
        for pod in pods:
            self._class_of(pod.wants)
        self._usage = Usage.start(self._nodes, self._classes.values(), self._first_s)

    @property
    def _first_s(self) -> float:
        return self._pods[self._arrivals[0]].created_s if self._arrivals else 0.0

    def run(self, on_progress: Callable[[int, int], None]) -> Played:
        """All events, in the order of time."""
        handled = 0
        while self._arrivals or self._due:
            if handled % PROGRESS_EVERY == 0:
                on_progress(len(self._pods) - len(self._arrivals), len(self._pods))
            handled += 1
            created_s = self._pods[self._arrivals[0]].created_s if self._arrivals else None
            if self._due and (created_s is None or self._due[0][0] <= created_s):
                if created_s is None and not self._ending:
                    break  # only refusals end to count: a pod that fits then has fitted before
                now_s = self._due[0][0]
                self._usage.advance(now_s)
                self._retry(self._ends(now_s), now_s)
            else:
                assert created_s is not None, "one of both is there"
                now_s = created_s
                self._usage.advance(now_s)
                self._arrive(self._arrivals.popleft(), now_s)
            created = len(self._pods) - len(self._arrivals)
            self._usage.note(created, self._waits)
        on_progress(len(self._pods), len(self._pods))
        queues = (queue for alike in self._waiting.values() for queue in alike.values())
        waiting = tuple(sorted(number for queue in queues for number in queue))
        return Played(tuple(self._events), self._never, waiting, self._asked, self._usage)

    # --- what happens -----------------------------------------------------------------------------

    def _arrive(self, number: int, now_s: float) -> None:
        pod = self._class_of(self._pods[number].wants)
        unmet = never_fits(pod.needs)
        if unmet is not None:
            self._never[number] = unmet
        elif pod.number in self._waiting.get(pod.needs, ()) or not self._start(number, pod, now_s):
            # Where one of its class waits, it fits nowhere: nothing has become free since that was tried.
            self._waiting.setdefault(pod.needs, {}).setdefault(pod.number, deque()).append(number)
            self._waits += 1

    def _start(self, number: int, pod: PodClass, now_s: float) -> bool:
        """Schedule a new pod, again after a refusal. False: it fits nowhere now."""
        while (outcome := self._schedule(number, pod, now_s)) is _Outcome.REFUSED:
            pass
        return outcome is _Outcome.STARTED

    def _ends(self, now_s: float) -> set[int]:
        """All that ends at this moment. Returns the nodes where something did."""
        changed: set[int] = set()
        while self._due and self._due[0][0] <= now_s:
            _, number, at = heapq.heappop(self._due)
            node = self._nodes[at]
            if number < 0:
                node.devices.look(now_s)
            else:
                self._ending -= 1
                holding = self._running.pop(number)
                node.leave(self._class_of(self._pods[number].wants), holding)
                self._usage.asked(-self._asked[number])
                self._events.append(Ended(now_s, number, at))
            self._scheduler.changed(at)
            self._usage.changed(at)
            changed.add(at)
        return changed

    def _retry(self, changed: set[int], now_s: float) -> None:
        """Schedule waiting pods, the oldest first. Only on changed nodes may one fit that did not before."""
        nodes = [self._nodes[at] for at in changed]
        heads: list[tuple[_Age, PodClass]] = []
        for alike in self._waiting.values():
            first = self._by_number[next(iter(alike))]
            if any(node.has_devices(first) for node in nodes):
                heads += [(self._age[queue[0]], self._by_number[number]) for number, queue in alike.items()]
        heapq.heapify(heads)  # ages differ, so classes are never compared
        while heads:
            _, pod = heapq.heappop(heads)
            queue = self._waiting[pod.needs][pod.number]
            if not any(node.fits(pod) for node in nodes):
                continue
            outcome = self._schedule(queue[0], pod, now_s)
            if outcome is _Outcome.NO_ROOM:
                continue
            number = queue.popleft()
            if outcome is _Outcome.REFUSED:
                queue.append(number)
            else:
                self._waits -= 1
            if queue:
                heapq.heappush(heads, (self._age[queue[0]], pod))
            else:
                self._forget(pod)

    def _forget(self, pod: PodClass) -> None:
        """None of its class waits any more."""
        alike = self._waiting[pod.needs]
        del alike[pod.number]
        if not alike:
            del self._waiting[pod.needs]

    def _schedule(self, number: int, pod: PodClass, now_s: float) -> _Outcome:
        """Send a pod to the best node."""
        best = self._scheduler.best(pod)
        if not best:
            return _Outcome.NO_ROOM
        at = self._draw(number, best)
        node = self._nodes[at]
        try:
            holding = node.take(pod, now_s)
        except AllocationRefused as refusal:
            self._refuse(number, pod, at, refusal, now_s)
            return _Outcome.REFUSED
        self._events.append(Started(now_s, number, at, holding))
        self._running[number] = holding
        self._asked[number] = self._asked_milli(pod, node, holding)
        self._usage.asked(self._asked[number])
        lasts_s = self._pods[number].lasts_s
        if lasts_s is not None:
            heapq.heappush(self._due, (now_s + lasts_s, number, at))
            self._ending += 1
        self._scheduler.changed(at)
        self._usage.changed(at)
        return _Outcome.STARTED

    def _refuse(self, number: int, pod: PodClass, at: int, refusal: AllocationRefused, now_s: float) -> None:
        node = self._nodes[at]
        no_room = isinstance(refusal, NoRoom)
        self._events.append(Refused(now_s, number, at, str(refusal), no_room))
        self._refusals += 1
        self._age[number] = (len(self._pods) - len(self._arrivals) - 1, self._refusals)
        if no_room and (due_s := node.devices.due_s(now_s)) is not None:
            heapq.heappush(self._due, (due_s, -1, at))
        if node.fits(pod):  # it is not listed otherwise now: the same pod would be refused again
            node.refused.add(pod.number)
        self._scheduler.changed(at)
        self._usage.changed(at)

    # --- what is known from the start ----------------------------------------------------------------

    def _class_of(self, wants: PodWants) -> PodClass:
        found = self._classes.get(wants)
        if found is None:
            needs = [
                need_of(wants, kind, offer)
                for kind, offer in zip(self._fleet.kinds, self._offers, strict=True)
            ]
            found = self._classes[wants] = PodClass(len(self._classes), wants, needs)
            self._by_number.append(found)
        return found

    def _asked_milli(self, pod: PodClass, node: Node, holding: Holding) -> float:
        """How much of a GPU it asked for; what it holds, where the trace names shares and not amounts."""
        wants, resources = pod.wants, node.devices.offer.resources
        if wants.gpu_milli:
            return float(wants.gpus * wants.gpu_milli)
        if wants.gpu_memory_bytes:
            name, ids = holding[0]
            return wants.gpus * WHOLE_MILLI * wants.gpu_memory_bytes / resources[name].gpu_bytes_of[ids[0]]
        return node.devices.milli(holding)


def need_of(wants: PodWants, kind: NodeKind, offer: NodeOffer) -> Demand | Unmet:
    """What a pod asks for on a node of that kind, or why it fits on none, which may be empty."""
    need = demand_on(wants, kind, offer)
    if isinstance(need, Unmet):
        return need
    if kind.cpu_milli is not None and wants.cpu_milli > kind.cpu_milli:
        return Unmet(Cause.CPU, kind.cpu_milli)
    if kind.memory_bytes is not None and wants.memory_bytes > kind.memory_bytes:
        return Unmet(Cause.MEMORY, kind.memory_bytes)
    for name, count in need if not wants.claims else ():
        offered = len(offer.resources[name].ids)
        if count > offered:
            return Unmet(Cause.GPUS, offered)
    try:
        if wants.claims:
            NodeAllocator(offer).allocate_claims(wants.claims)
        else:
            NodeAllocator(offer).allocate(need, 0.0)
    except AllocationRefused as refusal:
        return Unmet(Cause.REFUSED, text=str(refusal))
    return need


def never_fits(needs: Sequence[Demand | Unmet]) -> Unmet | None:
    """Why it fits on no kind of node; None: it fits on one. The reason that is nearest to fitting."""
    unmet = [need for need in needs if isinstance(need, Unmet)]
    if not unmet or len(unmet) < len(needs):
        return None
    return max(unmet, key=nearness)
