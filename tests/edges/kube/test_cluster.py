"""The calls of the port, against a scripted API server."""

import json
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from partage.edges.kube import connection
from partage.edges.kube.cluster import ApiCluster
from partage.edges.kube.config import Material
from partage.edges.kube.port import (
    ClusterEvent,
    ClusterNode,
    Eviction,
    Lease,
    ObjectReference,
    Taint,
)
from partage.errors import Absent, Conflict, InputError, Rejected, Unreachable
from partage.model.node_labels import NodeCondition
from tests.edges.kube.scripted import PKI, Answer, api_server, node, quick, status
from tests.virtual_time import in_virtual_time

N1 = ClusterNode("n1", "u1", "7")


@asynccontextmanager
async def cluster(*answers, **config):
    """A cluster whose server gives these answers, the last one again and again."""
    async with api_server() as server:
        left = list(answers)
        server.answer = lambda request: left.pop(0) if len(left) > 1 else left[0]
        found = ApiCluster(server.config(**config), "n1", wall=lambda: 1_800_000_000.5, backoff=quick)
        yield server, found


async def test_labels_are_owned_by_server_side_apply():
    async with cluster(Answer(node(8, a="1"))) as (server, found):
        said = await found.apply_node(N1, {"a": "1"}, {"b": "2"})
        (request,) = server.requests
        assert (request.method, request.path) == ("PATCH", "/api/v1/nodes/n1")
        assert request.headers["content-type"] == "application/apply-patch+yaml"
        assert request.query == {"fieldManager": "partage", "force": "true"}
        meta = {"name": "n1", "uid": "u1", "labels": {"a": "1"}, "annotations": {"b": "2"}}
        assert request.json == {"apiVersion": "v1", "kind": "Node", "metadata": meta}
        assert (said.version, said.labels) == ("8", {"a": "1"})


async def test_taints_are_replaced_only_as_they_were_read():
    async with cluster(status(409, "Conflict", "modified")) as (server, found):
        with pytest.raises(Conflict):
            await found.set_taints(N1, [Taint("k", "NoSchedule", "v")])
        (request,) = server.requests
        assert request.json["metadata"] == {"resourceVersion": "7", "uid": "u1"}
        assert request.json["spec"] == {"taints": [{"key": "k", "effect": "NoSchedule", "value": "v"}]}


async def test_a_condition_goes_to_the_status():
    async with cluster(Answer(node(8))) as (server, found):
        await found.set_condition("n1", NodeCondition("GpusReady", "False", "Waiting", "waits"))
        (request,) = server.requests
        assert request.path == "/api/v1/nodes/n1/status"
        assert request.headers["content-type"] == "application/strategic-merge-patch+json"
        (row,) = request.json["status"]["conditions"]
        assert (row["type"], row["status"], row["lastTransitionTime"]) == (
            "GpusReady",
            "False",
            "2027-01-15T08:00:00Z",
        )


async def test_pods_come_page_by_page():
    def pod(name, requests):
        return {
            "metadata": {
                "name": name,
                "namespace": "a",
                "uid": name,
                "ownerReferences": [
                    {"kind": "Node", "uid": "u0"},
                    {"kind": "Job", "uid": "u1", "controller": True},
                ],
            },
            "spec": {
                "containers": [
                    {"resources": {"requests": requests}},
                    {"resources": {"requests": requests}},
                    {},
                ]
            },
            "status": {"phase": "Running"},
        }

    first = Answer(
        {"metadata": {"continue": "next"}, "items": [pod("p1", {"nvidia.com/gpu": "2", "cpu": "1"})]}
    )
    async with cluster(first, Answer({"metadata": {}, "items": [pod("p2", {})]})) as (server, found):
        one, two = await found.pods("n1")
        assert (one.name, one.owner, one.controller) == ("p1", "Job", "u1")
        assert one.requests == {"nvidia.com/gpu": 4}
        assert two.requests == {}
        assert server.requests[0].query["fieldSelector"] == "spec.nodeName=n1"
        assert server.requests[1].query["continue"] == "next"


async def test_a_list_that_is_forgotten_between_two_pages_is_read_anew_in_one():
    def pods(name, **meta):
        return Answer({"metadata": meta, "items": [{"metadata": {"name": name}}]})

    answers = [
        pods("p1", **{"continue": "next"}),
        status(410, "Expired", "the continue token is too old"),
        pods("p2", resourceVersion="9"),
    ]
    async with cluster(*answers) as (server, found):
        assert [one.name for one in await found.pods("n1")] == ["p2"]
        assert [one.query.get("limit") for one in server.requests] == ["500", "500", None]


async def test_a_condition_of_others_with_any_status_does_not_hide_the_node():
    said = node(8)
    statuses = ("True", "false", "", "Degraded")
    said["status"] = {"conditions": [{"type": f"C{one}", "status": one} for one in statuses]}
    async with cluster(Answer(said)) as (_, found):
        conditions = (await found.node("n1")).conditions
        assert [one.status for one in conditions] == ["True", "False", "Unknown", "Unknown"]


_BUDGET = {
    "details": {"causes": [{"reason": "DisruptionBudget", "message": "needs 2"}], "retryAfterSeconds": 10}
}


@pytest.mark.parametrize(
    ("answer", "ending"),
    [
        (Answer({"kind": "Status", "status": "Success"}, 201), Eviction.ACCEPTED),
        (status(404, "NotFound", "no pod"), Eviction.GONE),
        (status(409, "Conflict", "the UID in the precondition does not match"), Eviction.GONE),
        (status(429, "TooManyRequests", "Cannot evict pod", **_BUDGET), Eviction.PROTECTED),
    ],
)
async def test_an_eviction_ends_in_one_of_three_ways(answer, ending):
    async with cluster(answer) as (server, found):
        assert await found.evict("a", "p1", 30, uid="u7") is ending
        (request,) = server.requests
        assert request.path == "/api/v1/namespaces/a/pods/p1/eviction"
        assert request.json["deleteOptions"] == {
            "gracePeriodSeconds": 30,
            "preconditions": {"uid": "u7"},
        }


