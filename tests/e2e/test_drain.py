"""Pods in the way of a change: what an admin reads, and eviction where policy and chart allow it."""

from __future__ import annotations

from tests.e2e.cluster import GPU, MACHINE, NAMESPACE, SHARED, TWICE, WHOLE, Cluster, Json
from tests.e2e.tenants import pod

POLICIES = {
    "default": WHOLE,
    "waits": TWICE,
    "drains": TWICE + "    change: {drain: 10m, also: bare}\n",
    "hurries": TWICE + "    change: {drain: 8s, also: bare}\n",
}


def _budget(name: str = "none-may-leave") -> Json:
    """It forbids to evict any tenant."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "labels": {"partage-e2e": "tenant"}},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"partage-e2e": "tenant"}}},
    }


def _hold_a_gpu(node: Cluster) -> None:
    node.apply(pod("holder", {GPU: 1}))
    node.until_phase("holder", "Running")
    node.until("the ledger names the pod", lambda: "holder" in node.ledger())


def _in_force(node: Cluster, *reasons: str) -> str:
    """What the condition says, once it has one of these reasons."""

    def said() -> str:
        condition = node.condition("PartagePolicyInForce")
        assert condition.get("reason") in reasons, condition
        return str(condition["message"])

    return node.until(f"the condition says {reasons}", said) or ""


def test_a_pod_that_gets_no_share_during_a_change_is_explained(node: Cluster) -> None:
    """The scheduler says what is missing, the Node why: what changes, and whom it waits for."""
    node.apply(pod("holder", {GPU: 1}), *(pod(f"other-{n}", {GPU: 1}) for n in range(3)))
    for name in ("holder", "other-0", "other-1", "other-2"):
        node.until_phase(name, "Running")
    node.choose("waits")
    message = _in_force(node, "ChangeWaits")
    assert "default/holder" in message, message
    node.apply(pod("late", {GPU: 1}))

    def refused() -> bool:
        conditions = node.pod("late")["status"].get("conditions", [])
        said = " ".join(one.get("message", "") for one in conditions)
        assert f"Insufficient {GPU}" in said, said
        return True

    node.until("the scheduler says what is missing", refused)
    assert node.condition("PartagePolicyInForce")["status"] == "False"
    plan = node.until("the annotation has the plan", lambda: len(node.pending_plan().get("gpus", [])) == 4)
    assert plan
    rows = node.pending_plan()["gpus"]
    assert {row["phase"] for row in rows} == {"waiting"}
    assert {one for row in rows for one in row["pods"]} == {
        f"default/{name}" for name in ("holder", "other-0", "other-1", "other-2")
    }
    gpus = node.report()["gpus"]
    assert all(gpu["phase"] == "waiting" and gpu["reason"] and gpu["steps"] == [] for gpu in gpus), gpus
    assert {one["pod"] for gpu in gpus for row in gpu["waitingFor"] for one in row["holders"]} == {
        "holder", "other-0", "other-1", "other-2"
    }  # fmt: skip
    node.until("an event of the Node says so", lambda: node.events("ChangeWaits", node.node))
    node.until("an event of the pod says so", lambda: node.events("ChangeWaitsForPod", "holder"))
    agent = node.component("agent")["metadata"]["name"]
    show = ("partage", "show", f"--machine={MACHINE}", "--run-dir=/run/partage")
    shown = node.kubectl("exec", "-n", NAMESPACE, agent, "--", *show)
    assert "default/holder" in shown, shown


def test_a_budget_holds_the_change_up_until_it_is_lifted(node: Cluster) -> None:
    node.apply(_budget())
    _hold_a_gpu(node)
    node.choose("drains")
    node.until("an event of the pod says so", lambda: node.events("DrainNotAllowed", "holder"), timeout_s=30)
    said = node.events("DrainNotAllowed", "holder")[0]
    assert "PodDisruptionBudget forbids its eviction" in said
    node.until_allocatable({SHARED: 6})
    assert "default/holder" in _in_force(node, "ChangeWaits")
    assert [row["pods"] for row in node.pending_plan()["gpus"]] == [["default/holder"]]
    assert node.pod("holder")["status"]["phase"] == "Running"
    node.kubectl("delete", "poddisruptionbudget", "none-may-leave")
    node.until_allocatable({SHARED: 8})
    assert "holder" not in node.kubectl("get", "pods", "-o", "name")
    assert node.events("DrainedForChange", "holder")
    _in_force(node, "InForce")
    node.until("the plan is gone from the Node", lambda: not node.pending_plan())


def test_two_budgets_that_never_allow_are_said_and_waited_for(node: Cluster) -> None:
    """The API server does not evict a pod that has two, and answers with an error of its own (500)."""
    node.apply(_budget("one"), _budget("another"))
    _hold_a_gpu(node)
    node.choose("drains")
    node.until_allocatable({SHARED: 6})
    said = "more than one PodDisruptionBudget"
    node.until(
        "it is said",
        lambda: said in node.agent_http("healthz") + str(node.events("DrainNotAllowed", "holder")),
    )
    assert node.pod("holder")["status"]["phase"] == "Running"
    node.kubectl("delete", "poddisruptionbudget", "one", "another")
    node.until_allocatable({SHARED: 8}, timeout_s=90)
    node.until("nothing is wrong any more", lambda: "node-not-updated" not in node.agent_http("healthz"))


def test_a_drain_that_takes_too_long_is_given_up(node: Cluster) -> None:
    """The GPU offers what it did before; it changes when the pod has left by itself."""
    node.apply(_budget())
    _hold_a_gpu(node)
    node.choose("hurries")
    message = _in_force(node, "ChangeFailed")
    assert "after a drain of 8 s it still waited for pod default/holder" in message
    node.until("an event says so", lambda: node.events("ChangeFailed", node.node))
    node.kubectl("delete", "poddisruptionbudget", "none-may-leave")
    node.kubectl("delete", "pod", "holder", "--grace-period=0", "--force")
    node.until_allocatable({SHARED: 8})


def test_without_the_right_nobody_is_evicted_and_it_is_said(node: Cluster) -> None:
    """The last one here: it installs the chart anew, without ``cluster.drain``."""
    assert node.agent_may("create", "pods/eviction")
    old = node.component("agent")["metadata"]["name"]
    node.install(hardware={"machine": MACHINE}, config={"map": POLICIES}, agent={"logLevel": "debug"})
    node.until("another agent runs", lambda: node.component("agent")["metadata"]["name"] != old)
    assert not node.agent_may("create", "pods/eviction")
    node.until_allocatable({GPU: 4})
    _hold_a_gpu(node)
    node.choose("drains")
    health = node.until("it is said", lambda: "pods are not evicted" in node.agent_http("healthz"))
    assert health
    said = node.agent_http("healthz")
    assert "node-not-updated" in said, said
    node.until_allocatable({SHARED: 6})
    assert node.pod("holder")["status"]["phase"] == "Running"
