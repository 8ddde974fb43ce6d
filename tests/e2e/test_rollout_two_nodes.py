"""A rollout over two real nodes: one changes at a time, the canary first, and its failure stops the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster, Json
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("tenants")

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
WHOLE = "version: partage/v1\n"
REPLICAS = "version: partage/v1\ngpus:\n  - select: all\n    time-slicing: {replicas: %d}\n"
HURRIES = (
    "version: partage/v1\ngpus:\n  - select: all\n    exclusive: {}\n    change: {drain: 3s, also: bare}\n"
)
POLICIES = "fleet-policies"
LEASE, CANARY = "partage-rollout-0", {"pool": "test"}
NOTE = "partage.dev/rollout"


class Fleet:
    """Two nodes with the chart. Of ``nodes`` the second is the canary."""

    def __init__(self, first: Cluster, second: Cluster) -> None:
        self.first, self.second = first, second
        self.nodes = (first, second)

    def install(self, canary: dict[str, str]) -> None:
        self.first.install(
            hardware={"machine": MACHINE},
            config={"name": POLICIES},
            cluster={"drain": True},
            rollout={"maxChanging": 1, "canary": canary},
        )

    def edit(self, policy: str) -> None:
        """The one edit for both nodes."""
        metadata = {"name": POLICIES, "namespace": NAMESPACE}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        self.first.apply(config_map | {"data": {"default": policy}})

    def until_allocatable(self, expected: dict[str, int]) -> None:
        for node in self.nodes:
            node.until_allocatable(expected)

    def note(self, node: Cluster) -> Json:
        """What a node says of itself."""
        found: Json = json.loads(node.get("node", node.node)["metadata"]["annotations"][NOTE])
        return found

    def rollout(self) -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "-m", "partage", "rollout", "-n", NAMESPACE, "-o", "json"]
        environment = {**os.environ, "KUBECONFIG": str(self.first.kubeconfig)}
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=60, env=environment
        )
        assert not done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout)

    def until_done(self) -> None:
        """No node waits or changes, and the slot is free."""
        self.first.until("the rollout is done", lambda: self.rollout()[0] == 0)

    @contextmanager
    def watched(self, *what: str) -> Iterator[Path]:
        """Every version of an object, or of all of a kind, from now on: a file with a line for each."""
        command = ["kubectl", "--kubeconfig", str(self.first.kubeconfig), "get", *what, "--watch"]
        with tempfile.NamedTemporaryFile(suffix=".watch") as seen:
            watch = subprocess.Popen(command, stdout=seen)
            try:
                self.first.until("the watch has begun", lambda: Path(seen.name).stat().st_size > 0)
                yield Path(seen.name)
            finally:
                watch.kill()
                watch.wait()

    def holders(self) -> Any:
        """Who holds the Lease, in the order in which the API server has had it."""
        return self.watched("lease", LEASE, "-n", NAMESPACE, "-o", r"jsonpath=[{.spec.holderIdentity}]{'\n'}")

    def notes(self) -> Any:
        """What the nodes say, in the order in which the API server has had it."""
        shown = r"jsonpath={.metadata.name} {.metadata.annotations.partage\.dev/rollout}{'\n'}"
        return self.watched("nodes", "-o", shown)


def _changes(seen: Path) -> list[str]:
    """Lines that differ from the one before."""
    lines = [line.strip("[]") for line in seen.read_text().splitlines()]
    return [line for number, line in enumerate(lines) if number == 0 or line != lines[number - 1]]


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
        fleet.first.until("the slot is free again", lambda: len(_changes(seen)) >= 5)
        free, one, between, other, after = _changes(seen)
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
        fleet.first.until("the canary, then the other", lambda: _changes(seen) == ["", canary, "", first, ""])
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
        assert _changes(seen) == ["", canary.node]
        first.kubectl("delete", "pod", holder, "--grace-period=0", "--force")
        fleet.until_allocatable({GPU: 4})
        fleet.until_done()
        first.until("its turn", lambda: _changes(seen) == ["", canary.node, "", first.node, ""])
