"""MIG devices that are made when claims ask for them, through the real scheduler, kubelet and containerd.

The GPUs are simulated; files on the node stand for the devices that are made.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.claims import (
    WHOLE,
    claiming,
    devices,
    make_device_files,
    mig,
    refused,
    remove_claims,
    skip_without_claims,
    template,
)
from tests.e2e.cluster import Cluster

pytestmark = pytest.mark.usefixtures("tenants", "claims")

POLICY = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, via: claims, mig: {on-demand: true}}
  - {select: rest, exclusive: {}}
"""
MACHINE = "2xh100-sxm5-80gb"
PLACES = 26


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    minor = skip_without_claims(cluster)
    cluster.install(
        hardware={"machine": MACHINE},
        config={"map": {"default": POLICY}},
        cdi={"enabled": True},
        dra={"enabled": True, "counters": "auto" if minor > 36 else "always"},
    )
    try:
        cluster.until("all places", lambda: len(devices(cluster)) == PLACES)
        make_device_files(cluster)
        caps = "mkdir -p /dev/nvidia-caps; cd /dev/nvidia-caps"
        each = "test -e nvidia-cap$n || mknod -m 666 nvidia-cap$n c 1 3"
        cluster.on_node("sh", "-c", f"{caps}; for n in $(seq 1 280); do {each}; done")
        yield cluster
    finally:
        cluster.uninstall()


@pytest.fixture
def claims(node: Cluster) -> Iterator[None]:
    """Removes the claims and templates that a test made, after its pods: then nothing is made any more."""
    yield
    remove_claims(node, made)


def made(cluster: Cluster) -> dict[str, str]:
    """UUID to profile of the MIG devices of GPU 0."""
    gpu = cluster.report()["node"]["gpus"][0]
    return {one["uuid"]: one["profile"] for one in gpu["migDevices"]}


def asks(profile: str) -> dict[str, object]:
    return {"name": "gpu", "exactly": mig(profile)}


def test_a_mig_device_is_made_beside_a_running_neighbour(node: Cluster) -> None:
    slices = devices(node)
    node.apply(template("half", asks("3g.40gb")), claiming("neighbour", "half"))
    node.until_phase("neighbour", "Running")
    (neighbour,) = made(node)
    assert node.environment("neighbour")["PARTAGE_GUARANTEE"] == "hard"

    node.apply(
        template("small", asks("1g.10gb")), *(claiming(f"small-{number}", "small") for number in (1, 2))
    )
    for name in ("small-1", "small-2"):
        node.until_phase(name, "Running")
    assert sorted(made(node).values()) == ["1g.10gb", "1g.10gb", "3g.40gb"]
    ids = {node.environment(name)["PARTAGE_SHARES"] for name in ("neighbour", "small-1", "small-2")}
    assert ids == {*made(node)}

    node.apply(template("whole", WHOLE), claiming("whole", "whole"))
    assert "cannot allocate all claims" in refused(node, "whole")
    node.kubectl("delete", "pod", "small-1", "small-2", "--wait")
    node.until("only the neighbour's is left", lambda: {*made(node)} == {neighbour})
    assert node.phases()["neighbour"] == "Running"
    assert devices(node) == slices

    node.kubectl("delete", "pod", "neighbour", "--wait")
    node.until_phase("whole", "Running", timeout_s=120)
    assert made(node) == {}


def test_as_many_as_fit_run_and_the_next_one_waits(node: Cluster) -> None:
    node.apply(template("small", asks("1g.10gb")), *(claiming(f"p{number}", "small") for number in range(8)))

    def seven() -> list[str]:
        phases = node.phases()
        assert [*phases.values()].count("Running") == 7, phases
        return [name for name, phase in phases.items() if phase == "Pending"]

    (waits,) = node.until("seven pods run", seven, timeout_s=120)
    assert len(made(node)) == 7
    assert "cannot allocate all claims" in refused(node, waits)
    assert len({node.environment(name)["PARTAGE_SHARES"] for name in node.phases() if name != waits}) == 7


def test_small_ones_first_leave_room_for_a_large_one(node: Cluster) -> None:
    node.apply(template("small", asks("1g.10gb")), *(claiming(f"p{number}", "small") for number in range(3)))
    for number in range(3):
        node.until_phase(f"p{number}", "Running")
    node.apply(template("large", asks("4g.40gb")), claiming("large", "large"))
    node.until_phase("large", "Running")
    assert sorted(made(node).values()) == ["1g.10gb", "1g.10gb", "1g.10gb", "4g.40gb"]


def test_an_agent_that_is_killed_meanwhile_costs_a_moment(node: Cluster) -> None:
    node.apply(template("half", asks("3g.40gb")), claiming("stays", "half"))
    node.until_phase("stays", "Running")
    before = made(node)
    node.apply(template("small", asks("1g.10gb")), *(claiming(f"p{number}", "small") for number in range(4)))
    node.kill_container(node.component("agent"), "agent")
    for number in range(4):
        node.until_phase(f"p{number}", "Running", timeout_s=120)
    after = made(node)
    assert before.items() <= after.items()
    assert len(after) == 5
    assert {node.environment("stays")["PARTAGE_SHARES"]} == {*before}
