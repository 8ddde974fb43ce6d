"""The chart at a real API server: what the token of an agent may do with its rights and admission policies,
and what helm says of a cluster that cannot have the pods.

An API server and etcd are enough: it runs beside any cluster.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import ssl
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import pytest
import yaml

from partage.edges.kube.cluster import ApiCluster
from partage.edges.kube.config import ClusterConfig, Material
from partage.edges.kube.port import GPU_COUNT, Eviction, Taint
from partage.errors import Rejected
from partage.model.node_labels import NodeCondition
from tests.e2e.cluster import ROOT
from tests.e2e.control_plane import PROGRAMS, ControlPlane, control_plane, kubeconfig_of
from tests.edges.kube.scripted import PKI

Json = dict[str, Any]
NODES, OWN, OTHER = "/api/v1/nodes", "n1", "n2"
VALUES = {
    "cluster": {"drain": True, "podAnnotations": True},
    "admission": {"restrictedMps": {"enabled": True}},
}
MPS = {"limits": {"nvidia.com/gpu.shared": "1"}}
SAFE = {"runAsNonRoot": True, "allowPrivilegeEscalation": False}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
COLLECTIONS = {
    "ServiceAccount": "/api/v1/namespaces/partage/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Two nodes as a kubelet leaves them, and what the chart makes that no pod is needed for."""
    programs = os.environ.get("PARTAGE_E2E_BIN")
    if not programs:
        pytest.skip("no API server: make e2e builds one")
    assert all(Path(programs, name).exists() for name in (*PROGRAMS, "helm"))
    values = tmp_path_factory.mktemp("values") / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES))
    chart = ROOT / "deploy" / "helm" / "partage"
    command = [str(Path(programs, "helm")), "template", "partage", str(chart), "--namespace=partage"]
    rendered = subprocess.run(
        [*command, f"--values={values}"], check=True, capture_output=True, text=True
    ).stdout
    with control_plane(Path(programs), tmp_path_factory.mktemp("control-plane")) as found:
        for name in (OWN, OTHER):
            found.ask("POST", NODES, _node(name))
            found.ask("PATCH", f"{NODES}/{name}/status", {"status": _STATUS})
        for name in ("partage", "gpus"):
            found.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        for one in filter(None, yaml.safe_load_all(rendered)):
            if one["kind"] in COLLECTIONS:
                found.ask("POST", COLLECTIONS[one["kind"]], one)
        yield found


def _node(name: str) -> Json:
    taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule", "value": "present"}]
    labels = {"kubernetes.io/hostname": name, "pool": "a"}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": {"volumes": "kept"}},
        "spec": {"taints": taints, "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
    }


_STATUS: Json = {
    "capacity": {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"},
    "allocatable": {"cpu": "63", "memory": "500Gi", "nvidia.com/gpu": "8"},
    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    # As many as a kubelet reports, with long names: the cost of comparing them is bounded.
    "images": [
        {"names": [f"registry.example.com/a/{'x' * 80}/{n}@sha256:{'f' * 64}"] * 5, "sizeBytes": n}
        for n in range(50)
    ],
}


def _created(plane: ControlPlane, name: str, node: str, namespace: str = "default", **spec: str) -> str:
    """A pod; its UID."""
    pod = {
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}], **spec},
    }
    found = plane.ask("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
    return str(found["metadata"]["uid"])


@pytest.fixture(scope="module")
def token(plane: ControlPlane) -> str:
    """The token of the agent's pod on the own node, as the kubelet asks for it."""
    uid = _created(plane, "partage-agent-x", OWN, "partage", serviceAccountName="partage-agent")
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "partage-agent-x", "uid": uid}
    place = f"{COLLECTIONS['ServiceAccount']}/partage-agent/token"
    found = plane.ask("POST", place, {"spec": {"audiences": [], "boundObjectRef": bound}})
    return str(found["status"]["token"])


@pytest.fixture
async def agent(plane: ControlPlane, token: str) -> ApiCluster:
    """The agent's client, once the policies are in force."""
    cluster = _client(plane, token)
    deadline = time.monotonic() + 30
    while not await _refused(lambda: _merge(cluster, OWN, {"metadata": {"labels": {"pool": "b"}}})):
        _repair(plane)
        assert time.monotonic() < deadline, "the policies are not in force"
    return cluster


def _client(plane: ControlPlane, token: str) -> ApiCluster:
    return ApiCluster(
        ClusterConfig(plane.url, Material(plane.certificate), token=Material(data=token.encode()))
    )


def _repair(plane: ControlPlane) -> None:
    plane.ask("PATCH", f"{NODES}/{OWN}", {"metadata": {"labels": {"pool": "a"}}})


