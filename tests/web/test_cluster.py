"""The page of a cluster: from an API server over TLS, with what agents really publish."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from partage.cli.main import run
from partage.edges.kube.connection import Connection
from partage.model.ids import ResourceName
from partage.plan.report import Report
from partage.serve_http.http import PageRequest, Stream
from partage.web.cluster_fleet import ClusterFleet
from partage.web.fleet_page import FleetPages
from partage.web.node_views import PublishedViews
from tests.agent.test_cluster import _kubeconfig
from tests.answers.reports import a_report
from tests.edges.kube.scripted import Answer, Request, quick, status
from tests.edges.kube.store import NODES, PODS, ObjectStore, object_store
from tests.web.clusters import agent_pod, node_object, plain_node, pod_object
from tests.web.test_pages import Seen

SHARED, UNITS = ResourceName("nvidia.com/gpu.shared"), ResourceName("aliyun.com/gpu-mem")
POLICY = "version: partage/v1\ngpus:\n  - {select: {index: [0, 1]}, time-slicing: {replicas: 4}}\n"
BY_MEMORY = "version: partage/v1\ngpus: [{select: all, time-slicing: {unit: 1Gi}}]\n"
HOSTILE = "<img src=x onerror=alert(1)>"


@cache
def reports() -> tuple[Report, Report]:
    """Of a node with four shares each on two of four GPUs, and of one that is shared by amounts."""
    pods = [("team", "big", "main")] * 30 + [("team", "tiny", "main")]
    return (
        a_report("4xa100-sxm4-40gb", POLICY),
        a_report("4xa100-sxm4-40gb", BY_MEMORY, held={UNITS: range(31)}, pods=pods),
    )


class Site:
    """The pages over an API server that the test fills."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.said: list[str] = []
        self.fleet = ClusterFleet(Connection(store.server.config(), quick), self.said.append)
        self.pages: FleetPages[Any] = FleetPages(self.fleet, PublishedViews())

    def get(self, path: str = "/", **query: str) -> Seen:
        answer = self.pages.pages()[path](PageRequest(path, query))
        assert not isinstance(answer, Stream)
        assert answer[0] == HTTPStatus.OK
        return Seen(answer[2].decode())

    async def settle(self) -> None:
        """Until both watches are open: asyncio loses a connection whose making is cancelled."""
        self.store.refuse = lambda _: None
        async with asyncio.timeout(10):
            while not all(self._watched(path) for path in (NODES, PODS)):
                await asyncio.sleep(0.01)

    def _watched(self, path: str) -> bool:
        asked = [one for one in self.store.server.requests if one.path == path]
        return bool(asked) and asked[-1].watches

    async def until(self, true_of: Callable[[Seen], bool], path: str = "/", **query: str) -> Seen:
        try:
            async with asyncio.timeout(10):
                while not true_of(seen := self.get(path, **query)):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(self.get(path, **query).text) from None
        return seen


@asynccontextmanager
async def site(refuse: Callable[[Request], Answer | None] = lambda _: None) -> AsyncIterator[Site]:
    async with object_store() as store:
        store.refuse = refuse
        report, units = await asyncio.to_thread(reports)
        store.put(NODES, node_object("node-a", report, labels={"partage.dev/policy": "inference"}))
        store.put(NODES, node_object("node-b", units))
        store.put(NODES, plain_node("plain"))
        store.put(PODS, pod_object("train", "node-a", {SHARED: 2}))
        store.put(PODS, pod_object("big", "node-b", {UNITS: 30}))
        store.put(PODS, pod_object("plain", "plain", {}))
        store.put(PODS, agent_pod("node-a"))
        made = Site(store)
        made.fleet.start()
        try:
            yield made
            await made.settle()
        finally:
            await asyncio.to_thread(made.fleet.close)


def both(seen: Seen) -> bool:
    """Nodes and pods have been listed."""
    return (
        "node-b" in seen.text and "watch of nodes began" in seen.text and "watch of pods began" in seen.text
    )


