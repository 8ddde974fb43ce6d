"""A node for claims: an agent with ``--dra`` in a process of its own, and an API server with objects."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench import bare_driver
from bench.client import Call, Client
from bench.node import image_environment, spawn_as_shipped
from partage.edges.kubelet._generated import dra_v1_pb2 as pb
from partage.model.claim import ClaimRef
from tests.agent.harness import AgentProcess, Place, place, running
from tests.edges.kube.scripted import PKI, Answer, Request
from tests.edges.kube.store import SLICES, ObjectStore, claims_path, object_store
from tests.kubelet_script import scripted_kubelet, wait_for

NODE, TEAM = "n1", "team"
REPLICAS = 200
MACHINE = {"driver": "615.71.09", "gpus": [{"name": "NVIDIA H100 80GB HBM3"}] * 8}
"""Of a driver branch in which MPS has namespaces."""
CLAIMS_POLICY = f"""\
version: partage/v1
gpus:
  - {{select: {{index: [0]}}, via: claims, exclusive: {{}}}}
  - {{select: {{index: [1]}}, via: claims, mps: {{unit: 1Gi, protocol: 3}}}}
  - {{select: rest, via: claims, time-slicing: {{replicas: {REPLICAS}}}}}
"""
PLUGIN_POLICY = CLAIMS_POLICY.replace("via: claims, ", "").replace("unit: 1Gi, protocol: 3", "replicas: 4")
_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
_PROTOBUF = "application/vnd.kubernetes.protobuf"

T = TypeVar("T")
Result = dict[str, Any]


class ApiServer:
    """On a thread of this process, which has nothing else to do meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._open = object_store()
        self._store: ObjectStore

    def start(self) -> None:
        """Listen, with one Node."""
        self._thread.start()
        self._store = asyncio.run_coroutine_threadsafe(self._open.__aenter__(), self._loop).result()
        server = self._store.server
        server.answer = self._answer
        self.tell(lambda store: store.node(NODE))
        cluster = {"server": server.url, "certificate-authority": str(PKI / "ca.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bench", "cluster": cluster}],
            "users": [{"name": "bench", "user": {}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "current-context": "bench",
        }
        self.kubeconfig.write_text(json.dumps(config), encoding="utf-8")

    def _answer(self, request: Request) -> Answer:
        """A driver in Go writes its slices as protobuf, which nobody reads here."""
        self._store.server.requests.clear()
        if _PROTOBUF in request.headers.get("content-type", ""):
            made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}}
            answer = Answer(made, 201)
        elif _PROTOBUF in request.headers.get("accept", "") and "resourceclaims" not in request.path:
            answer = Answer(hang=True) if request.watches else Answer(_empty(request.path))
        else:
            answer = self._store.answer(request)
        headers = {**answer.headers, "Content-Type": "application/json"}
        return Answer(answer.body, answer.code, headers, answer.drop, answer.hang)

    def tell(self, change: Callable[[ObjectStore], T]) -> T:
        """Do something with the objects, on the server's thread."""

        async def done() -> T:
            return change(self._store)

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result()

    def put_claim(self, name: str, result: Result) -> ClaimRef:
        """A claim that the scheduler has allocated."""
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
        found = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": TEAM, "uid": f"uid-{name}"},
            "spec": {"devices": {"requests": [request]}},
            "status": {"allocation": {"devices": {"results": [{"request": "gpu", **result}], "config": []}}},
        }
        self.tell(lambda store: store.put(claims_path(TEAM), found))
        return ClaimRef(TEAM, name, f"uid-{name}")

    def remove_claim(self, claim: ClaimRef) -> None:
        """As its owner's end does."""
        self.tell(lambda store: store.remove(claims_path(claim.namespace), claim.name))

    def devices(self) -> dict[int, Any]:
        """All devices of the slices, by the index of the GPU."""
        slices = self.tell(lambda store: [*store.objects.get(SLICES, {}).values()])
        rows = [row for found in slices for row in found["spec"].get("devices", ())]
        return {row["attributes"]["index"]["int"]: row for row in rows if not row.get("taints")}

    def close(self) -> None:
        """End it."""
        asyncio.run_coroutine_threadsafe(self._open.__aexit__(None, None, None), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _empty(path: str) -> dict[str, Any]:
    """For a driver that looks for its slices, or for its Node."""
    if path.endswith(f"/{NODE}"):
        meta = {"name": NODE, "uid": "u1"}
        return {"apiVersion": "v1", "kind": "Node", "metadata": meta}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSliceList",
        "metadata": {"resourceVersion": "1"},
        "items": [],
    }


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """For the length of a block."""
    server = ApiServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.close()


