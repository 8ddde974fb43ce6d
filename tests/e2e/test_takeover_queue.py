"""NVIDIA's plugin (a stand-in) is swapped for Partage and back while pods wait behind full GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.cluster import GPU, TWICE, Cluster
from tests.e2e.nvidia import LABEL, exchange, install_beside, nvidia_plugin
from tests.e2e.queues import SPEC, delete, ends_change_gpus, phases, until_gpus_wait
from tests.e2e.tenants import deployment

pytestmark = pytest.mark.usefixtures("own")

CASE = "none"
GPUS = 8


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Cluster]:
    """Eight exclusive GPUs of NVIDIA's plugin, and the agent beside it."""
    with nvidia_plugin(cluster, CASE):
        cluster.until_allocatable_count(GPU, GPUS)
        install_beside(cluster, CASE, shared=TWICE)
        yield cluster
        cluster.remove_tenants()
        cluster.choose(None)
        cluster.uninstall()


def _holds(node: Cluster) -> dict[str, set[str]]:
    """What the kubelet has given to whom; nothing is given twice."""
    found = node.kubelet_holds()
    assert len(set().union(*found.values())) == sum(map(len, found.values())), found
    return found


def _until_full(node: Cluster) -> dict[str, set[str]]:
    """Wait until each GPU is held, by a pod that runs, while two wait; what each of those has."""

    def full() -> bool:
        found = phases(node)
        counts = (len(found.get("Running", ())), len(found.get("Pending", ())))
        return counts == (GPUS, 2) and _holds(node).keys() == found["Running"]

    node.until("the GPUs are held and two pods wait", full, 90)
    return _holds(node)


def _nvidias(node: Cluster, name: str) -> bool:
    """Whether NVIDIA's plugin has given a pod its GPU."""
    return "PARTAGE_SHARES" not in node.environment(name)


def _nvidia_wanted(node: Cluster) -> bool:
    return bool(node.get("node", node.node)["metadata"]["labels"].get(LABEL) != "false")


def test_a_queue_waits_through_takeover_a_change_and_handback(node: Cluster, tmp_path: Path) -> None:
    node.apply(deployment("queue", GPUS + 2, {GPU: 1}, **SPEC))
    before = _until_full(node)
    ends = min(before)
    with ThreadPoolExecutor(1) as beside:
        said = beside.submit(exchange, node, "takeover", tmp_path)
        node.until("NVIDIA's plugin has to go", lambda: not _nvidia_wanted(node))
        delete(node, ends)  # while one plugin goes and the other one comes
        assert "done: the kubelet asks Partage" in said.result()
    held = _until_full(node)
    stays = {name: ids for name, ids in before.items() if name != ends}
    assert stays.items() <= held.items()
    (next_one,) = held.keys() - stays.keys()
    assert held[next_one] == before[ends]
    assert all(_nvidias(node, name) for name in stays)

    until_gpus_wait(node, "shared", GPUS)
    ends_change_gpus(node, sorted(held), delete)
    assert "Running" not in phases(node)

    node.choose(None)
    held = _until_full(node)
    assert not any(_nvidias(node, name) for name in held)
    assert "done: the kubelet asks NVIDIA's plugin" in exchange(node, "handback", tmp_path)
    assert _until_full(node) == held
    delete(node, min(held))
    (next_one,) = _until_full(node).keys() - held.keys()
    assert _nvidias(node, next_one)
