"""How often a pod is refused because no single GPU has its amount of memory free.

``python -m bench.fragmentation``. A node in simulated seconds. The choice of units and what is listed after a
refusal are the agent's own code. The scheduler knows, as the real one does, the node's sum of units, as old
as the kubelet's last status (every 10 s), less what its own pods ask for. A refused pod is lost, and its
Deployment makes the next one a second later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random

from msgspec import Struct, field

from partage.model.ids import MEMORY_RESOURCE, GpuUuid, ShareId, device_of
from partage.model.share import AllocationRefused, DeviceOffer, DeviceRow, Guarantee, Resource
from partage.model.strategy import Strategy
from partage.plan.serve.unit_allocation import Refusals, UnitAllocator, one_device_where_needed, scattered

STATUS_S = 10
"""The kubelet tells the API server of a changed list at most so often (nodeStatusUpdateFrequency)."""
AGAIN_S = 1
"""A ReplicaSet replaces a failed pod at once; scheduling takes about so long."""
SIZES = (1, 1, 2, 2, 3, 4, 4, 6, 8, 8, 12, 16, 20, 24, 32)
MIXED, EQUAL = (23, 23, 79, 79), (79, 79, 79, 79)
LIFETIME_S = 600.0
HOURS = 2
LOADS = (0.5, 0.7, 0.9)


class Way(Struct, frozen=True):
    """How the node answers. prefers: GetPreferredAllocation names units of one GPU. lists: after a refusal
    one GPU is listed."""

    name: str
    prefers: bool
    spread: bool = False
    lists: bool = False
    aware: bool = False


WAYS = (
    Way("the kubelet picks at random", prefers=False),
    Way("best fit", prefers=True),
    Way("best fit, one GPU listed after a refusal", prefers=True, lists=True),
    Way("most free first, one GPU listed after", prefers=True, spread=True, lists=True),
    Way("a scheduler that knows GPUs (best fit)", prefers=True, aware=True),
)


class Pod(Struct):
    """One replica that wants to run. due_s: when its pod can be scheduled."""

    size: int
    came_s: int
    due_s: int


class Counts(Struct):
    """What happened."""

    started: int = 0
    refused: int = 0
    waited_s: int = 0
    used: int = 0
    seconds: int = 0


class Node(Struct):
    """The kubelet and the plugin."""

    cards: tuple[int, ...]
    way: Way
    rng: Random
    held: dict[ShareId, int] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=Refusals)
    allocatable: int = 0
    rows: tuple[DeviceRow, ...] = ()
    resource: Resource = field(default_factory=lambda: Resource(MEMORY_RESOURCE, ()))
    offers: dict[ShareId, DeviceOffer] = field(default_factory=dict)
    allocator: UnitAllocator = field(default_factory=lambda: UnitAllocator(Resource(MEMORY_RESOURCE, ())))

    def __post_init__(self) -> None:
        offers = tuple(_card(number, units, self.way) for number, units in enumerate(self.cards))
        self.resource = Resource(MEMORY_RESOURCE, offers)
        self.offers = {id_: one for one in offers for id_ in one.share_ids}
        self.allocator = UnitAllocator(self.resource)
        self.allocatable = len(self.offers)
        self.turn(0)

    def turn(self, now_s: int) -> None:
        """The agent's list, which the kubelet has at once."""
        rows = tuple(DeviceRow(id_, healthy=True) for id_ in self.offers)
        refused = self.refusals.in_force(now_s).get(MEMORY_RESOURCE) if self.way.lists else None
        self.rows = one_device_where_needed(rows, self.held, refused)

    def free(self) -> list[ShareId]:
        """What the kubelet counts as free."""
        return [row.id for row in self.rows if row.healthy and row.id not in self.held]

    def most_free(self) -> int:
        """Of one GPU."""
        counts: dict[str, int] = {}
        for id_ in self.free():
            counts[device_of(id_)] = counts.get(device_of(id_), 0) + 1
        return max(counts.values(), default=0)

    def admit(self, size: int, until_s: int, now_s: int) -> bool:
        """Whether the pod starts."""
        free = self.free()
        if len(free) < size:  # "Requested: 5, Available: 3": the scheduler's view is old
            return False
        try:
            ids = self.allocator.prefer(free, [], size) if self.way.prefers else self.rng.sample(free, size)
            if len({device_of(id_) for id_ in ids}) > 1:
                raise scattered([self.offers[id_] for id_ in ids])
        except AllocationRefused:
            self.refusals.noted(MEMORY_RESOURCE, size, now_s)
            self.turn(now_s)
            return False
        self.held |= dict.fromkeys(ids, until_s)
        self.turn(now_s)
        return True