async def test_all_nodes_of_the_cluster_are_at_a_glance_and_say_where_they_come_from() -> None:
    async with site() as made:
        seen = await made.until(both)
        assert f"From the API server {made.store.server.url}" in seen.text
        assert "Not shown: 1 node without GPUs." in seen.text
        assert "4 x NVIDIA-A100-SXM4-40GB" in seen.text
        assert f"2 of 8 {SHARED}" in seen.text
        assert "GPU 0: 31 GiB of 39 GiB held" in seen.text
        assert seen.ids == list(dict.fromkeys(seen.ids)), "ids are unique"
        assert "2 nodes 2 ready" in seen.text
        for asked in ("train", "TRAIN"):
            assert list(made.get(q=asked).articles.values()) == [True, False], "node-b is not shown"


async def test_a_node_shows_what_is_published_and_calls_the_rest_not_published() -> None:
    async with site() as made:
        await made.until(both)
        seen = made.get("/node", name="node-a")
        for said in ("PartageReady", "InForce", "Chosen by label: inference", "partage/partage-agent-node-a"):
            assert said in seen.text
        (row,) = [one for one in seen.rows if "team/train" in one]
        assert row == f"team/train 2 of {SHARED} not published not published 2026-03-01 09:30:00 UTC"
        (resource,) = [one for one in seen.rows if one.startswith(f"{SHARED}")]
        assert resource == f"{SHARED} 8 8 2 none"
        assert {"source", "state", "policy", "waits", "resources", "pods"} <= set(seen.ids)


async def test_amounts_of_memory_are_drawn_and_say_who_holds_them() -> None:
    async with site() as made:
        await made.until(both)
        seen = made.get("/node", name="node-b")
        assert "31 GiB of 39 GiB held" in seen.text
        assert "held by team/big: 30 GiB" in seen.text
        assert [one for one in seen.rows if one.startswith("team/big")] == [
            "team/big 30 GiB not published not published",
            f"team/big 30 of {UNITS} GPU 0: 30 GiB not published 2026-03-01 09:30:00 UTC",
        ]
        assert "No pod of the chart's agent is on this node" in seen.text


async def test_changes_are_followed_without_asking_again() -> None:
    async with site() as made:
        await made.until(both)
        before = dict(made.fleet.nodes)
        asked = ["nodes", "pods"] * 2  # a list and a watch of each
        waiting = '{"gpus":[{"index":3,"phase":"waiting","reason":"x","pods":["a/b"],"since":"%s"}]}'
        made.store.annotate(NODES, "node-a", **{"partage.dev/plan": waiting % "2026-01-02T03:04:05Z"})
        made.store.annotate(NODES, "node-b", other="one")
        await made.until(lambda seen: "1 GPU with pending changes" in seen.text)
        seen = made.get("/node", name="node-a")
        assert "GPU 3 waiting for pod a/b; it began 2026-01-02 03:04:05 UTC" in seen.text
        made.store.put(PODS, pod_object(HOSTILE, "node-a", {SHARED: 1}), "ADDED")
        await made.until(lambda seen: HOSTILE in seen.text, "/node", name="node-a")
        assert "img" not in made.get("/node", name="node-a").tags
        made.store.remove(NODES, "plain")
        await made.until(lambda seen: "Not shown" not in seen.text)
        paths = [one.path.rpartition("/")[2] for one in made.store.server.requests]
        assert sorted(paths) == sorted(asked)
        assert made.fleet.nodes["node-b"] is before["node-b"], "nothing that is shown of it has changed"


def refuses(path: str) -> Callable[[Request], Answer | None]:
    said = f'{path[8:]} is forbidden: User "web" cannot list resource "{path[8:]}" at the cluster scope'
    return lambda request: status(403, "Forbidden", said) if request.path == path else None