@dataclass
class Driver:
    """A driver that serves. result: of an allocation, of the device that is prepared."""

    what: str
    socket: Path
    result: Result
    micros: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    _calls: int = 0

    def measure(self, client: Client, api: ApiServer, calls: int) -> None:
        """Prepare that many claims, and take each back before the next."""
        for _ in range(calls):
            self._calls += 1
            claim = api.put_claim(f"{self.what.replace(' ', '-').lower()}-{self._calls}", self.result)
            self.micros.append(self.prepare(client, claim))
            self.back.append(self.unprepare(client, claim))
            api.remove_claim(claim)

    def prepare(self, client: Client, claim: ClaimRef) -> float:
        """Microseconds."""
        request = pb.NodePrepareResourcesRequest(claims=[_message(claim)])
        said = client.ask(self.socket, [Call(_SERVICE + "NodePrepareResources", request.SerializeToString())])
        answer = pb.NodePrepareResourcesResponse.FromString(said.bodies[0]).claims[claim.uid]
        assert answer.devices, f"{self.what}: {answer.error}"
        return said.micros[0]

    def unprepare(self, client: Client, claim: ClaimRef) -> float:
        """Microseconds."""
        request = pb.NodeUnprepareResourcesRequest(claims=[_message(claim)])
        said = client.ask(
            self.socket, [Call(_SERVICE + "NodeUnprepareResources", request.SerializeToString())]
        )
        error = pb.NodeUnprepareResourcesResponse.FromString(said.bodies[0]).claims[claim.uid].error
        assert not error, f"{self.what}: {error}"
        return said.micros[0]


def _message(claim: ClaimRef) -> pb.Claim:
    return pb.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)


@dataclass(frozen=True)
class ClaimNode:
    """An agent that serves claims, and its devices by the index of the GPU."""

    place: Place
    api: ApiServer
    agent: AgentProcess
    devices: dict[int, Any]

    @property
    def pids(self) -> list[int]:
        """The agent and its helper."""
        helper = self.agent.helper_pid()
        assert helper is not None
        return [self.agent.pid, helper]

    @property
    def socket(self) -> Path:
        """Of the driver."""
        return self.place.root / "plugins" / "gpu.partage.dev" / "dra.sock"

    def result(self, gpu: int, **consumed: str) -> Result:
        """Of an allocation of this GPU: all of it, or this."""
        device = {
            "driver": "gpu.partage.dev",
            "pool": f"{NODE}-partage",
            "device": self.devices[gpu]["name"],
        }
        return {**device, "shareID": "share", "consumedCapacity": consumed} if consumed else device

    def whole(self) -> Driver:
        """A whole GPU."""
        return Driver("whole GPU", self.socket, self.result(0))

    def amount(self) -> Driver:
        """A part of a GPU, whose MPS daemon runs already."""
        return Driver("share on a daemon", self.socket, self.result(1, memory="10Gi", cores="25"))


@contextmanager
def claim_node() -> Iterator[ClaimNode]:
    """An agent whose GPUs are all for claims, once its slices are complete."""
    with plain_node("--dra", policy=CLAIMS_POLICY) as (here, api, agent):
        found = wait_for(lambda: (rows := api.devices()) and len(rows) == 8 and rows, what="8 devices")
        yield ClaimNode(here, api, agent, found)


@contextmanager
def plain_node(*options: str, policy: str) -> Iterator[tuple[Place, ApiServer, AgentProcess]]:
    """An agent with an API server, with or without claims."""
    with ExitStack() as stack:
        here = stack.enter_context(place())
        (here.root / "plugins_registry").mkdir()
        stack.enter_context(scripted_kubelet(here.kubelet_dir, here.pod_resources))
        api = stack.enter_context(api_server(here.root))
        machine = here.root / "machine.json"
        machine.write_text(json.dumps({"version": "partage/v1", "kind": "Machine", **MACHINE}))
        cluster = (f"--cluster={api.kubeconfig}", f"--node-name={NODE}")
        agent = spawn_as_shipped(here, *cluster, *options, machine=str(machine), policy=policy)
        stack.enter_context(running(agent))
        agent.wait(lambda: agent.health()[0] == 200, "healthy")
        yield here, api, agent


@contextmanager
def bare(folder: Path) -> Iterator[Driver]:
    """The bare driver."""
    (folder / "bare").mkdir()
    command = [sys.executable, "-m", "bench.bare_driver", str(folder / "bare")]
    with started(command, {}):
        driver = Driver("bare driver", folder / "bare" / bare_driver.SOCKET, {"driver": "b", "pool": "b"})
        wait_for(driver.socket.exists, what="the bare driver")
        yield driver


@contextmanager
def started(command: Sequence[str], more: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the length of a block."""
    process = subprocess.Popen(command, env={**os.environ, **image_environment(), **more})
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
