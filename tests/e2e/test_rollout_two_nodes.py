"""A rollout over two real nodes: one changes at a time, the canary first, and its failure stops the other."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import GPU, NAMESPACE, SHARED, WHOLE, Cluster, Json
from tests.e2e.fleet import POLICIES, REPLICAS, Fleet, changes
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("tenants")

HURRIES = (
    "version: partage/v1\ngpus:\n  - select: all\n    exclusive: {}\n    change: {drain: 3s, also: bare}\n"
)
CANARY = {"pool": "test"}


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, second_node: Cluster) -> Iterator[Fleet]:
    both = Fleet(cluster, second_node)
    cluster.kubectl("create", "namespace", NAMESPACE, check=False)
    both.edit(WHOLE)
    both.install({})
    both.until_allocatable({GPU: 4})
    cluster.kubectl("label", "node", second_node.node, *(f"{key}={value}" for key, value in CANARY.items()))
    yield both
    cluster.uninstall()
    cluster.kubectl("delete", "configmap", POLICIES, "-n", NAMESPACE)


def test_two_nodes_that_want_to_change_at_once_do_so_in_turn(fleet: Fleet) -> None:
    fleet.until_done()
    with fleet.holders() as seen:
        fleet.edit(REPLICAS % 2)
        fleet.until_allocatable({SHARED: 8})
        fleet.until_done()
        fleet.first.until("the slot is free again", lambda: len(changes(seen)) >= 5)
        free, one, between, other, after = changes(seen)
    assert {one, other} == {node.node for node in fleet.nodes}
    assert free == between == after == ""
    for node in fleet.nodes:
        assert "node-not-updated" not in node.agent_http("healthz")


def test_the_canary_changes_first_and_the_other_when_it_is_done(fleet: Fleet) -> None:
    first, canary = (node.node for node in fleet.nodes)
    fleet.install(CANARY)
    fleet.edit(REPLICAS % 2)
    fleet.until_allocatable({SHARED: 8})
    fleet.until_done()
    with fleet.holders() as seen, fleet.notes() as said:
        fleet.edit(REPLICAS % 3)
        fleet.until_allocatable({SHARED: 12})
        fleet.until_done()
        fleet.first.until("the canary, then the other", lambda: changes(seen) == ["", canary, "", first, ""])
        lines = [line.split(" ", 1) for line in said.read_text().splitlines()]
    # Nodes are one collection: its events come in the order of their writing.
    wanted = fleet.note(fleet.first)["inForce"]
    states: dict[str, Json] = {}
    for name, text in lines:
        states[name] = json.loads(text)
        if states[first]["inForce"] == wanted:
            break
        assert states[first]["phase"] in ("done", "waiting"), states
    assert (states[canary]["inForce"], states[canary]["phase"]) == (wanted, "done"), states


@pytest.fixture
def holder(fleet: Fleet) -> Iterator[str]:
    """A pod on the canary that may not be evicted."""
    first, canary = fleet.nodes
    metadata = {"name": "none-may-leave"}
    first.apply(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata,
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"partage-e2e": "tenant"}}},
        },
        pod("holder", {SHARED: 1}, nodeSelector={"kubernetes.io/hostname": canary.node}),
    )
    first.until_phase("holder", "Running")
    canary.until("the ledger names the pod", lambda: "holder" in canary.ledger())
    yield "holder"
    first.kubectl("delete", "poddisruptionbudget", metadata["name"])


def test_a_failure_of_the_canary_stops_the_other_until_it_is_settled(fleet: Fleet, holder: str) -> None:
    first, canary = fleet.nodes
    before = first.allocatable()

    def stopped() -> str:
        code, said = fleet.rollout()
        phases = {row["name"]: row["phase"] for row in said["nodes"]}
        assert phases == {first.node: "waiting", canary.node: "failed"}, said
        assert code == 1, said
        return str(said["stopped"] or "")

    def reason() -> str:
        return str(first.condition("PartagePolicyInForce").get("reason"))

    with fleet.holders() as seen:
        fleet.edit(HURRIES)
        why = first.until("the rollout has stopped", stopped) or ""
        assert why.startswith(f"node {canary.node}: GPU"), why
        assert f"default/{holder}" in why, why
        first.until("the other node says so", lambda: reason() == "RolloutStopped")
        assert first.allocatable() == before
        assert changes(seen) == ["", canary.node]
        first.kubectl("delete", "pod", holder, "--grace-period=0", "--force")
        fleet.until_allocatable({GPU: 4})
        fleet.until_done()
        first.until("its turn", lambda: changes(seen) == ["", canary.node, "", first.node, ""])
