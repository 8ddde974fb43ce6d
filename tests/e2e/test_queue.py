"""Pods wait behind full GPUs while a policy changes: each GPU changes when its own holders have ended."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.cluster import GPU, NAMESPACE, SHARED, TWICE, WHOLE, Cluster, Json
from tests.e2e.queues import (
    QUEUES,
    SPEC,
    delete,
    ends_change_gpus,
    phases,
    scheduled,
    until_full,
    until_gpus_wait,
)
from tests.e2e.tenants import deployment, pod

HALF = "version: partage/v1\ngpus:\n  - select: {index: [0, 1]}\n    time-slicing: {replicas: 2}\n"
pytestmark = pytest.mark.usefixtures("own")
POLICIES = {"default": WHOLE, "all": TWICE, "half": HALF, "drains": TWICE + "    change: drain\n"}


def _unhurt(node: Cluster) -> dict[str, tuple[str, str]]:
    """The running pods with their phase and the ids that they have."""
    given = {row.pod: ",".join(sorted(row.shares)) for row in node.nothing_is_given_twice()}
    return {
        one["metadata"]["name"]: (one["status"]["phase"], given.get(one["metadata"]["uid"], ""))
        for one in node.get("pods", "-l", "partage-e2e=tenant")["items"]
        if one["status"]["phase"] != "Pending"
    }


@pytest.mark.parametrize("kind", QUEUES)
def test_each_gpu_changes_when_its_holder_has_ended_once(node: Cluster, kind: str) -> None:
    begin, end = QUEUES[kind]
    begin(node)
    holders = until_full(node)
    until_gpus_wait(node, "all", 4)
    ends_change_gpus(node, holders, end)


@pytest.mark.parametrize("kind", QUEUES)
def test_a_drain_evicts_each_holder_once(node: Cluster, kind: str) -> None:
    QUEUES[kind][0](node)
    holders = until_full(node)
    before = scheduled(node)
    node.choose("drains")
    node.until_allocatable({SHARED: 8}, timeout_s=90)
    assert scheduled(node) == before, "no other pod got a GPU that was to change"
    assert not set(holders) & phases(node).get("Running", set())


def test_a_container_starts_again_on_a_gpu_that_has_to_change(node: Cluster) -> None:
    QUEUES["Deployment"][0](node)
    holders = until_full(node)
    before = _unhurt(node)
    until_gpus_wait(node, "all", 4)
    for name in holders:
        node.kill_container(node.pod(name), "main")

    def again() -> bool:
        states = [node.pod(name)["status"]["containerStatuses"][0] for name in holders]
        return all(one["restartCount"] == 1 and "running" in one["state"] for one in states)

    node.until("each container runs again", again)
    assert _unhurt(node) == before
    ends_change_gpus(node, holders, delete)


def _with_init(name: str) -> Json:
    """A pod whose init container had the GPU before its container, and has ended."""
    found = pod(name, {GPU: 1}, restartPolicy="Always", **SPEC)
    init = found["spec"]["containers"][0] | {"name": "init", "command": ["true"]}
    found["spec"]["initContainers"] = [init]
    return found


def _that_fails(name: str) -> Json:
    """A pod whose first container runs and whose second, with the GPU, fails again and again."""
    found = pod(name, {}, {GPU: 1}, restartPolicy="Always", **SPEC)
    found["spec"]["containers"][1]["command"] = ["sh", "-c", "sleep 1; exit 1"]
    return found


def _backs_off(node: Cluster, name: str) -> bool:
    statuses = node.pod(name)["status"]["containerStatuses"]
    return any(one["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff" for one in statuses)


def _restarts(node: Cluster, name: str) -> int:
    return sum(one["restartCount"] for one in node.pod(name)["status"]["containerStatuses"])


def test_a_restarted_kubelet_fails_none_of_the_holders(node: Cluster) -> None:
    """It admits each pod anew, and a container that does not run at that moment needs a healthy id."""
    node.apply(_with_init("initialised"), _that_fails("failing"))
    for name in ("initialised", "failing"):
        node.until_phase(name, "Running")
    node.apply(deployment("queue", 4, {GPU: 1}, **SPEC))
    holders = until_full(node)
    until_gpus_wait(node, "all", 4)
    node.until("it backs off", lambda: _backs_off(node, "failing"), timeout_s=120)
    held, restarts = node.kubelet_holds(), _restarts(node, "failing")
    node.restart_kubelet()
    node.until("the kubelet names them again", lambda: node.kubelet_holds() == held)
    node.until("each GPU waits again", lambda: len(node.gpus_in("waiting")) == 4)
    node.until("the failing one is tried again", lambda: _restarts(node, "failing") > restarts, timeout_s=120)
    assert phases(node).get("Running") == set(holders)
    assert "Failed" not in phases(node)
    node.nothing_is_given_twice()
    node.until_allocatable_count(GPU, 0)  # until their holders are named, shares are given on
    for number, name in enumerate(holders, 1):
        delete(node, name)
        node.until_allocatable_count(SHARED, 2 * number, timeout_s=30)


def test_a_new_agent_goes_on_with_the_change(node: Cluster) -> None:
    QUEUES["Deployment"][0](node)
    holders = until_full(node)
    before = _unhurt(node)
    until_gpus_wait(node, "all", 4)
    old = node.component("agent")["metadata"]["name"]
    node.kubectl("delete", "pod", "-n", NAMESPACE, old)
    node.until("another agent runs", lambda: node.component("agent")["metadata"]["name"] != old)
    node.until("each GPU waits again", lambda: len(node.gpus_in("waiting")) == 4)
    assert _unhurt(node) == before
    ends_change_gpus(node, holders, delete)


def test_no_kubelet_ends_when_ids_go_while_they_are_given(node: Cluster) -> None:
    """It reads what it has given away once more, and panics if that has left the list meanwhile."""
    kubelet = node.pid_of("kubelet")
    for attempt in range(6):
        name = GPU if attempt % 2 == 0 else SHARED
        node.apply(deployment(f"burst-{attempt}", 4, {name: 1}, **SPEC))
        policy = "all" if attempt % 2 == 0 else "default"
        node.choose(policy)
        node.until("the policy is in force", lambda: node.report()["policy"]["config"] == policy)  # noqa: B023 - asked at once
        node.nothing_is_given_twice()
        node.kubectl("delete", "deployment", f"burst-{attempt}", "--cascade=foreground", "--wait")
        node.until_allocatable({SHARED: 8} if attempt % 2 == 0 else {GPU: 4})
        assert node.pid_of("kubelet") == kubelet
        assert node.path_on_node("/").joinpath("../log/kubelet.log").read_text().count("panic:") == 0


def test_on_a_half_full_node_what_is_free_elsewhere_can_be_given(node: Cluster) -> None:
    """Two of four GPUs have to change and one of them is held; a pod still gets one of the other two."""
    node.apply(*(pod(f"first-{number}", {GPU: 1}, **SPEC) for number in range(4)))
    for number in range(4):
        node.until_phase(f"first-{number}", "Running")
    held = node.until("the ledger names all", lambda: len(node.ledger()) == 4 and node.ledger()) or {}
    uuids = {one["uuid"]: one["index"] for one in node.report()["gpus"]}
    on = {uuids[next(iter(ids)).split("::")[0]]: name for name, ids in held.items()}
    for index in (1, 3):
        delete(node, on[index])
    node.until("two are free", lambda: len(node.ledger()) == 2)
    node.choose("half")  # GPU 0 is held and has to change, GPU 1 is free and changes, 2 is held, 3 is free
    node.until_allocatable_count(SHARED, 2)
    node.apply(pod("next", {GPU: 1}, **SPEC))
    node.until_phase("next", "Running")
    (given,) = node.shares("next")["next"]
    assert uuids[given] == 3
    node.apply(pod("waits", {GPU: 1}, **SPEC))
    node.until("it waits", lambda: node.pod("waits")["status"]["phase"] == "Pending")
    node.until("the ledger names the third", lambda: "next" in node.ledger())
    delete(node, on[0])
    node.until_allocatable({GPU: 2, SHARED: 4})
    assert node.pod("waits")["status"]["phase"] == "Pending"
    delete(node, "next")  # what need not change is given to whoever waits
    node.until_phase("waits", "Running")
    node.nothing_is_given_twice()


def test_a_drain_leaves_pods_that_nobody_makes_again(node: Cluster) -> None:
    node.apply(deployment("made-again", 3, {GPU: 1}, **SPEC), pod("bare", {GPU: 1}, **SPEC))
    node.until_phase("bare", "Running")
    node.until_running("made-again", 3)
    node.until("the ledger names all", lambda: len(node.ledger()) == 4)
    node.choose("drains")
    node.until_allocatable({SHARED: 6})
    node.until("an event of the pod says so", lambda: node.events("DrainSkipped", "bare"))
    assert node.pod("bare")["status"]["phase"] == "Running"
    assert "default/bare" in node.condition("PartagePolicyInForce")["message"]
    delete(node, "bare")
    node.until_allocatable({SHARED: 8})


@contextmanager
def _slow_evictions(node: Cluster) -> Iterator[socket.socket]:
    """Each takes 10 s: a webhook is asked that never answers. The socket on which it listens."""
    with socket.create_server(("10.244.0.1", 0)) as listening:
        webhook = {
            "name": "slow.partage.test",
            "clientConfig": {"url": f"https://10.244.0.1:{listening.getsockname()[1]}/"},
            "rules": [
                {
                    "operations": ["CREATE"],
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods/eviction"],
                }
            ],
            "failurePolicy": "Ignore",
            "timeoutSeconds": 10,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        kind = "ValidatingWebhookConfiguration"
        node.apply(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": kind,
                "metadata": {"name": "slow-evictions"},
                "webhooks": [webhook],
            }
        )
        try:
            yield listening
        finally:
            node.kubectl("delete", kind, "slow-evictions")


def test_a_drain_ends_when_the_policy_is_taken_back(node: Cluster) -> None:
    """Only the eviction that is under way then may still happen."""
    node.apply(deployment("queue", 4, {GPU: 1}, **SPEC))
    before = set(node.until_running("queue", 4))
    node.until("the ledger names all", lambda: len(node.ledger()) == 4)
    with _slow_evictions(node) as asked:
        asked.settimeout(60)
        node.choose("drains")
        first, _ = asked.accept()
        node.choose(None)
        node.until("the old policy is in force", lambda: len(node.gpus_in("settled")) == 4)
        asked.settimeout(12)  # longer than an eviction takes
        with pytest.raises(TimeoutError):
            asked.accept()
        first.close()
    node.until_running("queue", 4)
    node.until_allocatable({GPU: 4})
    assert len(before & phases(node)["Running"]) >= 3
