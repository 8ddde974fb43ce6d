"""A rollout over two nodes whose Leases somebody else writes, and whose API server is away."""

from __future__ import annotations

import http.client
import itertools
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from tests.e2e.cluster import GPU, NAMESPACE, SHARED, WHOLE, Cluster
from tests.e2e.fleet import LEASE, POLICIES, REPLICAS, Fleet, changes
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("tenants")


@pytest.fixture(scope="module")
def both(cluster: Cluster, second_node: Cluster) -> Iterator[Fleet]:
    found = Fleet(cluster, second_node)
    cluster.kubectl("create", "namespace", NAMESPACE, check=False)
    found.edit(WHOLE)
    found.install({})
    found.until_allocatable({GPU: 4})
    yield found
    cluster.uninstall()
    cluster.kubectl("delete", "configmap", POLICIES, "-n", NAMESPACE)


@pytest.fixture
def fleet(both: Fleet) -> Iterator[Fleet]:
    """Each GPU of both nodes is exclusive, a pod holds one of each node, and no slot is taken."""
    both.until_done()
    for node in both.nodes:
        name = f"holder-{node.node}"
        both.first.apply(pod(name, {GPU: 1}, nodeSelector={"kubernetes.io/hostname": node.node}))
        both.first.until_phase(name, "Running")
        node.until("the ledger names it", lambda: name in node.ledger())  # noqa: B023 - asked at once
    yield both
    both.first.remove_tenants()
    both.edit(WHOLE)
    both.until_allocatable({GPU: 4})
    both.until_done()


def _begin(fleet: Fleet) -> tuple[Cluster, Cluster]:
    """One node changes, and waits for its pod; the other one waits for its turn. Both, in this order."""
    fleet.edit(REPLICAS % 2)
    fleet.first.until("a node has the slot", fleet.holder)
    one, other = sorted(fleet.nodes, key=lambda node: node.node != fleet.holder())
    one.until_allocatable({SHARED: 6})
    other.until_allocatable({GPU: 4})
    return one, other


def _end(node: Cluster) -> None:
    """The pod that the node waits for ends."""
    node.kubectl("delete", "pod", f"holder-{node.node}")