async def _refused(asked: Callable[[], Awaitable[object]]) -> str:
    """Why it is not allowed; empty if it is."""
    try:
        await asked()
    except Rejected as error:
        return str(error)
    return ""


async def _merge(agent: ApiCluster, node: str, body: Json, subresource: str = "") -> object:
    return await _patch(agent, f"{NODES}/{node}{subresource}", body, "application/merge-patch+json")


async def _patch(agent: ApiCluster, path: str, body: Json, media_type: str) -> object:
    return await agent.connection.call(dict[str, Any], "PATCH", path, body=body, media_type=media_type)


async def test_an_agent_writes_all_that_it_has_to(agent: ApiCluster, plane: ControlPlane) -> None:
    labels = {
        "nvidia.com/gpu.count": "8",
        "partage.dev/strategy": "mps",
        "nvidia.com/mig.config.state": "success",
    }
    node = await agent.apply_node(await agent.node(OWN), labels, {"partage.dev/plan": "{}"})
    ours = Taint("partage.dev/not-ready", "NoSchedule")
    node = await agent.set_taints(node, (*node.taints, ours))
    for status in ("True", "False"):
        await agent.set_condition(OWN, NodeCondition("PartageReady", status, "Ready", "8 GPUs"))
    await agent.set_gpu_count(OWN, 8)
    node = await agent.node(OWN)
    assert node.labels.items() >= {**labels, "pool": "a"}.items()
    assert [one.key for one in node.taints] == ["nvidia.com/gpu", "partage.dev/not-ready"]
    assert {one.type: one.status for one in node.conditions} == {"Ready": "True", "PartageReady": "False"}
    assert node.capacity[GPU_COUNT] == 8
    # And takes it away again.
    await agent.set_gpu_count(OWN, None)
    node = await agent.set_taints(await agent.node(OWN), [one for one in node.taints if one.key != ours.key])
    node = await agent.apply_node(node, {}, {})
    assert not [key for key in (*node.labels, *node.annotations) if "partage" in key or "nvidia" in key]
    assert node.annotations["volumes"] == "kept"


FORBIDDEN: list[tuple[str, Json]] = [
    ("", {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
    ("", {"metadata": {"labels": {"node-restriction.kubernetes.io/secret": "yes"}}}),
    ("/status", {"metadata": {"labels": {"node-restriction.kubernetes.io/secret": "yes"}}}),
    ("", {"metadata": {"labels": {"pool": "b"}}}),
    ("", {"metadata": {"labels": {"pool": None}}}),
    ("", {"metadata": {"labels": {"nvidia.com": "b"}}}),
    ("", {"metadata": {"labels": {"other.nvidia.com/gpu": "b"}}}),
    ("", {"metadata": {"labels": {"nvidia.com/gpu.count": "8", "pool": "b"}}}),
    ("", {"metadata": {"annotations": {"volumes": "gone"}}}),
    ("", {"metadata": {"annotations": {"volumes": None}}}),
    ("/status", {"metadata": {"annotations": {"new": "1"}}}),
    ("", {"metadata": {"annotations": {"nvidia.com/x": "1"}}}),
    ("", {"metadata": {"finalizers": ["example.com/never"]}}),
    ("", {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n2", "uid": "u"}]}}),
    ("", {"spec": {"unschedulable": True}}),
    ("", {"spec": {"providerID": "other"}}),
    ("", {"spec": {"taints": []}}),
    ("", {"spec": {"taints": None}}),
    ("", {"spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule", "value": "present"},
                              {"key": "partage.dev/not-ready", "effect": "NoExecute"}]}}),
    ("", {"spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule", "value": "present"},
                              {"key": "mine", "effect": "NoSchedule"}]}}),
    ("/status", {"status": {"conditions": []}}),
    ("/status", {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Gone"}]}}),
    ("/status", {"status": {"capacity": {"nvidia.com/gpu": "80"}}}),
    ("/status", {"status": {"allocatable": {"cpu": "1"}}}),
    ("/status", {"status": {"allocatable": {"example.com/gpu": "1"}}}),
    ("/status", {"status": {"allocatable": {"nvidia.com/gpu": None}}}),
    ("/status", {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}}),
    ("/status", {"status": {"images": None}}),
    ("/status", {"status": {"nodeInfo": {"kubeletVersion": "v9"}}}),
    ("/status", {"status": {"phase": "Terminated"}}),
]  # fmt: skip


@pytest.mark.parametrize(("subresource", "body"), FORBIDDEN, ids=str)
async def test_an_agent_changes_nothing_of_its_node_that_others_go_by(
    agent: ApiCluster, plane: ControlPlane, subresource: str, body: Json
) -> None:
    before = plane.ask("GET", f"{NODES}/{OWN}")
    said = await _refused(lambda: _merge(agent, OWN, body, subresource))
    assert "an agent of Partage may change" in said, said or "it was allowed"
    assert plane.ask("GET", f"{NODES}/{OWN}") == before


