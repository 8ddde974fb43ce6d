"""The cluster of the end-to-end tests: one that ``make e2e`` starts here, or any that a kubeconfig names.

``PARTAGE_E2E_BIN`` is a folder with the programs that ``tests/cluster/build`` makes, and with the image
(``partage.tar``). ``PARTAGE_E2E_KUBECONFIG`` names a cluster in place of that, and ``PARTAGE_E2E_IMAGE`` an
image that its nodes have or can pull. The chart is installed there, and removed again.
``PARTAGE_E2E_FOLDER`` names a folder in which ``tests/cluster/up`` has started one; it goes on afterwards.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import GPU, MACHINE, ROOT, Cluster

SCRIPTS = ROOT / "tests" / "cluster"
IMAGE = "docker.io/library/partage:e2e"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster without Partage."""
    named, programs = os.environ.get("PARTAGE_E2E_KUBECONFIG"), os.environ.get("PARTAGE_E2E_BIN")
    if named:
        yield Cluster(Path(named), os.environ.get("PARTAGE_E2E_IMAGE", IMAGE), None)
        return
    if not programs:
        pytest.skip("no cluster: make e2e starts one")
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    stays = os.environ.get("PARTAGE_E2E_FOLDER")
    folder = Path(stays) if stays else tmp_path_factory.mktemp("cluster")
    try:
        if not stays:
            up = (SCRIPTS / "up", programs, folder)
            subprocess.run(up, check=True, timeout=300, stdout=subprocess.DEVNULL)
        own = Cluster(folder / "admin.conf", IMAGE, folder)
        own.load(Path(programs) / "partage.tar")
        yield own
    finally:
        if not stays:
            subprocess.run([SCRIPTS / "down", folder], check=False, timeout=120)


@pytest.fixture(scope="module")
def second_node(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with a node that joins it for the tests of one module as its node."""
    if cluster.folder is None:
        pytest.skip("a second node joins only the cluster that make e2e starts")
    if subprocess.run(["unshare", "--mount", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("a second node needs a network namespace, which this machine does not permit")
    programs, name = os.environ["PARTAGE_E2E_BIN"], "node2"
    folder = cluster.folder / name
    node = Cluster(cluster.kubeconfig, cluster.image, folder, name)
    try:
        subprocess.run(
            [SCRIPTS / "join", programs, cluster.folder, name],
            check=True,
            timeout=120,
            stdout=subprocess.DEVNULL,
        )
        node.load(Path(programs) / "partage.tar")
        yield node
    finally:
        subprocess.run([SCRIPTS / "down", folder], check=False, timeout=60)


@pytest.fixture(scope="session")
def own(cluster: Cluster) -> None:
    """Skips what looks at processes, or disturbs the kubelet, elsewhere than on a cluster of these tests."""
    if not cluster.own:
        pytest.skip("only on the cluster that make e2e starts")


@pytest.fixture(scope="module")
def installed(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The chart with ``POLICIES`` of the test's module: four exclusive GPUs at first. It may evict."""
    policies = {"map": request.module.POLICIES}
    with cluster.with_chart(hardware={"machine": MACHINE}, config=policies, cluster={"drain": True}):
        cluster.until_allocatable({GPU: 4})
        yield cluster


@pytest.fixture
def node(installed: Cluster) -> Iterator[Cluster]:
    """Four exclusive GPUs that nobody holds, whatever the test before has left."""
    yield installed
    if installed.own:
        for name in installed.static_pods():
            installed.remove_static_pod(name)
    installed.remove_tenants()
    if installed.own:
        installed.until("no container is left", lambda: not installed.given())
    installed.choose(None)
    # A share whose pod has ended before anybody named it is held for two minutes (docs/adr/0020).
    installed.until_allocatable({GPU: 4}, timeout_s=180)
    if installed.own:  # the Node may say what a kubelet has told it that has been restarted since
        installed.until("the kubelet has its list", lambda: installed.kubelet_offers() == {GPU: 4})


@pytest.fixture
def tenants(cluster: Cluster) -> Iterator[None]:
    """Removes the pods that a test made. What runs on for a moment would have the next one's refused."""
    yield
    cluster.kubectl(
        "delete", "pods", "-l", "partage-e2e=tenant", "--grace-period=0", "--force", "--wait", check=False
    )
    if cluster.own:
        cluster.until("no container is left", lambda: not cluster.given())


def pytest_itemcollected(item: pytest.Item) -> None:
    """The tests of this folder take turns with one cluster."""
    item.add_marker(pytest.mark.xdist_group("cluster"))
    # The last test of all ends the cluster, too: with two nodes a minute on a busy machine.
    item.add_marker(pytest.mark.timeout(600 if item.get_closest_marker("slow") else 300))