def _for_seconds(seconds: float, question: Callable[[], bool]) -> None:
    """It stays true for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert question()
        time.sleep(0.3)


def test_a_slot_that_a_person_frees_goes_to_the_next_node(fleet: Fleet) -> None:
    one, other = _begin(fleet)
    fleet.give_slot(None)
    other.until_allocatable({SHARED: 6})
    assert fleet.holder() == other.node
    _end(one)
    one.until_allocatable({SHARED: 8})
    assert fleet.holder() == other.node, "the node that has lost it frees it for nobody else"
    _end(other)
    fleet.until_allocatable({SHARED: 8})
    fleet.until_done()
    assert not fleet.holder()
    for node in fleet.nodes:
        assert "node-not-updated" not in node.agent_http("healthz")


def test_a_slot_that_is_stolen_stays_with_the_thief(fleet: Fleet) -> None:
    one, other = _begin(fleet)
    fleet.give_slot("somebody-else")
    _end(one)
    one.until_allocatable({SHARED: 8})
    _for_seconds(5, lambda: fleet.holder() == "somebody-else")
    other.until_allocatable({GPU: 4})
    fleet.give_slot(None)
    _end(other)
    fleet.until_allocatable({SHARED: 8})
    fleet.until_done()


@contextmanager
def _storm(fleet: Fleet) -> Iterator[None]:
    """The Lease has another version each few milliseconds, so what the agents write is refused (409)."""
    over = threading.Event()

    def write() -> None:
        command = ["kubectl", "--kubeconfig", str(fleet.first.kubeconfig), "proxy", "--port=0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
            try:
                assert proxy.stdout is not None
                port = int(proxy.stdout.readline().rsplit(":", 1)[1])
                path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}"
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
                    for count in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
                        body = json.dumps({"metadata": {"annotations": {"storm": str(count)}}})
                        kind = {"Content-Type": "application/merge-patch+json"}
                        connection.request("PATCH", path, body, kind)
                        connection.getresponse().read()
            finally:
                proxy.kill()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(write)
        try:
            yield
        finally:
            over.set()
        running.result()


def _conflicts(fleet: Fleet) -> int:
    """How many writings of Leases the API server has refused so far."""
    text = fleet.first.kubectl("get", "--raw", "/metrics")
    rows = (line for line in text.splitlines() if line.startswith("apiserver_request_total{"))
    return sum(int(row.split()[-1]) for row in rows if 'code="409"' in row and 'resource="leases"' in row)


def test_nodes_change_in_turn_after_a_storm_of_conflicts(fleet: Fleet) -> None:
    for node in fleet.nodes:
        _end(node)
    before = _conflicts(fleet)
    with fleet.holders() as seen:
        with _storm(fleet):
            fleet.edit(REPLICAS % 2)
            fleet.first.until("writings are refused", lambda: _conflicts(fleet) - before >= 5)
            began, refused = time.monotonic(), _conflicts(fleet)
            _for_seconds(10, lambda: True)
            rate = (_conflicts(fleet) - refused) / (time.monotonic() - began)
        assert rate < 20, f"{rate:.0f} writings a second were refused"
        fleet.until_allocatable({SHARED: 8})
        fleet.until_done()
        fleet.first.until("the slot is free", lambda: changes(seen)[-1] == "")
        holders = changes(seen)
    assert sorted(filter(None, holders)) == sorted(node.node for node in fleet.nodes)
    assert all(not (one and other) for one, other in itertools.pairwise(holders)), holders


def test_fewer_slots_count_those_that_are_held(fleet: Fleet) -> None:
    """maxChanging 2 to 1 while two nodes change: none begins before both are done."""
    fleet.install({}, max_changing=2)
    try:
        fleet.until_allocatable({GPU: 4})
        fleet.edit(REPLICAS % 2)
        fleet.until_allocatable({SHARED: 6})
        one, other = sorted(fleet.nodes, key=lambda node: node.node != fleet.holder(0))
        assert (fleet.holder(0), fleet.holder(1)) == (one.node, other.node)
        fleet.install({}, max_changing=1)
        fleet.until_allocatable({SHARED: 6})
        _end(one)
        one.until_allocatable({SHARED: 8})
        one.until("its slot is free", lambda: not fleet.holder(0))
        fleet.edit(REPLICAS % 3)
        other.until("the other one goes on", lambda: other.allocatable().get(SHARED) == 9)
        _for_seconds(5, lambda: one.allocatable()[SHARED] == 8)
        _end(other)
        fleet.until_allocatable({SHARED: 12})
        fleet.until_done()
    finally:
        fleet.install({}, max_changing=1)


@pytest.mark.slow
def test_an_api_server_that_is_away_longer_than_a_lease_counts(fleet: Fleet) -> None:
    """The slot was renewed by nobody for 150 s, as everybody knows who was away himself."""
    if not fleet.first.own:
        pytest.skip("only the API server of an own cluster may be killed")
    one, other = _begin(fleet)
    fleet.first.stop_api_server()
    try:
        time.sleep(150)
    finally:
        fleet.first.start_api_server()
    with fleet.holders() as seen:
        renewed = fleet.first.get("lease", LEASE, "-n", NAMESPACE)["spec"]["renewTime"]
        fleet.first.until(
            "the slot is renewed",
            lambda: fleet.first.get("lease", LEASE, "-n", NAMESPACE)["spec"]["renewTime"] != renewed,
        )
        one.until_allocatable({SHARED: 6})
        other.until_allocatable({GPU: 4})
        assert "stopped" not in str(fleet.rollout()[1]["stopped"])
        _end(one)
        other.until_allocatable({SHARED: 6})
        _end(other)
        fleet.until_allocatable({SHARED: 8})
        fleet.until_done()
        fleet.first.until("the slot is free", lambda: changes(seen)[-1] == "")
        assert changes(seen) == [one.node, "", other.node, ""]