@pytest.mark.parametrize("subresource", ["", "/status"])
async def test_an_agent_changes_no_other_node(agent: ApiCluster, subresource: str) -> None:
    body = {"metadata": {"labels": {"partage.dev/x": "1"}}}
    assert "its own node only" in await _refused(lambda: _merge(agent, OTHER, body, subresource))


async def test_others_are_not_bound(agent: ApiCluster, plane: ControlPlane) -> None:
    plane.ask("PATCH", f"{NODES}/{OTHER}", {"metadata": {"labels": {"node-role.kubernetes.io/x": ""}}})


async def test_an_agent_evicts_by_uid_and_ends_nobody_by_force(
    agent: ApiCluster, plane: ControlPlane
) -> None:
    uid = _created(plane, "tenant", OWN)
    evict = "an eviction by an agent of Partage names the UID"
    assert evict in await _refused(lambda: agent.evict("default", "tenant"))
    assert evict in await _refused(lambda: agent.evict("default", "tenant", 0, uid=uid))
    assert await agent.evict("default", "tenant", uid="another") is Eviction.GONE
    assert await agent.evict("default", "tenant", uid=uid) is Eviction.ACCEPTED


async def test_an_agent_annotates_the_pods_of_its_node_and_changes_no_more_of_them(
    agent: ApiCluster, plane: ControlPlane
) -> None:
    _created(plane, "here", OWN)
    _created(plane, "elsewhere", OTHER)
    said = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
    await agent.annotate_pod("default", "here", said)
    assert "its own node only" in await _refused(lambda: agent.annotate_pod("default", "elsewhere", said))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "elsewhere", "uid": "0"}
    more: list[Json] = [
        {"metadata": {"annotations": {"mine": "1"}}},
        {"metadata": {"annotations": {"ALIYUN_COM_GPU_MEM_IDX": "1", "mine": "1"}}},
        {"metadata": {"labels": {"app": "another"}}},
        {"metadata": {"finalizers": ["evil.org/keeps"]}},
        {"metadata": {"ownerReferences": [owner]}},
        {"spec": {"containers": [{"name": "main", "image": "evil"}]}},
        {"spec": {"activeDeadlineSeconds": 1}},
    ]
    for body in more:
        media_type = "application/strategic-merge-patch+json"
        asked = partial(_patch, agent, "/api/v1/namespaces/default/pods/here", body, media_type)
        why = await _refused(asked)
        assert "no more of a pod" in why, body


async def test_a_token_that_names_no_node_changes_nothing(plane: ControlPlane, agent: ApiCluster) -> None:
    place = f"{COLLECTIONS['ServiceAccount']}/partage-agent/token"
    loose = str(plane.ask("POST", place, {"spec": {"audiences": []}})["status"]["token"])
    cluster = _client(plane, loose)
    body = {"metadata": {"labels": {"partage.dev/x": "1"}}}
    assert "its own node only" in await _refused(lambda: _merge(cluster, OWN, body))
    uid = _created(plane, "free", OWN)
    assert "token of its pod" in await _refused(lambda: cluster.evict("default", "free", uid=uid))


# --- what helm says at an installation -----------------------------------------------------------


