"""A rollout with the rights that the chart grants: a slot is taken and freed, a pause holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster

WHOLE = "version: partage/v1\n"
SHARED = "version: partage/v1\ngpus:\n  - select: all\n    time-slicing: {replicas: 2}\n"
LABEL = "nvidia.com/device-plugin.config"
LEASE, CANARY = "partage-rollout-0", {"pool": "test"}


def _install(cluster: Cluster, **values: Any) -> None:
    config = {"map": {"default": WHOLE, "shared": SHARED}}
    cluster.install(
        **{"hardware": {"machine": MACHINE}, "config": config, "rollout": {"maxChanging": 1}, **values}
    )


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    try:
        _install(cluster)
        cluster.until_allocatable({"nvidia.com/gpu": 4})
        yield cluster
        cluster.kubectl("label", "node", cluster.node, f"{LABEL}-", check=False)
    finally:
        cluster.uninstall()


def _verb(node: Cluster, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "partage", "rollout", *arguments, "-n", NAMESPACE, "-o", "json"]
    environment = {**os.environ, "KUBECONFIG": str(node.kubeconfig)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def _label(node: Cluster, name: str) -> None:
    node.kubectl("label", "node", node.node, "--overwrite", f"{LABEL}={name}")


def test_a_node_takes_a_slot_for_its_change_and_frees_it(node: Cluster) -> None:
    node.until("the first policy waits for nobody", lambda: _verb(node)[0] == 0)
    assert "holderIdentity" not in node.get("lease", LEASE, "-n", NAMESPACE).get("spec", {})
    _label(node, "shared")
    node.until_allocatable({"nvidia.com/gpu.shared": 8})

    def freed() -> bool:
        spec = node.get("lease", LEASE, "-n", NAMESPACE)["spec"]
        assert spec["leaseTransitions"] == 1
        return not spec.get("holderIdentity")

    node.until("the slot is free", freed)
    node.until("the node says that it is done", lambda: _verb(node)[0] == 0)
    assert "node-not-updated" not in node.agent_http("healthz")


def test_a_paused_rollout_begins_nowhere_and_goes_on_when_it_is_resumed(node: Cluster) -> None:
    assert _verb(node, "pause")[1]["pausedBy"] == "hand"
    _label(node, "default")

    def paused() -> bool:
        (row,) = _verb(node)[1]["nodes"]
        assert (row["phase"], row["why"]) == ("waiting", "the rollout is paused"), row
        return True

    node.until("the node waits", paused)
    # Written by another part of the agent, a moment before or after the annotation.
    node.until(
        "the condition says so",
        lambda: node.condition("PartagePolicyInForce").get("reason") == "RolloutPaused",
    )
    node.until_allocatable({"nvidia.com/gpu.shared": 8})
    # An upgrade of the chart leaves alone what a person has paused.
    _install(node, agent={"logLevel": "debug"})
    node.until("it still waits", paused)
    node.until_allocatable({"nvidia.com/gpu.shared": 8})
    assert _verb(node, "resume")[1]["pausedBy"] is None
    node.until_allocatable({"nvidia.com/gpu": 4})


def test_without_a_canary_nobody_begins(node: Cluster) -> None:
    _install(node, rollout={"maxChanging": 1, "canary": CANARY})
    node.until_allocatable({"nvidia.com/gpu": 4})
    _label(node, "shared")
    node.until("it says so", lambda: "labels of canaries" in str(_verb(node)[1]["nodes"]))
    node.kubectl("label", "node", node.node, "pool=test")
    try:
        node.until_allocatable({"nvidia.com/gpu.shared": 8})
    finally:
        node.kubectl("label", "node", node.node, "pool-")


def test_the_account_may_write_the_leases_of_the_rollout_and_nothing_else_of_it(node: Cluster) -> None:
    account = f"--as=system:serviceaccount:{NAMESPACE}:partage-agent"

    def may(verb: str, what: str) -> bool:
        said = node.kubectl("auth", "can-i", verb, what, "-n", NAMESPACE, account, check=False)
        return said.strip().endswith("yes")

    assert may("update", f"leases.coordination.k8s.io/{LEASE}")
    assert not may("update", "leases.coordination.k8s.io/another")
    assert not may("delete", f"leases.coordination.k8s.io/{LEASE}")
    assert not may("create", "leases.coordination.k8s.io")
    for verb in ("patch", "update", "delete"):
        assert not may(verb, "configmaps/partage-rollout")
    assert not may("list", "configmaps/partage-policies")