async def test_without_the_right_to_pods_they_are_not_known_and_the_right_is_named() -> None:
    async with site(refuses(PODS)) as made:
        seen = await made.until(lambda seen: "cannot list resource" in seen.text and "node-a" in seen.text)
        assert "The pods cannot be followed. It began" in seen.text
        assert "needs the verbs list and watch on pods, which the ClusterRole partage-viewer" in seen.text
        assert f"not known of 8 {SHARED}" in seen.text
        one = made.get("/node", name="node-a")
        assert "Pods are not known" in one.text
        assert [row for row in one.rows if row.startswith(SHARED)] == [f"{SHARED} 8 8 not known none"]
        assert any('cannot list resource "pods"' in said for said in made.said)


async def test_without_the_right_to_nodes_the_page_says_so() -> None:
    async with site(refuses(NODES)) as made:
        seen = await made.until(lambda seen: "cannot list resource" in seen.text)
        assert "The nodes cannot be followed. It began" in seen.text
        assert "Nothing is known of them. The account needs the verbs list and watch on nodes" in seen.text


async def test_an_api_server_that_is_away_leaves_what_was_known_and_says_since_when() -> None:
    async with site() as made:
        await made.until(both)
        await made.settle()
        await made.store.server.stop()
        seen = await made.until(lambda seen: "The nodes cannot be followed. It began" in seen.text)
        assert "cannot be reached" in seen.text
        assert "What is said of them below is as it was then." in seen.text
        assert "node-a" in seen.text
        await made.store.server.start()
        await made.until(both)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"kubelet": {"status": "Unknown", "reason": "NodeStatusUnknown"}}, "node not ready"),
        ({"annotations": {"partage.dev/plan": "no JSON", "partage.dev/gpu-memory": "{"}}, "ready"),
        ({"annotations": {"partage.dev/cordoned": "GPU-1"}}, "cordoned by annotation: GPU-1"),
        ({"cordoned": True}, "The node is cordoned: it gets no new pods."),
        ({"labels": {"nvidia.com/mig.config": "all-1g.10gb"}}, "MIG layout by label all-1g.10gb: not begun"),
    ],
)
async def test_what_else_stands_on_a_node_is_told(more: dict[str, Any], said: str) -> None:
    async with site() as made:
        made.store.put(NODES, node_object("node-c", reports()[0], **more), "ADDED")
        await made.until(lambda seen: both(seen) and "node-c" in seen.text)
        assert said in made.get("/node", name="node-c").text


async def test_a_gpu_node_without_an_agent_is_shown_as_such() -> None:
    async with site() as made:
        node = plain_node("node-c")
        node["status"] |= {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "7"}}
        made.store.put(NODES, node, "ADDED")
        seen = await made.until(lambda seen: both(seen) and "node-c" in seen.text)
        assert "nothing published" in seen.text
        seen = made.get("/node", name="node-c")
        assert "No agent has published anything about this node." in seen.text
        assert "nvidia.com/gpu 8 7 0 not published" in seen.rows


# --- the verb ------------------------------------------------------------------------------------


async def test_the_verb_in_a_process_of_its_own_speaks_tls_and_follows(tmp_path: Path) -> None:
    async with site() as made:
        config = _kubeconfig(tmp_path, made.store.server.url)
        command = [sys.executable, "-m", "partage", "web", f"--kubeconfig={config}", "--http", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as web:
            try:
                assert web.stdout is not None
                url = (await asyncio.to_thread(web.stdout.readline)).strip()

                def read() -> str:
                    with urlopen(url, timeout=10) as answer:
                        found: str = answer.read().decode()
                        return found

                async with asyncio.timeout(20):
                    while "node-b" not in await asyncio.to_thread(read):
                        await asyncio.sleep(0.05)
            finally:
                web.send_signal(signal.SIGTERM)
        assert web.returncode == 0


def test_a_cluster_and_reports_exclude_each_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["web", "--cluster", str(tmp_path)]) == 2
    assert "exclude each other" in capsys.readouterr().err
    absent = tmp_path / "absent"
    assert run(["web", "--kubeconfig", str(absent)]) == 2
    assert str(absent) in capsys.readouterr().err.replace("\n", "")