def _card(number: int, units: int, way: Way) -> DeviceOffer:
    uuid = GpuUuid(f"GPU-{number}")
    return DeviceOffer(
        device=uuid,
        gpu=uuid,
        index=str(number),
        gpu_index=number,
        resource=MEMORY_RESOURCE,
        strategy=Strategy.MPS,
        shared=Strategy.MPS,
        replicas=units,
        memory_bytes=1 << 30,
        guarantee=Guarantee.ADVISORY,
        count=units,
        by_memory=True,
        spread=way.spread,
    )


def live(
    cards: tuple[int, ...],
    way: Way,
    seed: int,
    hours: int,
    come: Callable[[int, Random], list[int]],
    lifetime_s: float = LIFETIME_S,
) -> Counts:
    """One life of a node. come: the sizes of the pods that come in this second."""
    rng = Random(seed)
    node, queue, found = Node(cards, way, Random(seed)), list[Pod](), Counts()
    for now_s in range(hours * 3600):
        ended = [id_ for id_, until_s in node.held.items() if until_s <= now_s]
        for id_ in ended:
            del node.held[id_]
        if ended or now_s % 60 == 0:
            node.turn(now_s)
        if now_s % STATUS_S == 0:
            node.allocatable = sum(row.healthy for row in node.rows)
        queue += [Pod(size, now_s, now_s) for size in come(now_s, rng)]
        for pod in [pod for pod in queue if pod.due_s <= now_s]:
            if node.allocatable - len(node.held) < pod.size or (way.aware and node.most_free() < pod.size):
                continue
            if node.admit(pod.size, now_s + 1 + int(rng.expovariate(1 / lifetime_s)), now_s):
                queue.remove(pod)
                found.started += 1
                found.waited_s += now_s - pod.came_s
            else:
                found.refused += 1
                pod.due_s = now_s + AGAIN_S
        found.used += len(node.held)
        found.seconds += 1
    return found


def _poisson(cards: tuple[int, ...], load: float) -> Callable[[int, Random], list[int]]:
    """Pods that ask for ``load`` times what the GPUs have, on average."""
    each_s = load * sum(cards) / LIFETIME_S / (sum(SIZES) / len(SIZES))
    sizes = [size for size in SIZES if size <= max(cards)]

    def come(_now_s: int, rng: Random) -> list[int]:
        return [rng.choice(sizes)] if rng.random() < each_s else []

    return come


def _stuck(now_s: int, _rng: Random) -> list[int]:
    """Three GPUs of four half full for the whole time, and one replica that no GPU can have."""
    return [50, 50, 50, 50, 40] if now_s == 0 else []


def main(hours: int = HOURS, seeds: int = 3) -> None:
    """Print the tables."""
    write = sys.stdout.write
    for title, cards in (("2 x 23 and 2 x 79 GiB", MIXED), ("4 x 79 GiB", EQUAL)):
        for load in LOADS:
            write(f"\n{title}, demand {load:.0%} of the memory, {seeds} x {hours} h\n")
            write(f"{'':44}{'refused per':>12}{'mean wait':>12}{'memory':>8}\n")
            write(f"{'':44}{'100 started':>12}{'s':>12}{'held':>8}\n")
            for way in WAYS:
                long = way.prefers  # the other one loses pods by the thousand
                lives = [(seed, hours if long else 1) for seed in range(seeds if long else 1)]
                runs = [live(cards, way, seed, lasts, _poisson(cards, load)) for seed, lasts in lives]
                started = sum(one.started for one in runs)
                refused = 100 * sum(one.refused for one in runs) / started
                wait = sum(one.waited_s for one in runs) / started
                used = sum(one.used for one in runs) / sum(one.seconds for one in runs) / sum(cards)
                write(f"{way.name:44}{refused:12,.0f}{wait:12.0f}{used:8.0%}\n")
    write("\none replica of 40 GiB that no GPU ever has free, for 24 h: pods lost\n")
    for way in WAYS[1:3]:
        write(f"{way.name:44}{live(EQUAL, way, 0, 24, _stuck, lifetime_s=1e9).refused:12,}\n")


if __name__ == "__main__":
    main()