async def test_a_busy_server_is_asked_again_and_then_given_up():
    async with cluster(status(429, "TooManyRequests", "later"), Answer(node(8))) as (server, found):
        assert (await found.node("n1")).version == "8"
        assert len(server.requests) == 2
    async with cluster(status(503, "ServiceUnavailable", "starting")) as (server, found):
        with pytest.raises(Unreachable, match="503: starting"):
            await found.node("n1")
        assert len(server.requests) == connection.TRIES


async def test_a_request_that_may_have_arrived_is_not_sent_twice():
    async with cluster(Answer(drop=True)) as (server, found):
        with pytest.raises(Unreachable):
            await found.evict("a", "p1")
        assert len(server.requests) == 1


async def test_an_eviction_is_sent_once():
    """Behind a webhook that does not answer, the pod may not have to leave any more when it has failed."""
    for refusal in (status(500, "InternalError", "failed calling webhook"), status(429, "TooManyRequests")):
        async with cluster(refusal) as (server, found):
            with pytest.raises(Unreachable):
                await found.evict("a", "p1")
            assert len(server.requests) == 1


@in_virtual_time
async def test_no_answer_has_an_end():
    async with cluster(Answer(hang=True)) as (_, found):
        with pytest.raises(Unreachable, match="cannot be reached"):
            await found.node("n1")


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (status(404, "NotFound", 'nodes "n1" not found'), Absent, "not found"),
        (status(401, "Unauthorized", "Unauthorized"), Rejected, "does not accept the credentials"),
        (status(403, "Forbidden", "no"), Rejected, "GET /api/v1/nodes/n1 is not permitted: no"),
        (status(400, "BadRequest", "what"), Rejected, "was refused: what"),
        (Answer("text", 418), Rejected, "was refused"),
        (Answer(["no node"]), Rejected, "no API server says"),
    ],
)
async def test_refusals_are_errors_of_the_cluster(answer, error, text):
    async with cluster(answer) as (server, found):
        with pytest.raises(error, match=text) as caught:
            await found.node("n1")
        assert caught.value.exit_code == 5
        assert len(server.requests) == 1


async def test_a_stranger_is_not_trusted(tmp_path):
    other = tmp_path / "ca.crt"
    other.write_bytes((PKI / "client.crt").read_bytes())
    async with cluster(Answer(node(8)), ca=Material(other)) as (server, found):
        with pytest.raises(Unreachable, match="certificate verify failed"):
            await found.node("n1")
        assert server.requests == []
        other.write_bytes((PKI / "ca.crt").read_bytes())
        assert (await found.node("n1")).version == "8", "the CA was replaced meanwhile"


async def test_a_client_certificate_is_shown():
    pair = {
        "certificate": Material(PKI / "client.crt"),
        "key": Material(data=(PKI / "client.key").read_bytes()),
    }
    async with cluster(Answer(node(8)), **pair) as (_, found):
        assert (await found.node("n1")).name == "n1"
    with pytest.raises(InputError, match="cannot be used"):
        async with cluster(Answer(node(8)), **{**pair, "key": Material(PKI / "server.key")}) as (_, found):
            await found.node("n1")


async def test_a_lease_is_made_and_then_replaced():
    lease = Lease(
        "rollout", namespace="ns", holder="n1", duration_seconds=30, renewed_at="2026-01-01T00:00:00.000000Z"
    )
    absent, made = (
        status(404, "NotFound", "no"),
        {
            "metadata": {"name": "rollout", "namespace": "ns", "resourceVersion": "5"},
            "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 30, "leaseTransitions": 2},
        },
    )
    async with cluster(absent, Answer(made), Answer(made)) as (server, found):
        assert await found.lease("ns", "rollout") == Lease("rollout", namespace="ns")
        written = await found.write_lease(lease)
        assert (written.version, written.holder, written.transitions) == ("5", "n1", 2)
        await found.write_lease(replace(lease, version="5"))
        sent = [(one.method, one.path) for one in server.requests[1:]]
        base = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
        assert sent == [("POST", base), ("PUT", f"{base}/rollout")]
        assert server.requests[2].json["metadata"]["resourceVersion"] == "5"


EVENT = ClusterEvent(
    ObjectReference("Node", "n1", "u1"), "PolicyRefused", "an unknown key", "KeepLastGood", "Warning"
)


async def test_a_problem_that_repeats_is_one_event():
    async with cluster(Answer({}, 201)) as (server, found):
        for _ in range(5):
            await found.record(EVENT)
        await found.record(replace(EVENT, note="another"))
        assert [one.method for one in server.requests] == ["POST", "PATCH", "POST"]
        made, counted, _ = (one.json for one in server.requests)
        assert (made["regarding"]["kind"], made["metadata"]["namespace"]) == ("Node", "default")
        assert made["eventTime"] == "2027-01-15T08:00:00.500000Z"
        assert counted["series"]["count"] == 2
        assert json.loads(server.requests[0].body)["note"] == "an unknown key"


async def test_an_event_that_the_cluster_has_forgotten_is_made_again():
    answers = [Answer({}, 201), status(404, "NotFound", "expired"), Answer({}, 201)]
    async with cluster(*answers) as (server, found):
        await found.record(EVENT)
        await found.record(EVENT)
        assert [one.method for one in server.requests] == ["POST", "PATCH", "POST"]
