"""The chart is upgraded under load, removed and installed again under pods, and installed twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import CHART, MACHINE, NAMESPACE, Cluster
from tests.e2e.tenants import deployment, job, pod

pytestmark = pytest.mark.usefixtures("tenants")

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
REPLICAS = "version: partage/v1\ngpus:\n  - select: all\n    time-slicing: {replicas: %d}\n"
OTHER = "other-sharing"
"""Namespace of a second release."""


def _install(cluster: Cluster, replicas: int = 3, **values: Any) -> None:
    cluster.install(
        **{"hardware": {"machine": MACHINE}, "config": {"map": {"default": REPLICAS % replicas}}, **values}
    )


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Cluster]:
    """Three shares of each of four GPUs."""
    if not cluster.own:
        pytest.skip("what containers were given is seen only on an own cluster")
    try:
        _install(cluster)
        cluster.until_allocatable({SHARED: 12})
        yield cluster
        cluster.remove_tenants()
    finally:
        cluster.uninstall()


def _states(node: Cluster, app: str) -> dict[str, tuple[str, int]]:
    """Pod to its container and how often that was started again."""
    return {
        one["metadata"]["name"]: (status["containerID"], status["restartCount"])
        for one in node.get("pods", "-l", f"app={app}")["items"]
        for status in one["status"]["containerStatuses"]
    }


def test_an_upgrade_under_load(node: Cluster) -> None:
    """Eight shares are held, and pods come and go on the other four."""
    node.apply(deployment("held", 8, {SHARED: 1}))
    names = node.until_running("held", 8)
    before, shares = _states(node, "held"), node.shares(*names)
    short = job("load", 4, 500, {SHARED: 1})
    short["spec"]["template"]["spec"]["containers"][0]["command"] = ["sleep", "0.5"]
    short["spec"]["backoffLimit"] = 500  # a pod that comes while no agent listens fails, and is made anew
    node.apply(short)

    def done() -> int:
        return int(node.get("job", "load")["status"].get("succeeded", 0))

    node.until("the load is there", lambda: done() > 4)
    agent, helper = (node.component(name)["metadata"]["name"] for name in ("agent", "hardware"))
    _install(node, podAnnotations={"upgraded": "yes"}, wait=False)  # the helper waits for its deletion
    node.kubectl("delete", "pod", "-n", NAMESPACE, helper)  # as the update strategy OnDelete asks for
    node.until("another agent runs", lambda: node.component("agent")["metadata"]["name"] != agent)
    later = done()

    def goes_on() -> bool:
        node.nothing_is_given_twice()
        return done() > later + 8

    node.until("the load goes on", goes_on)
    node.kubectl("delete", "job", "load", "--cascade=foreground", "--wait")
    assert _states(node, "held") == before
    node.until_ledger(shares)
    node.until_allocatable({SHARED: 12})


@pytest.mark.parametrize("state", ["/var/lib/partage", "/var/lib/partage/second"])
def test_removed_and_installed_again_with_another_policy(node: Cluster, state: str) -> None:
    """A GPU keeps what is held on it until that is free, although the second agent may know nothing."""
    node.apply(pod("one", {SHARED: 1}), pod("two", {SHARED: 1}))
    for name in ("one", "two"):
        node.until_phase(name, "Running")
    held = node.shares("one", "two")
    node.until_ledger(held)
    gpus = {share.split("::")[0] for ids in held.values() for share in ids}
    node.run("helm", "uninstall", "partage", "-n", NAMESPACE, "--wait")
    node.until("its pods are gone", lambda: not node.get("pods", "-n", NAMESPACE)["items"])
    node.until("nothing is offered", lambda: not any(node.allocatable().values()))
    _install(node, 5, stateDir=state)
    node.until("the ledger knows both", lambda: node.ledger() == held)
    node.until("the other GPUs are offered", lambda: node.allocatable().get(SHARED, 0) >= 5 * (4 - len(gpus)))
    node.apply(deployment("more", 20, {SHARED: 1}))
    node.until_running("more", 5 * (4 - len(gpus)))
    for row in node.nothing_is_given_twice():
        assert row.strategy == ("time-slicing x 3" if row.gpus <= gpus else "time-slicing x 5"), row
    assert {name: node.shares(name)[name] for name in held} == held
    node.kubectl("delete", "pod", "one", "two")
    node.until_allocatable({SHARED: 20})
    node.until_running("more", 20)
    node.nothing_is_given_twice()


@pytest.fixture
def second(node: Cluster) -> Iterator[Cluster]:
    """The namespace of a second release, which is removed."""
    yield node
    node.run("helm", "uninstall", "second", "-n", OTHER, "--wait", check=False)
    node.kubectl("delete", "namespace", OTHER, "--wait", check=False)


@pytest.mark.parametrize("run", ["/run/partage", "/run/partage/second"])
def test_a_second_release_changes_nothing_and_says_why(second: Cluster, run: str) -> None:
    """Also with directories of its own: it finds that somebody else serves the kubelet."""
    node = second
    node.apply(pod("held", {SHARED: 1}))
    node.until_phase("held", "Running")
    held = node.shares("held")
    image, _, tag = node.image.rpartition(":")
    state = run.replace("/run/", "/var/lib/")
    values = {
        "image": {"repository": image, "tag": tag},
        "affinity": None,
        "hardware": {"machine": MACHINE},
        "config": {"map": {"default": REPLICAS % 2}},
        "runDir": run,
        "stateDir": state,
    }
    command = ("helm", "install", "second", str(CHART), "-n", OTHER, "--create-namespace", "-f", "-")
    node.run(*command, stdin=node.json(values))

    def refused() -> bool:
        selector = ("-n", OTHER, "-l", "app.kubernetes.io/component=agent")
        pods = node.get("pods", *selector)["items"]
        assert pods
        assert not any(status["ready"] for one in pods for status in one["status"]["containerStatuses"])
        logs = node.kubectl("logs", *selector, "--tail=200", check=False)
        logs += node.kubectl("logs", *selector, "--tail=200", "--previous", check=False)
        assert "another" in logs, logs[-2000:]
        return True

    node.until("it says why it does not serve", refused)
    node.until_ledger(held)
    node.until_allocatable({SHARED: 12})
    node.apply(pod("next", {SHARED: 1}))
    node.until_phase("next", "Running")
    assert node.environment("next")["PARTAGE_REPLICAS"] == "3"
    node.run("helm", "uninstall", "second", "-n", OTHER, "--wait")
    node.until_ledger(held | node.shares("next"))
    node.until_allocatable({SHARED: 12})
