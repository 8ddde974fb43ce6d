"""A policy waits for a held GPU, the API server is away, and a kubelet starts: it knows no pods then."""

from __future__ import annotations

import time

import pytest

from tests.e2e.cluster import GPU, SHARED, TWICE, WHOLE, Cluster
from tests.e2e.tenants import deployment, pod

pytestmark = pytest.mark.usefixtures("own")
POLICIES = {"default": WHOLE, "shared": TWICE}


def _shares(node: Cluster) -> dict[str, set[str]]:
    """Pod (its UID) to the ids that its containers were given."""
    found: dict[str, set[str]] = {}
    for row in node.nothing_is_given_twice():
        found.setdefault(row.pod, set()).update(row.shares)
    return found


@pytest.mark.parametrize("away_s", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_nothing_is_given_twice(node: Cluster, away_s: int) -> None:
    """Static pods come at that time: the kubelet has them from its files and gives them what is listed."""
    node.apply(pod("holder", {GPU: 1}))
    node.until_phase("holder", "Running")
    node.until("the ledger names it", lambda: "holder" in node.ledger())
    node.choose("shared")
    node.until_allocatable_count(SHARED, 6)
    node.apply(*(pod(f"sharer-{number}", {SHARED: 1}) for number in range(2)))
    for number in range(2):
        node.until_phase(f"sharer-{number}", "Running")
    node.until("the ledger names all", lambda: len(node.ledger()) == 3)
    before = _shares(node)
    node.stop_api_server()
    gone_at = time.monotonic()
    try:
        node.restart_kubelet()
        # Earlier it refuses the pods of its files, for good: it has nothing to give.
        node.until("the kubelet has the agent's list", lambda: node.kubelet_offers() == {GPU: 1, SHARED: 6})
        for number in range(4):
            node.add_static_pod(pod(f"file-{number}", {SHARED: 1}))
        node.until("some of them run", lambda: len(_shares(node)) > len(before))
        while time.monotonic() < gone_at + away_s:
            assert before.items() <= _shares(node).items()
            time.sleep(0.2)
    finally:
        node.start_api_server()
    node.until("the agent has the holder", lambda: "holder" in node.ledger())
    # Before, the scheduler does not know of their shares, and sends pods that the kubelet refuses.
    for number in range(4):
        node.until_phase(f"file-{number}-{node.node}", "Running")
    assert before.items() <= _shares(node).items()
    for name in ("holder", "sharer-0", "sharer-1"):
        status = node.pod(name)["status"]
        assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Running", 0)

    def given(count: int) -> bool:
        assert len(_shares(node)) == count, node.phases()
        return True

    # The scheduler may still know less than the API server, and send pods that the kubelet refuses for good.
    node.apply(deployment("after", 4, {SHARED: 1}))
    node.until("the node is full", lambda: given(7))
    assert len(node.gpus_in("waiting")) == 1
    node.kubectl("delete", "pod", "holder")
    node.until("its GPU changes", lambda: node.allocatable().get(SHARED) == 8)
    node.until("and is given", lambda: given(8))