def _notes(plane: ControlPlane, *options: str) -> str:
    """What ``helm install`` would print."""
    kubeconfig = plane.certificate.parent / "helm.conf"
    kubeconfig.write_text(json.dumps(kubeconfig_of(plane.url, plane.certificate)))
    command = [
        str(Path(os.environ["PARTAGE_E2E_BIN"], "helm")),
        f"--kubeconfig={kubeconfig}",
        "install",
        "gpus",
    ]
    chart = str(ROOT / "deploy" / "helm" / "partage")
    done = subprocess.run(
        [*command, chart, "--namespace=gpus", "--dry-run=server", *options],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


def test_an_installation_that_finds_no_node_says_so(plane: ControlPlane) -> None:
    refused, label = "NO NODE FITS", {"nvidia.com/gpu.present": "true"}
    assert refused in _notes(plane)
    assert refused not in _notes(plane, "--set=affinity=null")
    plane.ask("PATCH", f"{NODES}/{OTHER}", {"metadata": {"labels": label}})
    assert refused not in _notes(plane)
    assert refused not in _notes(plane, "--set=nodeSelector.pool=a")
    assert refused in _notes(plane, "--set=nodeSelector.pool=b")
    plane.ask("PATCH", f"{NODES}/{OTHER}", {"metadata": {"labels": dict.fromkeys(label)}})


def test_an_installation_into_a_namespace_that_refuses_the_pods_says_so(plane: ControlPlane) -> None:
    for level, said in (("baseline", True), ("privileged", False)):
        labels = {"pod-security.kubernetes.io/enforce": level}
        plane.ask("PATCH", "/api/v1/namespaces/gpus", {"metadata": {"labels": labels}})
        assert (f"Pod Security Standard {level}" in _notes(plane)) is said


# --- an eviction that is given up ----------------------------------------------------------------


class _SlowWebhook:
    """Allows every eviction, when it is let go. asked: a question has come."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.asked.set()
                hook.go.wait(20)
                answer = {"uid": review["request"]["uid"], "allowed": True}
                content = json.dumps({**review, "request": None, "response": answer}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(PKI / "server.crt", PKI / "server.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.parametrize("on_failure", ["Fail", "Ignore"])
async def test_an_eviction_that_is_given_up_behind_a_slow_webhook_evicts_nobody(
    agent: ApiCluster, plane: ControlPlane, on_failure: str
) -> None:
    name = f"slow-{on_failure.lower()}"
    uid = _created(plane, name, OWN)
    hooks = f"{ADMISSION}/validatingwebhookconfigurations"
    with _SlowWebhook() as slow:
        rule = {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods/eviction"],
        }
        authority = base64.b64encode((PKI / "ca.crt").read_bytes()).decode()
        webhook = {
            "name": "slow.example.com",
            "clientConfig": {"url": f"https://127.0.0.1:{slow.port}/", "caBundle": authority},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "failurePolicy": on_failure,
            "timeoutSeconds": 10,
        }
        plane.ask("POST", hooks, {"metadata": {"name": "slow"}, "webhooks": [webhook]})
        try:
            slow.go.set()
            while not slow.asked.is_set():  # until the API server has it: evictions of nobody
                assert await agent.evict("default", name, uid="another") is Eviction.GONE
            slow.go.clear()
            slow.asked.clear()
            asking = asyncio.create_task(agent.evict("default", name, uid=uid))
            assert await asyncio.to_thread(slow.asked.wait, 30)
            asking.cancel()
            await asyncio.wait([asking])
            slow.go.set()
            await asyncio.sleep(2)  # that nothing happens has no event to wait for
            found = plane.ask("GET", f"/api/v1/namespaces/default/pods/{name}")
            assert "deletionTimestamp" not in found["metadata"]
            assert await agent.evict("default", name, uid=uid) is Eviction.ACCEPTED
            found = plane.ask("GET", f"/api/v1/namespaces/default/pods/{name}")
            assert "deletionTimestamp" in found["metadata"]
        finally:
            plane.ask("DELETE", f"{hooks}/slow")


def _asking(security: Json | None = None, **more: object) -> Json:
    """A container that asks for an MPS share."""
    own = {} if security is None else {"securityContext": security}
    return {"name": "main", "image": "none", "resources": MPS, **own, **more}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"containers": [_asking(SAFE)]}, ""),
        ({"containers": [_asking()], "hostUsers": False}, ""),
        (
            {
                "containers": [_asking({"allowPrivilegeEscalation": False})],
                "securityContext": {"runAsNonRoot": True},
            },
            "",
        ),
        ({"containers": [{"name": "main", "image": "none"}]}, ""),
        ({"containers": [_asking()]}, "runAsNonRoot"),
        ({"containers": [_asking({"runAsNonRoot": True})]}, "needs runAsNonRoot: true and allowPriv"),
        ({"containers": [_asking({**SAFE, "runAsUser": 0})]}, "runAsNonRoot"),
        ({"containers": [_asking({**SAFE, "capabilities": {"add": ["NET_ADMIN"]}})]}, "runAsNonRoot"),
        (
            {"containers": [_asking(SAFE)], "initContainers": [{"name": "init", "image": "none"}]},
            "runAsNonRoot",
        ),
        ({"containers": [_asking(SAFE)], "hostPID": True}, "host namespaces"),
        (
            {"containers": [_asking(SAFE)], "volumes": [{"name": "v", "hostPath": {"path": "/run"}}]},
            "hostPath",
        ),
        ({"containers": [_asking({"privileged": True})], "hostUsers": False}, "privileged"),
    ],
)
async def test_pods_that_could_command_an_mps_daemon_are_refused(
    agent: ApiCluster, plane: ControlPlane, spec: Json, why: str
) -> None:
    del agent  # the policies are in force
    name = f"mps-{uuid4().hex[:8]}"
    if not why:
        assert _created(plane, name, OWN, "gpus", **spec)
        return
    with pytest.raises(AssertionError, match=why):
        _created(plane, name, OWN, "gpus", **spec)
