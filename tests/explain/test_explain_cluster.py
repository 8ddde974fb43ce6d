"""``partage explain`` with the nodes and pods of a cluster, from a scripted API server."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from partage.cli.main import run
from partage.codec.values import encode_replacing
from tests.agent.test_cluster import _kubeconfig
from tests.answers.reports import a_document, a_report
from tests.edges.kube.scripted import Answer, api_server, status
from tests.explain.test_explain import POLICY, SHARED, manifest, texts

GPU = "nvidia.com/gpu"


def a_node(name, allocatable, *, labels=None, taints=(), annotations=None, conditions=(), **spec):
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "posting"}
    return {
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {"taints": list(taints), **spec},
        "status": {
            "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110", **allocatable},
            "conditions": [ready, *conditions],
        },
    }


def a_pod(name, node, limits, phase="Running", **more):
    resources = {"limits": limits, "requests": limits}
    return {
        "metadata": {"namespace": "a", "name": name},
        "spec": {
            **({"nodeName": node} if node else {}),
            "containers": [{"name": "main", "resources": resources}],
        },
        "status": {"phase": phase, "startTime": "2026-03-01T09:30:00Z", **more},
    }


class Api:
    """The API server. nodes, pods: as JSON; events: of every pod."""

    def __init__(self, nodes, pods=(), events=()):
        self.nodes, self.pods, self.events = nodes, pods, events

    def answer(self, request):
        items = {"/api/v1/nodes": self.nodes, "/api/v1/pods": self.pods}.get(request.path)
        if items is not None:  # in pages of one
            place = int(request.query.get("continue", 0))
            more = {"continue": str(place + 1)} if place + 1 < len(items) else {}
            return Answer({"metadata": more, "items": list(items[place : place + 1])})
        if request.path.endswith("/events"):
            return Answer({"metadata": {}, "items": list(self.events)})
        name = request.path.rpartition("/")[2]
        found = [pod for pod in self.pods if pod["metadata"]["name"] == name]
        return Answer(found[0]) if found else status(404, "NotFound", f"{name} not found")

    @asynccontextmanager
    async def served(self, tmp_path):
        async with api_server() as server:
            server.answer = self.answer
            yield f"--kubeconfig={_kubeconfig(tmp_path, server.url)}"


@pytest.fixture
def reports(tmp_path):
    """Node n1: pod a/new holds all shares of GPU 0."""
    report = a_report("4xh100-sxm5-80gb", POLICY, held={SHARED: range(4)}, pods=[("a", "new", "main")] * 4)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "n1.json").write_bytes(encode_replacing(a_document(report)))
    return ["--reports", str(tmp_path / "reports")]


async def explained(capsys, tmp_path, api, *words):
    async with api.served(tmp_path) as config:
        code = await asyncio.to_thread(run, ["explain", *words, config, "-o", "json"])
    return code, json.loads(capsys.readouterr().out)


async def on_nodes(capsys, tmp_path, *nodes, limits=None, pods=(), **spec):
    """The answer for a pod, by the names of nodes."""
    file = manifest(tmp_path, {GPU: 1} if limits is None else limits, **spec)
    code, document = await explained(capsys, tmp_path, Api(nodes, pods), file)
    return code, {row["name"]: row for row in document["pods"][0]["nodes"]}


async def test_what_keeps_a_pod_off_each_node(capsys, tmp_path):
    healthy = {"type": "PartageGpusHealthy", "status": "False", "message": "GPU 1: XID 79"}
    off = {"key": "partage.dev/gpu-unhealthy", "effect": "NoSchedule"}
    nodes = [
        a_node("cordoned", {GPU: "4"}, unschedulable=True),
        a_node("tainted", {GPU: "4"}, taints=[{"key": "team", "value": "b", "effect": "NoSchedule"}]),
        a_node("ill", {GPU: "4"}, taints=[off], conditions=[healthy]),
        a_node("full", {GPU: "1"}),
        a_node("small", {GPU: "4", "memory": "1Gi"}),
        a_node("cpus", {}),
        a_node("good", {GPU: "2"}),
    ]
    pods = [a_pod("holder", "full", {GPU: "1"}), a_pod("other", "good", {GPU: "1"})]
    code, found = await on_nodes(
        capsys, tmp_path, *nodes, limits={GPU: 1, "memory": "2Gi", "cpu": "500m"}, pods=pods
    )
    assert code == 0
    assert found["good"]["fits"]
    kinds = {name: row["reason"] and row["reason"]["kind"] for name, row in found.items()}
    assert kinds == {
        "good": None,
        "cordoned": "node-cordoned",
        "tainted": "tainted",
        "ill": "tainted",
        "full": "counter-short",
        "small": "more-than-node",
        "cpus": "not-offered",
    }
    todo = {name: texts(row["changes"]) for name, row in found.items()}
    assert todo["cordoned"] == ["kubectl uncordon cordoned"]
    assert todo["full"] == ["wait until pod a/holder has ended, or end it"]
    assert "{key: team, operator: Equal, value: b, effect: NoSchedule}" in todo["tainted"][0]
    assert found["ill"]["reason"]["text"].endswith("because GPU 1: XID 79")
    assert all(row["enough"] for name, row in found.items() if name != "cpus")


async def test_labels_and_affinity(capsys, tmp_path):
    rules = [
        {"key": "zone", "operator": "In", "values": ["x", "y"]},
        {"key": "old", "operator": "DoesNotExist"},
    ]
    required = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    nodes = [
        a_node("n1", {GPU: "1"}, labels={"pool": "a", "zone": "x"}),
        a_node("n2", {GPU: "1"}, labels={"pool": "a", "zone": "z"}),
        a_node("n3", {GPU: "1"}, labels={"zone": "x"}),
        a_node("n4", {GPU: "1"}, labels={"pool": "a", "zone": "y", "old": ""}),
    ]
    _, found = await on_nodes(capsys, tmp_path, *nodes, affinity=affinity, nodeSelector={"pool": "a"})
    why = {name: row["reason"] and row["reason"]["text"] for name, row in found.items()}
    assert why == {
        "n1": None,
        "n2": "the pod wants a node with zone in (x, y) (node affinity); this one has zone=z",
        "n3": "the pod wants a node with the label pool=a; this one has no label pool",
        "n4": "the pod wants a node with old does not exist (node affinity); this one has old=",
    }
    assert texts(found["n3"]["changes"])[0].startswith("kubectl label node n3 pool=a")


async def test_memory_by_amounts_from_the_annotation_of_the_node(capsys, tmp_path):
    memory = {
        "cards": [
            {"index": 0, "total": 79, "used": 50, "unitBytes": 2**30},
            {"index": 1, "total": 79, "used": 0, "unitBytes": 2**30},
        ],
        "pods": [{"namespace": "a", "name": "one", "units": [50, 0]}],
    }
    notes = {"partage.dev/gpu-memory": json.dumps(memory), "partage.dev/cordoned": "1"}
    node = a_node("n1", {"aliyun.com/gpu-mem": "158"}, annotations=notes)
    _, found = await on_nodes(capsys, tmp_path, node, limits={"aliyun.com/gpu-mem": 40})
    assert found["n1"]["reason"]["text"] == "GPU 1 is cordoned: nobody gets another share of it"
    assert texts(found["n1"]["changes"]) == ["partage uncordon 1 --node n1"]
    assert texts(found["n1"]["others"][0]) == ["wait until pod a/one has ended, or end it"]


async def test_a_pod_that_waits(capsys, tmp_path):
    scheduled = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    waiting = a_pod("new", "", {GPU: "2"}, "Pending", conditions=[scheduled])
    api = Api([a_node("n1", {GPU: "1"})], [waiting])
    code, document = await explained(capsys, tmp_path, api, "pod", "a/new")
    (pod,) = document["pods"]
    assert code == 1
    assert pod["standing"] == "The scheduler says: 0/1 nodes are available"
    assert texts(pod["nodes"][0]["changes"]) == ["ask for nvidia.com/gpu: 1 in place of 2 in container main"]
    assert (await explained(capsys, tmp_path, api, "pod", "-n", "a", "new"))[0] == 1
    assert (await explained(capsys, tmp_path, api, "pod", "new"))[0] == 1


async def test_a_resource_that_the_kubelet_does_not_know_is_none(capsys, tmp_path, reports):
    """The agent offers it, and has not registered; or it is of another plugin that is not there."""
    bare, other = a_node("n1", {}), a_node("n2", {GPU: "1"})
    code, found = await on_nodes(capsys, tmp_path, bare, other, limits={GPU: 1, "rdma/hca": 1})
    assert code == 1
    assert found["n2"]["reason"]["text"] == "the pod asks for 1 x rdma/hca; the node has none"
    file = manifest(tmp_path, {GPU: 1})
    _, document = await explained(capsys, tmp_path, Api([bare]), file, *reports)
    assert document["pods"][0]["nodes"][0]["reason"]["text"].endswith("1 x nvidia.com/gpu; the node has none")


async def test_a_pod_that_a_node_has_refused(capsys, tmp_path):
    refused = a_pod("new", "n1", {GPU: "1"}, "Failed", reason="UnexpectedAdmissionError", message="no room")
    code, document = await explained(
        capsys, tmp_path, Api([a_node("n1", {GPU: "1"})], [refused]), "pod", "a/new"
    )
    (pod,) = document["pods"]
    assert code == 0, "the next one fits"
    assert pod["standing"] == "Node n1 refused or ended it (UnexpectedAdmissionError): no room"


async def test_what_a_pod_holds(capsys, tmp_path, reports):
    labels = {"partage.dev/gpu.shared.guarantee": "none"}
    api = Api([a_node("n1", {SHARED: "4"}, labels=labels)], [a_pod("new", "n1", {SHARED: "4"})])
    code, document = await explained(capsys, tmp_path, api, "pod", "a/new")
    (pod,) = document["pods"]
    assert code == 0
    assert pod["standing"].startswith("a/new is on node n1 since 2026-03-01T09:30:00Z. It holds 4 x")
    assert "nvidia.com/gpu.shared: none (a neighbour can use all of it)" in pod["standing"]
    _, document = await explained(capsys, tmp_path, api, "pod", "a/new", *reports)
    (held,) = document["pods"][0]["holds"]
    assert (held["gpu"], held["holders"]) == (0, ["a/new/main"])


async def test_reports_say_what_each_gpu_of_a_cluster_has(capsys, tmp_path, reports):
    api = Api([a_node("n1", {SHARED: "4"}), a_node("n2", {SHARED: "4"})], [a_pod("new", "n1", {SHARED: "4"})])
    file = manifest(tmp_path, {SHARED: 1})
    _, document = await explained(capsys, tmp_path, api, file, *reports)
    second, first = document["pods"][0]["nodes"]
    assert (second["name"], second["fits"], second["gpus"]) == ("n2", True, [])
    assert "known to the agent of the node only" in second["remarks"][0]
    assert texts(first["changes"]) == ["wait until pod a/new has ended, or end it"]
    assert len(first["gpus"]) == 4


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["pod", "a/none"], 3, "there is no pod a/none"),
        (["pod", "a b/c"], 2, "is not the name of a pod"),
        (["pod", "a/x", "-n", "b"], 2, "differ"),
        (["pod", "a/x", "--machine", "1xl40s"], 2, "with a cluster"),
    ],
)
async def test_wrong_names(capsys, tmp_path, words, code, said):
    async with Api([a_node("n1", {})], [a_pod("x", "", {GPU: "1"}, "Pending")]).served(tmp_path) as config:
        assert await asyncio.to_thread(run, ["explain", *words, config]) == code
    assert said in capsys.readouterr().err
