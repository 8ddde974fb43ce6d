"""Manifests as for NVIDIA's DRA driver, on a real cluster whose driver of that name is Partage; no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.claims import (
    claimed,
    claiming,
    devices,
    make_device_files,
    refused,
    remove_claims,
    skip_without_claims,
    template,
)
from tests.e2e.cluster import MACHINE, Cluster, Json
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("tenants", "claims")

DRIVER = "gpu.nvidia.com"
POLICY = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, via: claims, time-slicing: {replicas: 4}}
  - {select: {index: [1]}, via: claims, mps: {unit: 1Gi}}
  - {select: {index: [2]}, via: claims, mig: {layout: [3g.20gb, 2g.10gb, 1g.5gb]}}
  - {select: {index: [3]}, via: claims, exclusive: {}}
"""


def gpu(expression: str = "", **capacity: Any) -> Json:
    exactly: Json = {"deviceClassName": DRIVER}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    if expression:
        exactly["selectors"] = [{"cel": {"expression": f'device.attributes["{DRIVER}"].{expression}'}}]
    return {"name": "gpu", "exactly": exactly}


def configured(name: str, request: Json, kind: str, **sharing: Any) -> Json:
    """A template whose request has one of NVIDIA's configurations."""
    made = template(name, request)
    config = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}
    opaque = {"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": config}}
    made["spec"]["spec"]["devices"]["config"] = [opaque]
    return made


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    skip_without_claims(cluster)
    cluster.install(
        hardware={"machine": MACHINE},
        config={"map": {"default": POLICY}},
        cdi={"enabled": True},
        dra={"enabled": True, "driverName": DRIVER, "extendedResources": {"nvidia.com/gpu": DRIVER}},
    )
    try:
        cluster.until("slices of all GPUs", lambda: len(devices(cluster, DRIVER)) == 6)
        make_device_files(cluster)
        yield cluster
    finally:
        cluster.uninstall()


@pytest.fixture
def claims(node: Cluster) -> Iterator[None]:
    """Removes the claims and templates that a test made, after its pods."""
    yield
    remove_claims(node, claimed)


def files(cluster: Cluster, name: str) -> str:
    return cluster.kubectl("exec", name, "--", "find", "/dev", "-name", "nvidia[0-9]").strip()


def test_shares_by_number_by_memory_and_as_an_extended_resource(node: Cluster) -> None:
    node.apply(
        template("shares", gpu(shares="1")),
        template("memory", gpu(memory="20Gi")),
        claiming("first", "shares"),
        claiming("second", "shares"),
        claiming("third", "memory"),
        pod("fourth", {"nvidia.com/gpu": 1}),
    )
    for name in ("first", "second", "third", "fourth"):
        node.until_phase(name, "Running")
    assert [files(node, name) for name in ("first", "second", "third")] == [
        "/dev/nvidia0",
        "/dev/nvidia0",
        "/dev/nvidia1",
    ]
    environment = node.environment("third")
    assert environment["PARTAGE_MEMORY_BYTES"] == str(20 << 30)
    assert environment["PARTAGE_RESOURCE"] == DRIVER
    shares = {node.environment(name)["PARTAGE_SHARES"] for name in ("first", "second", "fourth")}
    assert len(shares) == 3


def test_configurations_of_nvidia_are_carried_out_or_refused(node: Cluster) -> None:
    limits = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "4Gi"}
    mps = {"strategy": "MPS", "mpsConfig": limits}
    node.apply(
        configured("mps", gpu(memory="20Gi"), "GpuConfig", **mps),
        configured("no-mps", gpu(shares="1"), "GpuConfig", **mps),
        claiming("mps", "mps", containers=2),
        claiming("no-mps", "no-mps"),
    )
    node.until_phase("mps", "Running")
    environment = node.environment("mps", "c1")
    assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    said = node.until("it is refused", lambda: node.events("FailedPrepareDynamicResources", "no-mps"))
    assert "asks for MPS in its configuration, and GPU 0" in said[-1]


def test_a_mig_device_and_a_gpu_by_their_attributes_and_none_that_matches(node: Cluster) -> None:
    mig = gpu("profile == '3g.20gb'")
    mig["exactly"]["deviceClassName"] = "mig.nvidia.com"
    node.apply(
        template("mig", mig),
        template("by-name", gpu("productName.lowerAscii().matches('^.*a100.*$')")),
        template("none", gpu("productName.lowerAscii().matches('^.*h300.*$')")),
        *(claiming(name, name) for name in ("mig", "by-name", "none")),
    )
    for name in ("mig", "by-name"):
        node.until_phase(name, "Running")
    assert node.environment("mig")["PARTAGE_GUARANTEE"] == "hard"
    assert files(node, "mig") == "/dev/nvidia2"
    assert "cannot allocate all claims" in refused(node, "none")
