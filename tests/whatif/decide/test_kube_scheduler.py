"""The default rules of kube-scheduler, with the figures of its own tests (1.36)."""

from __future__ import annotations

import pytest

from partage.whatif.decide.demand import NodeOffer
from partage.whatif.decide.kube_scheduler import (
    MOST_PODS,
    KubeScheduler,
    Node,
    PodClass,
    balance,
    balanced_allocation,
    drawn,
    feasible_wanted,
    least_allocated,
)
from partage.whatif.decide.node_devices import NodeAllocator
from partage.whatif.decide.pods import PodWants
from tests.whatif.decide.fleets import POLICIES, desired, kind


@pytest.mark.parametrize(
    ("cpu", "most_cpu", "memory", "most_memory", "score"),
    [
        (3000, 4000, 5000, 10_000, 37),
        (3000, 6000, 5000, 10_000, 50),
        (6000, 10_000, 0, 20_000, 70),
        (6000, 4000, 0, 10_000, 50),
    ],
)
def test_least_allocated(cpu: int, most_cpu: int, memory: int, most_memory: int, score: int) -> None:
    assert least_allocated(cpu, most_cpu, memory, most_memory) == score


@pytest.mark.parametrize(
    ("cpu", "most_cpu", "memory", "most_memory", "score"),
    [
        ((3000, 6000), 10_000, (0, 5000), 20_000, 73),
        ((3000, 6000), 10_000, (5000, 10_000), 20_000, 74),
        ((3000, 6000), 10_000, (5000, 10_000), 50_000, 70),
        ((3000, 3000), 3000, (0, 5000), 5000, 100),
        ((0, 0), 3000, (0, 5000), 5000, 50),
        ((3000, 6000), 6000, (0, 0), 10_000, 62),
        ((0, 3000), 3500, (0, 5000), 40_000, 56),
    ],
)
def test_balanced_allocation(
    cpu: tuple[int, int], most_cpu: int, memory: tuple[int, int], most_memory: int, score: int
) -> None:
    before, then = (balance(cpu[n], most_cpu, memory[n], most_memory) for n in (0, 1))
    assert balanced_allocation(before, then) == score


@pytest.mark.parametrize(("nodes", "wanted"), [(10, 10), (99, 99), (125, 100), (1000, 420), (6000, 300)])
def test_after_how_many_nodes_it_looks_no_further(nodes: int, wanted: int) -> None:
    assert feasible_wanted(nodes) == wanted


def _nodes(count: int) -> list[Node]:
    what = kind("1xt4", 8, 32)
    offer = NodeOffer(desired(POLICIES["exclusive"], [what])[0])
    return [Node(f"node-{number}", 0, what, NodeAllocator(offer)) for number in range(count)]


def _class(cpu_milli: int = 1000, gpus: int = 0) -> PodClass:
    wants = PodWants(cpu_milli=cpu_milli, gpus=gpus, gpu_milli=1000 * gpus)
    return PodClass(0, wants, [(("nvidia.com/gpu", 1),) if gpus else ()])  # type: ignore[list-item]


def test_the_emptiest_node_is_taken_and_a_full_one_is_not() -> None:
    nodes = _nodes(3)
    scheduler, pod, draw = KubeScheduler(nodes), _class(4000), drawn(0)
    taken = []
    while best := scheduler.best(pod):
        at = draw(0, best)
        nodes[at].take(pod, 0.0)
        scheduler.changed(at)
        taken.append(at)
    assert sorted(taken) == [0, 0, 1, 1, 2, 2]
    assert len(set(taken[:3])) == 3, "the emptiest first"


def test_a_node_has_so_many_pods_and_no_more() -> None:
    (node,) = _nodes(1)
    pod = _class(0)
    for _ in range(MOST_PODS):
        assert node.fits(pod)
        node.take(pod, 0.0)
    assert not node.fits(pod)


def test_of_many_nodes_each_has_its_turn() -> None:
    """It looks at 188 of 400 nodes, and goes on behind them for the next pod."""
    nodes = _nodes(400)
    scheduler, pod = KubeScheduler(nodes), _class(gpus=1)
    assert feasible_wanted(400) == 188
    looked_at = [scheduler.best(pod) for _ in range(3)]
    assert looked_at == [[*range(188)], [*range(188, 376)], [*range(376, 400), *range(164)]]
