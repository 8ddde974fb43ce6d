"""Pods on a node with four simulated GPUs, each shared in another way, through the real kubelet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("tenants")

POLICY = """\
version: partage/v1
gpus:
  - select: {index: [0]}
    time-slicing: {replicas: 4}
  - select: {index: [1]}
    mps: {replicas: 2}
    name: nvidia.com/gpu.mps
  - select: {index: [2]}
    mig: {layout: [3g.20gb, 2g.10gb, 1g.5gb]}
  - select: rest
    exclusive: {}
"""
OFFER = {
    "nvidia.com/gpu": 1,
    "nvidia.com/gpu.shared": 4,
    "nvidia.com/gpu.mps": 2,
    "nvidia.com/mig-3g.20gb": 1,
    "nvidia.com/mig-2g.10gb": 1,
    "nvidia.com/mig-1g.5gb": 1,
}


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    with cluster.with_chart(hardware={"machine": MACHINE}, config={"map": {"default": POLICY}}):
        cluster.until_allocatable(OFFER)
        yield cluster


def test_each_kind_of_share_reaches_its_container(node: Cluster) -> None:
    kinds = {
        "whole": ("nvidia.com/gpu", "exclusive", "hard"),
        "slice": ("nvidia.com/gpu.shared", "time-slicing", "none"),
        "mps": ("nvidia.com/gpu.mps", "mps", "advisory"),
        "mig": ("nvidia.com/mig-2g.10gb", "mig", "hard"),
    }
    node.apply(*(pod(name, {resource: 1}) for name, (resource, _, _) in kinds.items()))
    uuids = {gpu["index"]: gpu["uuid"] for gpu in node.report()["gpus"]}
    seen = {}
    for name, (resource, strategy, guarantee) in kinds.items():
        node.until_phase(name, "Running")
        environment = node.environment(name)
        assert environment["PARTAGE_RESOURCE"] == resource
        assert (environment["PARTAGE_STRATEGY"], environment["PARTAGE_GUARANTEE"]) == (strategy, guarantee)
        seen[name] = environment
    assert seen["whole"]["NVIDIA_VISIBLE_DEVICES"] == uuids[3]
    assert seen["slice"]["NVIDIA_VISIBLE_DEVICES"] == uuids[0]
    assert seen["mps"]["NVIDIA_VISIBLE_DEVICES"] == uuids[1]
    assert seen["mps"]["CUDA_MPS_PIPE_DIRECTORY"].endswith("/pipe")
    assert seen["mig"]["NVIDIA_VISIBLE_DEVICES"].startswith("MIG-")


def test_the_ledger_is_what_pods_have(node: Cluster) -> None:
    """Scenario 3 too: two GPU containers, a sidecar without a GPU and an init container in one pod."""
    init = {
        "name": "init",
        "image": "docker.io/library/busybox:local",
        "command": ["true"],
        "resources": {"limits": {"nvidia.com/gpu.shared": "1"}},
    }
    several = pod("several", {"nvidia.com/gpu.shared": 1}, {"nvidia.com/gpu.shared": 1}, {})
    several["spec"]["initContainers"] = [init]
    node.apply(several)
    node.until_phase("several", "Running")

    def agree() -> bool:
        mine = set(node.environment("several", "main")["PARTAGE_SHARES"].split(","))
        other = set(node.environment("several", "c1")["PARTAGE_SHARES"].split(","))
        assert (len(mine), len(other), mine & other) == (1, 1, set())
        assert "PARTAGE_SHARES" not in node.environment("several", "c2")
        assert node.ledger()["several"] == mine | other
        return True

    node.until("the ledger has what the containers have", agree)


@pytest.mark.parametrize("attempt", range(3))
def test_ten_equal_pods_at_once(node: Cluster, attempt: int) -> None:
    """Scenario 1: four fit on the GPU; the others wait, and no share is given twice. Every time."""
    del attempt
    node.until("nothing is held", lambda: not node.ledger())
    node.apply(*(pod(f"equal-{number}", {"nvidia.com/gpu.shared": 1}) for number in range(10)))

    def settled() -> list[str]:
        phases = node.phases()
        assert Counter(phases.values()) == {"Running": 4, "Pending": 6}, phases
        return [name for name, phase in phases.items() if phase == "Running"]

    running = node.until("four pods run and six wait", settled)
    node.until_ledger(node.shares(*running))


def test_a_restarted_kubelet_gets_the_same_offer_and_the_same_holders(node: Cluster) -> None:
    if not node.own:
        pytest.skip("only the kubelet of an own cluster may be restarted")
    node.apply(pod("stays", {"nvidia.com/gpu.shared": 1}, {"nvidia.com/gpu.shared": 1}))
    node.until_phase("stays", "Running")
    before = node.until("the ledger names the pod", lambda: node.ledger().get("stays")) or set()
    node.restart_kubelet()
    node.until_allocatable(OFFER)
    assert node.until("the ledger names it again", lambda: node.ledger().get("stays")) == before
    node.apply(pod("after", {"nvidia.com/gpu.shared": 1}))
    node.until_phase("after", "Running")
    given = node.environment("after")["PARTAGE_SHARES"].split(",")
    assert not set(given) & before


def test_the_agent_is_replaced_under_running_pods(node: Cluster) -> None:
    """Scenarios 2 and 21: an upgrade replaces the agent; pods and what they hold do not notice."""
    node.apply(pod("busy", {"nvidia.com/gpu.shared": 1}), pod("mig", {"nvidia.com/mig-3g.20gb": 1}))
    for name in ("busy", "mig"):
        node.until_phase(name, "Running")
    before = node.until("the ledger names both", lambda: len(node.ledger()) == 2 and node.ledger())
    old = node.component("agent")["metadata"]["name"]
    node.install(
        hardware={"machine": MACHINE},
        config={"map": {"default": POLICY}},
        agent={"logLevel": "debug"},
    )
    node.until("another agent runs", lambda: node.component("agent")["metadata"]["name"] != old)
    node.until_allocatable(OFFER)
    assert node.until("the ledger names both", lambda: len(node.ledger()) == 2 and node.ledger()) == before
    for name in ("busy", "mig"):
        status = node.pod(name)["status"]
        assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Running", 0)


def test_a_pod_that_asks_for_more_than_there_is_is_told_so(node: Cluster) -> None:
    node.apply(pod("greedy", {"nvidia.com/gpu": 2}))

    def refused() -> str:
        conditions = node.pod("greedy")["status"].get("conditions", [])
        said = " ".join(one.get("message", "") for one in conditions)
        assert "Insufficient nvidia.com/gpu" in said, said
        return said

    node.until("the scheduler says what is missing", refused)


# --- what each part may do ------------------------------------------------------------------------


def test_the_agent_has_no_capability_and_the_helper_no_token_and_no_network(node: Cluster) -> None:
    agent, helper = (node.component(name)["metadata"]["name"] for name in ("agent", "hardware"))
    status = node.kubectl("exec", "-n", NAMESPACE, agent, "--", "cat", "/proc/self/status")
    assert "CapEff:\t0000000000000000" in status
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    assert "No such file" in node.kubectl("exec", "-n", NAMESPACE, helper, "--", "ls", token, check=False)
    # A program that is started in a container enters the namespaces of its first process.
    devices = {
        pod: node.kubectl("exec", "-n", NAMESPACE, pod, "--", "cat", "/proc/net/dev")
        for pod in (agent, helper)
    }
    assert ["eth0" in devices[pod] for pod in (agent, helper)] == [True, False]


CONNECT = """
import socket
peer = socket.socket(socket.AF_UNIX); peer.settimeout(10); peer.connect('/run/partage/hardware.sock')
print(peer.recv(65536)[4:].decode())
"""


def test_the_helper_serves_the_agents_container_and_no_other(node: Cluster) -> None:
    """Root in another pod that has the run directory mounted is still not served."""
    image = node.component("agent")["spec"]["containers"][0]["image"]
    stranger = pod("stranger", {}, hostPID=True)
    stranger["spec"]["containers"][0] |= {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/opt/partage/bin/python", "-c", CONNECT],
        "volumeMounts": [{"name": "run", "mountPath": "/run/partage"}],
        "securityContext": {"privileged": True},
    }
    stranger["spec"]["volumes"] = [{"name": "run", "hostPath": {"path": "/run/partage"}}]
    node.apply(stranger)
    node.until_phase("stranger", "Failed", "Succeeded")
    said = node.kubectl("logs", "stranger")
    assert "only gpu-sharing/partage-agent-*/agent is allowed" in said, said
