"""Labels of the Node choose the policy and the MIG layout; an edit of the ConfigMap is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("tenants")

WHOLE = "version: partage/v1\n"
SHARED = "version: partage/v1\ngpus:\n  - select: all\n    time-slicing: {replicas: %d}\n"
NVIDIA = "version: v1\nsharing:\n  timeSlicing:\n    resources: [{name: nvidia.com/gpu, replicas: 3}]\n"
LABEL = "nvidia.com/device-plugin.config"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    policies = {"default": WHOLE, "shared": SHARED % 2, "nvidia": NVIDIA}
    with cluster.with_chart(hardware={"machine": MACHINE}, config={"map": policies}):
        cluster.until_allocatable({"nvidia.com/gpu": 4})
        yield cluster
        for label in (LABEL, "partage.dev/policy", "nvidia.com/mig.config"):
            cluster.kubectl("label", "node", cluster.node, f"{label}-", check=False)


def _label(node: Cluster, **labels: str) -> None:
    """Set labels; ``-`` removes one."""
    pairs = [f"{key}-" if value == "-" else f"{key}={value}" for key, value in labels.items()]
    node.kubectl("label", "node", node.node, "--overwrite", *pairs)


def _policy(node: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = node.report()["policy"]
    return found


def test_a_label_chooses_and_its_removal_goes_back(node: Cluster) -> None:
    _label(node, **{LABEL: "shared"})
    node.until_allocatable({"nvidia.com/gpu.shared": 8})
    _label(node, **{LABEL: "nvidia"})
    node.until_allocatable({"nvidia.com/gpu": 12})
    _label(node, **{LABEL: "-"})
    node.until_allocatable({"nvidia.com/gpu": 4})


def test_an_unknown_name_changes_nothing_and_is_said(node: Cluster) -> None:
    """Scenario 12, too: the label is removed, and set again."""
    _label(node, **{LABEL: "shared"})
    node.until_allocatable({"nvidia.com/gpu.shared": 8})
    _label(node, **{LABEL: "no-such-policy"})
    node.until("the report names it", lambda: "no-such-policy" in str(_policy(node)))
    node.until_allocatable({"nvidia.com/gpu.shared": 8})
    assert "policy-unknown" in node.agent_http("healthz")
    _label(node, **{LABEL: "-"})
    node.until_allocatable({"nvidia.com/gpu": 4})


def test_an_edit_of_the_config_map_is_noticed(node: Cluster) -> None:
    _label(node, **{LABEL: "shared"})
    node.until_allocatable({"nvidia.com/gpu.shared": 8})
    patch = {"data": {"shared": SHARED % 3}}
    node.kubectl("patch", "configmap", "partage-policies", "-n", NAMESPACE, "-p", node.json(patch))
    node.until_allocatable(
        {"nvidia.com/gpu.shared": 12}, timeout_s=150
    )  # the kubelet mounts it within a minute
    broken = {
        "data": {
            "shared": "version: partage/v1\ngpus:\n  - select: all\n    time-slicing: {replicas: many}\n"
        }
    }
    node.kubectl("patch", "configmap", "partage-policies", "-n", NAMESPACE, "-p", node.json(broken))
    node.until("the report says what is wrong", lambda: "many" in str(_policy(node)), timeout_s=150)
    node.until_allocatable({"nvidia.com/gpu.shared": 12})
    node.kubectl(
        "patch",
        "configmap",
        "partage-policies",
        "-n",
        NAMESPACE,
        "-p",
        node.json({"data": {"shared": SHARED % 2}}),
    )
    node.until_allocatable({"nvidia.com/gpu.shared": 8}, timeout_s=150)
    _label(node, **{LABEL: "-"})
    node.until_allocatable({"nvidia.com/gpu": 4})


def test_labels_that_change_twice_in_a_second(node: Cluster) -> None:
    """The last one holds, whatever was begun for the one before."""
    for number in range(4):
        _label(node, **{LABEL: "shared"})
        _label(node, **{LABEL: "nvidia", "nvidia.com/mig.config": "all-1g.5gb"})
        _label(node, **{LABEL: "shared", "nvidia.com/mig.config": "-"})
        if number % 2:
            _label(node, **{LABEL: "-"})
        node.until_allocatable({"nvidia.com/gpu": 4} if number % 2 else {"nvidia.com/gpu.shared": 8})
        assert {gpu["phase"] for gpu in node.report()["gpus"]} == {"settled"}
    assert not node.pending_plan()


def test_a_policy_change_waits_for_the_pod_and_no_longer(node: Cluster) -> None:
    node.apply(pod("in-the-way", {"nvidia.com/gpu": 1}))
    node.until_phase("in-the-way", "Running")
    _label(node, **{LABEL: "nvidia"})
    # Three GPUs change at once; the other keeps the share that is held, and offers nothing else.
    node.until_allocatable({"nvidia.com/gpu": 10})
    node.until("the report names the pod", lambda: "in-the-way" in str(node.report()["gpus"]))
    assert node.pod("in-the-way")["status"]["phase"] == "Running"
    node.kubectl("delete", "pod", "in-the-way", "--grace-period=0", "--force")
    node.until_allocatable({"nvidia.com/gpu": 12})
    _label(node, **{LABEL: "-"})
    node.until_allocatable({"nvidia.com/gpu": 4})


def test_mig_config_makes_a_layout_and_says_how_it_went(node: Cluster) -> None:
    def state() -> str:
        found: str = node.get("node", node.node)["metadata"]["labels"].get("nvidia.com/mig.config.state", "")
        return found

    _label(node, **{"nvidia.com/mig.config": "all-1g.5gb"})
    node.until_allocatable({"nvidia.com/mig-1g.5gb": 28})
    node.until("the state is success", lambda: state() == "success")
    _label(node, **{"nvidia.com/mig.config": "no-such-layout"})
    node.until("the state is failed", lambda: state() == "failed")
    node.until_allocatable({"nvidia.com/mig-1g.5gb": 28})
    _label(node, **{"nvidia.com/mig.config": "all-disabled"})
    node.until_allocatable({"nvidia.com/gpu": 4})
    node.until("the state is success", lambda: state() == "success")
    _label(node, **{"nvidia.com/mig.config": "-"})
