"""The node reboots, as near to it as can be had without one: nothing runs any more, and ``/run`` is empty."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.tenants import deployment

pytestmark = pytest.mark.usefixtures("tenants")

POLICY = """\
version: partage/v1
gpus:
  - select: {index: [0]}
    mig: {layout: [3g.20gb, 2g.10gb, 1g.5gb]}
  - select: {index: [1]}
    time-slicing: {replicas: 4}
"""
SHARED, LARGE = "nvidia.com/gpu.shared", "nvidia.com/mig-3g.20gb"
OFFER = {"nvidia.com/gpu": 2, SHARED: 4, LARGE: 1, "nvidia.com/mig-2g.10gb": 1, "nvidia.com/mig-1g.5gb": 1}


def _write_machine(path: Path, boot_id: str) -> None:
    """Four GPUs; what is done to them lives in the helper's memory, so it ends with the boot."""
    path.write_text(json.dumps({"bootId": boot_id, "gpus": [{"name": "NVIDIA A100-SXM4-40GB"}] * 4}))


@pytest.fixture(scope="module")
def machine(cluster: Cluster) -> Path:
    if cluster.folder is None:
        pytest.skip("only the node of an own cluster may be rebooted")
    return cluster.folder / "machine.json"


@pytest.fixture(scope="module")
def node(cluster: Cluster, machine: Path) -> Iterator[Cluster]:
    _write_machine(machine, "the-first-boot")
    # The helper has the node's file system below its driver root.
    with cluster.with_chart(
        hardware={"machine": f"/driver-root{machine}"}, config={"map": {"default": POLICY}}
    ):
        cluster.until_allocatable(OFFER)
        yield cluster


def test_after_a_reboot_layouts_are_made_again_and_the_ledger_is_what_pods_have(
    node: Cluster, machine: Path
) -> None:
    """Scenario 2. The kubelet fails pods that it starts before the agent: their Deployments make new ones."""
    node.apply(deployment("sliced", 3, {SHARED: 1}), deployment("large", 1, {LARGE: 1}))
    try:
        before = node.until_running("sliced", 3) | node.until_running("large", 1)
        node.until_ledger(node.shares(*before))
        layout = _layout(node)
        assert len(layout) == 3

        node.stop_node()
        _write_machine(machine, "the-second-boot")
        node.restart_kubelet()

        node.until("the boot is seen", lambda: node.report()["node"]["bootId"] == "the-second-boot", 120)
        node.until_allocatable(OFFER, 120)
        old = before.values()
        after = node.until_running("sliced", 3, since=old) | node.until_running("large", 1, since=old)
        shares = node.shares(*after)
        node.until_ledger(shares)
        assert _layout(node).keys() == layout.keys()
        (large,) = (name for name in after if name.startswith("large"))
        assert node.environment(large)["NVIDIA_VISIBLE_DEVICES"] in _layout(node).values()
    finally:
        node.kubectl("delete", "deployment", "sliced", "large", "--cascade=foreground", "--wait")


def _layout(node: Cluster) -> dict[tuple[str, int], str]:
    """Profile and place of each MIG device of GPU 0 to its UUID."""
    devices = node.report()["node"]["gpus"][0]["migDevices"]
    return {(one["profile"], one["placement"]["start"]): one["uuid"] for one in devices}
