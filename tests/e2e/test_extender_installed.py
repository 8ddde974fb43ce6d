"""The extender as the chart installs it: two replicas with the rights that they need, which answer alike."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.e2e.claims import (
    WHOLE,
    claiming,
    devices,
    make_device_files,
    remove_installed,
    skip_without_claims,
    template,
)
from tests.e2e.cluster import NAMESPACE, Cluster, Json

POLICY = "version: partage/v1\ngpus: [{select: all, via: claims, exclusive: {}}]\n"
SELECT = ("-l", "app.kubernetes.io/component=scheduler")


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Cluster]:
    skip_without_claims(cluster)
    cluster.install(
        hardware={"machine": "2xa100-40gb"},
        config={"map": {"default": POLICY}},
        cdi={"enabled": True},
        dra={"enabled": True},
        scheduler={"enabled": True},
    )
    try:
        cluster.until("slices of two GPUs", lambda: len(devices(cluster)) == 2)
        make_device_files(cluster)
        yield cluster
    finally:
        remove_installed(cluster)


def replicas(cluster: Cluster) -> list[str]:
    found = cluster.get("pods", "-n", NAMESPACE, *SELECT)["items"]
    return [one["metadata"]["name"] for one in found if "deletionTimestamp" not in one["metadata"]]


def asked(cluster: Cluster, replica: str, document: Json, nodes: list[str]) -> list[Json]:
    """Through the API server, in the words of kube-scheduler."""
    place = f"/api/v1/namespaces/{NAMESPACE}/pods/{replica}:9402/proxy/prioritize"
    body = json.dumps({"Pod": document, "NodeNames": nodes, "Nodes": None})
    said = cluster.kubectl("create", "--raw", place, "-f", "-", stdin=body)
    scores: list[Json] = json.loads(said)
    return scores


def test_two_replicas_answer_alike_and_one_alone_goes_on(node: Cluster) -> None:
    node.apply(template("whole", WHOLE))
    document = claiming("first", "whole")
    names = [node.node, "one-that-is-not-there"]
    node.until("two replicas", lambda: len(replicas(node)) == 2)
    first, second = (asked(node, replica, document, names) for replica in replicas(node))
    assert first == second
    assert {one["Host"] for one in first} <= {*names}
    assert all(0 <= one["Score"] <= 10 for one in first)
    node.apply(document)
    node.until_phase("first", "Running", timeout_s=120)
    gone, stays = replicas(node)
    node.kubectl("delete", "pod", gone, "-n", NAMESPACE, "--grace-period=0", "--force")
    assert {one["Host"] for one in asked(node, stays, document, names)} <= {*names}
    node.until("two replicas", lambda: len(replicas(node)) == 2)
    for replica in replicas(node):
        node.until("it answers", lambda: asked(node, replica, document, names))  # noqa: B023 - asked at once
        log = node.kubectl("logs", "-n", NAMESPACE, replica)
        assert not re.search(r"is not permitted|Traceback|forbidden", log), log
