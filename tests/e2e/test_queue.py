"""Pods wait behind full GPUs while a policy changes: each GPU changes when its own holders have ended."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster, Json
from tests.e2e.tenants import daemon_set, deployment, job, pod

pytestmark = pytest.mark.usefixtures("tenants")

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
ALL = "version: partage/v1\ngpus:\n  - select: all\n    time-slicing: {replicas: 2}\n"
HALF = "version: partage/v1\ngpus:\n  - select: {index: [0, 1]}\n    time-slicing: {replicas: 2}\n"
POLICIES = {
    "default": "version: partage/v1\n",
    "all": ALL,
    "half": HALF,
    "drains": ALL + "    change: drain\n",
}
SPEC: dict[str, Any] = {"terminationGracePeriodSeconds": 2}
"""With 0, an ordinary deletion is one by force."""


@pytest.fixture(scope="module")
def whole(cluster: Cluster) -> Iterator[Cluster]:
    values: dict[str, Any] = {
        "hardware": {"machine": MACHINE},
        "config": {"map": POLICIES},
        "cluster": {"drain": True},
    }
    cluster.install(**values)
    cluster.until_allocatable({GPU: 4})
    yield cluster
    cluster.uninstall()


@pytest.fixture
def node(whole: Cluster) -> Iterator[Cluster]:
    """Four exclusive GPUs that nobody holds."""
    yield whole
    whole.remove_tenants()
    whole.choose(None)
    whole.until_allocatable({GPU: 4})


def _delete(node: Cluster, name: str) -> None:
    node.kubectl("delete", "pod", name)


def _complete(node: Cluster, name: str) -> None:
    node.kubectl("exec", name, "--", "touch", "/end")


def _a_deployment(node: Cluster) -> None:
    node.apply(deployment("queue", 6, {GPU: 1}, **SPEC))


def _daemon_sets(node: Cluster) -> None:
    """Each makes the next pod as soon as its pod has ended."""
    node.apply(*(daemon_set(f"queue-{number}", {GPU: 1}, **SPEC) for number in range(5)))


def _a_job(node: Cluster) -> None:
    node.apply(job("queue", 6, 20, {GPU: 1}))


QUEUES: Mapping[str, tuple[Callable[[Cluster], None], Callable[[Cluster, str], None]]] = {
    "Deployment": (_a_deployment, _delete),
    "DaemonSet": (_daemon_sets, _delete),
    "Job": (_a_job, _complete),
}


def _phases(node: Cluster) -> dict[str, set[str]]:
    """Phase to the pods that are in it and not being deleted."""
    found: dict[str, set[str]] = {}
    for one in node.get("pods", "-l", "partage-e2e=tenant")["items"]:
        if "deletionTimestamp" not in one["metadata"]:
            found.setdefault(one["status"]["phase"], set()).add(one["metadata"]["name"])
    return found


def _holders(node: Cluster, count: int = 4) -> list[str]:
    """The pods that hold the GPUs, while others wait."""

    def full() -> bool:
        found = _phases(node)
        return len(found.get("Running", ())) == count and bool(found.get("Pending"))

    node.until("the GPUs are held and a pod waits", full)
    node.until("the ledger names the holders", lambda: len(node.ledger()) == count)
    return sorted(_phases(node)["Running"])


def _wait_for_change(node: Cluster, policy: str, count: int) -> None:
    node.choose(policy)
    node.until("the GPUs wait for their holders", lambda: len(node.gpus_in("waiting")) == count)


def _scheduled(node: Cluster) -> int:
    """How many tenants were given a place on the node so far."""
    events = node.get("events", "--field-selector", "reason=Scheduled")["items"]
    return len({one["involvedObject"]["uid"] for one in events})


def _unhurt(node: Cluster) -> dict[str, tuple[str, str]]:
    """The running pods with their phase and the ids that they have."""
    given = {row.pod: ",".join(sorted(row.shares)) for row in node.nothing_is_given_twice()}
    return {
        one["metadata"]["name"]: (one["status"]["phase"], given.get(one["metadata"]["uid"], ""))
        for one in node.get("pods", "-l", "partage-e2e=tenant")["items"]
        if one["status"]["phase"] != "Pending"
    }


def _ends_change_gpus(node: Cluster, holders: list[str], end: Callable[[Cluster, str], None]) -> None:
    """Each end of a holder changes a GPU, and no other pod gets one meanwhile."""
    for number, holder in enumerate(holders, 1):
        end(node, holder)
        node.until_allocatable_count(SHARED, 2 * number, timeout_s=30)
        assert len(node.nothing_is_given_twice()) == len(holders) - number
    node.until_allocatable({SHARED: 2 * len(holders)})


@pytest.mark.parametrize("kind", QUEUES)
def test_each_gpu_changes_when_its_holder_has_ended_once(node: Cluster, kind: str) -> None:
    begin, end = QUEUES[kind]
    begin(node)
    holders = _holders(node)
    _wait_for_change(node, "all", 4)
    _ends_change_gpus(node, holders, end)


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_a_drain_evicts_each_holder_once(node: Cluster, kind: str) -> None:
    QUEUES[kind][0](node)
    holders = _holders(node)
    before = _scheduled(node)
    node.choose("drains")
    node.until_allocatable({SHARED: 8}, timeout_s=90)
    assert _scheduled(node) == before, "no other pod got a GPU that was to change"
    assert not set(holders) & _phases(node).get("Running", set())


def test_a_container_starts_again_on_a_gpu_that_has_to_change(node: Cluster) -> None:
    _a_deployment(node)
    holders = _holders(node)
    before = _unhurt(node)
    _wait_for_change(node, "all", 4)
    for name in holders:
        node.kill_container(node.pod(name), "main")

    def again() -> bool:
        states = [node.pod(name)["status"]["containerStatuses"][0] for name in holders]
        return all(one["restartCount"] == 1 and "running" in one["state"] for one in states)

    node.until("each container runs again", again)
    assert _unhurt(node) == before
    _ends_change_gpus(node, holders, _delete)


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
    if not node.own:
        pytest.skip("only the kubelet of an own cluster may be restarted")
    node.apply(_with_init("initialised"), _that_fails("failing"))
    for name in ("initialised", "failing"):
        node.until_phase(name, "Running")
    node.apply(deployment("queue", 4, {GPU: 1}, **SPEC))
    holders = _holders(node)
    _wait_for_change(node, "all", 4)
    node.until("it backs off", lambda: _backs_off(node, "failing"), timeout_s=120)
    held, restarts = node.kubelet_holds(), _restarts(node, "failing")
    node.restart_kubelet()
    node.until("the kubelet names them again", lambda: node.kubelet_holds() == held)
    node.until("each GPU waits again", lambda: len(node.gpus_in("waiting")) == 4)
    node.until("the failing one is tried again", lambda: _restarts(node, "failing") > restarts, timeout_s=120)
    assert _phases(node).get("Running") == set(holders)
    assert "Failed" not in _phases(node)
    node.nothing_is_given_twice()
    node.until_allocatable_count(GPU, 0)  # until their holders are named, shares are given on
    for number, name in enumerate(holders, 1):
        _delete(node, name)
        node.until_allocatable_count(SHARED, 2 * number, timeout_s=30)


def test_a_new_agent_goes_on_with_the_change(node: Cluster) -> None:
    _a_deployment(node)
    holders = _holders(node)
    before = _unhurt(node)
    _wait_for_change(node, "all", 4)
    old = node.component("agent")["metadata"]["name"]
    node.kubectl("delete", "pod", "-n", NAMESPACE, old)
    node.until("another agent runs", lambda: node.component("agent")["metadata"]["name"] != old)
    node.until("each GPU waits again", lambda: len(node.gpus_in("waiting")) == 4)
    assert _unhurt(node) == before
    _ends_change_gpus(node, holders, _delete)


def test_no_kubelet_ends_when_ids_go_while_they_are_given(node: Cluster) -> None:
    """It reads what it has given away once more, and panics if that has left the list meanwhile."""
    if not node.own:
        pytest.skip("the pid of the kubelet is known only on an own cluster")
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
        _delete(node, on[index])
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
    _delete(node, on[0])
    node.until_allocatable({GPU: 2, SHARED: 4})
    assert node.pod("waits")["status"]["phase"] == "Pending"
    _delete(node, "next")  # what need not change is given to whoever waits
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
    _delete(node, "bare")
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
    if not node.own:
        pytest.skip("only an own API server can call this machine")
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
    assert len(before & _phases(node)["Running"]) >= 3
