"""NVIDIA's plugin is swapped for Partage and back under running pods, and found beside it (scenario 17)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from partage.model.pod import Container, Pod
from partage.sim.kubelet.kubelet import EmbeddedKubelet
from partage.sim.kubelet.pods import PodPhase, PodStatus
from tests.agent.harness import AgentProcess, Place, native, place, running, spawn
from tests.agent.test_cluster import _kubeconfig
from tests.edges.kube.scripted import Answer, Request, api_server, node
from tests.edges.kubelet.shelf import listening_child
from tests.nvidia_plugin import NvidiaPlugin, recording

GPU = "nvidia.com/gpu"
LABEL = "nvidia.com/gpu.deploy.device-plugin"


@dataclass
class Node:
    """A node with NVIDIA's plugin, and an agent beside it that waits."""

    place: Place
    kubelet: EmbeddedKubelet
    nvidia: NvidiaPlugin
    agent: AgentProcess
    pods: list[Pod] = field(default_factory=list)

    def statuses(self) -> list[PodStatus]:
        return [one for one in self.kubelet.pods() if one.pod in self.pods]

    def command(self, verb: str, *options: str) -> list[str]:
        command = [sys.executable, "-m", "partage", verb, f"--kubelet-dir={self.place.kubelet_dir}"]
        return [
            *command,
            f"--run-dir={self.place.run_dir}",
            f"--state-dir={self.place.root}/record",
            *options,
        ]

    async def verb(self, verb: str, *options: str) -> tuple[int, str, str]:
        command = self.command(verb, *options)
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=50)
        return done.returncode, done.stdout, done.stderr

    async def wait(self, condition: Any, what: str) -> None:
        await asyncio.to_thread(self.agent.wait, condition, what)

    async def reported(self, resource: str = GPU, *, registered: bool) -> None:
        """Also in the report file, which the verbs read."""

        def written() -> bool:
            path = self.place.run_dir / "report.json"
            rows = json.loads(path.read_text())["resources"] if path.exists() else []
            return {one["name"]: one["registered"] for one in rows}.get(resource) is registered

        await self.wait(written, f"report: {resource} registered: {registered}")


@asynccontextmanager
async def beside_nvidia(
    case: str, pods: int, policy: str | None = None, *options: str
) -> AsyncIterator[Node]:
    with place() as here:
        kubelet = EmbeddedKubelet(here.kubelet_dir, here.pod_resources)
        await kubelet.start()
        nvidia = NvidiaPlugin(here.kubelet_dir, "h100", case)
        await nvidia.start()
        found = recording("h100")
        machine = here.root / "machine.json"
        machine.write_text(json.dumps(found["machine"]))
        config = found["cases"][case]["config"]
        policy = policy or json.dumps({"version": "v1", **config})
        env = {"MPS_ROOT": "/run/nvidia/mps"}
        names = {name: len(ids) for name, ids in nvidia.ids.items()}
        await kubelet.until(lambda: names.items() <= kubelet.allocatable().items())
        made = [Pod("default", f"p{n}", (Container("main", {next(iter(names)): 1}),)) for n in range(pods)]
        for pod in made:
            assert (await kubelet.admit(pod)).phase is PodPhase.RUNNING
        try:
            with running(spawn(here, *options, machine=str(machine), policy=policy, env=env)) as agent:
                yield Node(here, kubelet, nvidia, agent, made)
        finally:
            await nvidia.stop()
            await kubelet.stop()


async def test_20_pods_keep_their_ids_through_takeover_and_handback() -> None:
    async with beside_nvidia("ts10", 20) as node_, cluster_of(node_) as cluster:
        options = ["--cluster", f"--kubeconfig={cluster.kubeconfig}", "--node-name=n1", "--wait=30"]
        await node_.reported(registered=False)
        assert (await asyncio.to_thread(node_.agent.health)) == (503, ["other-plugin"])
        before = node_.statuses()
        assert sum(len(one.container("main").ids[GPU]) for one in before) == 20
        devices = node_.kubelet.devices()[GPU]

        code, out, err = await node_.verb("takeover", *options)
        assert (code, err) == (0, ""), out
        assert "nvidia.com/gpu: 80 ids listed now, 20 held by 20 pods; 80 offered by Partage" in out
        assert cluster.labels[LABEL] == "false"
        assert not node_.nvidia.running
        assert node_.kubelet.devices()[GPU] == devices, "every id is listed, and healthy"
        assert node_.statuses() == before, "no pod has noticed"
        assert all(one.container("main").restarts == 0 for one in node_.statuses())
        more = await node_.kubelet.admit(Pod("default", "new", (Container("main", {GPU: 1}),)))
        held = {share for one in before for share in one.container("main").ids[GPU]}
        assert not held & set(more.container("main").ids[GPU])
        await node_.wait(lambda: len(node_.agent.report()["held"]) == 21, "all holds are known")
        code, _, err = await node_.verb("takeover", *options)
        assert (code, err.split(":")[0]) == (0, "nothing to do")

        code, out, err = await node_.verb("handback", *options)
        assert (code, err) == (0, ""), out
        assert cluster.labels[LABEL] == "true"
        assert node_.nvidia.running
        assert node_.kubelet.devices()[GPU] == devices
        assert [one for one in node_.statuses() if one.pod in node_.pods] == before
        assert (await asyncio.to_thread(node_.agent.health)) == (503, ["other-plugin"])
        assert node_.kubelet.protocol_errors == ()


async def test_handback_is_not_done_before_the_kubelet_asks_the_other_plugin() -> None:
    """A plugin that listens, and that the kubelet has not accepted (1.37 refuses a path that it knows)."""
    async with beside_nvidia("ts10", 3) as node_:
        await node_.reported(registered=False)
        await node_.nvidia.stop()
        await node_.reported(registered=True)
        record = json.dumps({"listed": {GPU: sorted(node_.nvidia.ids[GPU])}, "label": None})
        (node_.place.root / "record").mkdir()
        (node_.place.root / "record" / "nvidia-plugin.json").write_text(record)
        with listening_child(node_.place.kubelet_dir / "nvidia-gpu.sock"):
            for limit_s in (4, 8, 16, 32):  # a busy machine takes as long for the step before
                code, out, err = await node_.verb("handback", f"--wait={limit_s}")
                assert (code, "done" in out) == (4, False), err
                if "the agent still serves" not in err:
                    break
        assert "NVIDIA's plugin has not registered nvidia.com/gpu" in err
        await node_.reported(registered=True)
        await node_.wait(lambda: node_.kubelet.allocatable()[GPU] == 80, "the agent serves again")


async def test_by_hand_the_verb_waits_for_the_steps() -> None:
    async with beside_nvidia("ts4-rename", 3) as node_:
        shared = "nvidia.com/gpu.shared"
        await node_.reported(shared, registered=False)
        code, out, err = await node_.verb("takeover")
        assert code == 0, err
        assert f"kubectl label node NODE --overwrite {LABEL}=false" in out
        assert "done" not in out
        waiting = asyncio.create_task(node_.verb("takeover", "--wait=40", "-o", "json"))
        await asyncio.sleep(0.5)
        await node_.nvidia.stop()
        code, out, err = await waiting
        assert code == 0, err
        answer = json.loads(out)
        assert (answer["kind"], answer["done"], answer["possible"]) == ("Takeover", True, True)
        (row,) = answer["resources"]
        assert (row["resource"], row["held"], row["pods"], row["lost"]) == (shared, 3, 3, [])


async def test_a_policy_that_would_lose_held_ids_is_refused() -> None:
    other = native("{select: all, time-slicing: {replicas: 2}}")
    async with beside_nvidia("ts10", 20, policy=other) as node_:
        await node_.reported("nvidia.com/gpu.shared", registered=False)
        rows = (await asyncio.to_thread(node_.agent.report))["resources"]
        said = {one["name"]: one["lastError"] for one in rows}
        assert "another process offers the same GPUs as nvidia.com/gpu at" in said["nvidia.com/gpu.shared"]
        code, out, err = await node_.verb("takeover", "--wait=5")
        assert code == 3, out
        assert "held ids would not be offered by Partage: GPU-" in err
        assert node_.nvidia.running


async def test_shares_under_mps_have_to_be_drained_first() -> None:
    async with beside_nvidia("mps2", 1) as node_:
        await node_.wait(lambda: node_.agent.report()["gpus"], "a report")
        code, _, err = await node_.verb("takeover", "--wait=5")
        assert code == 3
        assert "1 shares under MPS are held by 1 pod" in err
        await node_.kubelet.delete(node_.pods[0])
        await node_.kubelet.admit(Pod("default", "other", (Container("main", {}),)))
        code, out, err = await node_.verb("takeover")
        assert code == 0, err
        assert "0 held" in out


async def test_nothing_comes_in_time_and_the_label_is_as_before() -> None:
    async with beside_nvidia("ts10", 1) as node_, cluster_of(node_) as cluster:
        cluster.obeys = False
        await node_.reported(registered=False)
        options = ["--cluster", f"--kubeconfig={cluster.kubeconfig}", "--node-name=n1", "--wait=1.5"]
        code, _, err = await node_.verb("takeover", *options)
        assert code == 4
        assert "Partage has not registered nvidia.com/gpu" in err
        assert cluster.labels[LABEL] == "true"
        assert node_.nvidia.running

        # Ctrl-C is a failure, too.
        command = node_.command("takeover", *options[:-1], "--wait=50")
        verb = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        async with asyncio.timeout(30):
            while cluster.labels[LABEL] != "false":
                await asyncio.sleep(0.02)
            verb.send_signal(signal.SIGINT)
            _, said = await verb.communicate()
        assert verb.returncode == 130
        assert b"label of before again" in said
        assert cluster.labels[LABEL] == "true"

        # A verb that was killed has left its label; the next one still knows the one before.
        cluster.labels[LABEL] = "false"
        code, _, _ = await node_.verb("takeover", *options[:-1], "--wait=0.1")
        assert code == 4
        record = json.loads((node_.place.root / "record" / "nvidia-plugin.json").read_text())
        assert record["label"] == "true"


HALF = native("{select: {index: 0}, mig: {layout: [3g.40gb, 3g.40gb]}}")


async def test_no_gpu_is_changed_while_nvidias_plugin_serves() -> None:
    """The policy wants MIG devices of a GPU that no pod holds: the agent offers nothing yet, and waits."""
    async with beside_nvidia("ts10", 0, policy=HALF) as node_:

        def gpu() -> Any:
            found = node_.agent.gpu(0)
            return found.get("phase"), found.get("reason") or ""

        def held_back(socket: str = "nvidia-gpu.sock") -> bool:
            phase, reason = gpu()
            return phase == "waiting" and f"serves {node_.place.kubelet_dir}/{socket}" in reason

        await node_.wait(held_back, "GPU 0 waits for the other plugin")
        assert (await asyncio.to_thread(node_.agent.gpu, 1))["phase"] == "settled"
        assert node_.agent.metric('partage_reconcile_total{ending="done"}') in (None, 0)
        for verb in ("show", "plan"):
            machine = f"--machine={node_.place.root}/machine.json"
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "partage", verb, machine, f"--run-dir={node_.place.run_dir}"],
                capture_output=True,
                text=True,
                timeout=50,
            )
            assert "no GPU is changed before that has ended" in " ".join(done.stdout.split()), verb
        await node_.nvidia.stop()
        await node_.wait(lambda: gpu() == ("settled", ""), "the layout is made by itself")

        await node_.reported(registered=True)
        later = NvidiaPlugin(node_.place.kubelet_dir, "h100", "ts4-rename")
        await later.start()
        try:
            await node_.wait(lambda: node_.agent.degraded() == ["other-plugin"], "it is seen")
            node_.place.write_policy(native("{select: {index: 0}, mps: {replicas: 2}}"))
            await node_.wait(lambda: held_back("nvidia-gpu.shared.sock"), "GPU 0 waits again")
            assert len(node_.agent.gpu(0)["steps"]) > 1
        finally:
            await later.stop()


async def test_with_takeover_the_plugin_that_is_there_holds_nothing_back() -> None:
    async with beside_nvidia("ts10", 0, HALF, "--takeover") as node_:
        await node_.wait(lambda: node_.agent.gpu(0).get("phase") == "settled", "the layout is made")
        assert node_.nvidia.running


@pytest.mark.parametrize("verb", ["apply", "plan"])
async def test_verbs_without_an_agent_see_the_other_plugin(verb: str) -> None:
    with place() as here:
        kubelet = EmbeddedKubelet(here.kubelet_dir, here.pod_resources)
        await kubelet.start()
        nvidia = NvidiaPlugin(here.kubelet_dir, "h100", "ts10")
        await nvidia.start()
        here.write_policy(HALF)
        command = [sys.executable, "-m", "partage", verb, "--machine=2xh100-sxm5-80gb"]
        command += [f"--policy={here.policy}"]
        seen = [*command, f"--kubelet-dir={here.kubelet_dir}", "-o", "json"]
        try:
            done, without = [
                await asyncio.to_thread(subprocess.run, one, capture_output=True, text=True, timeout=50)
                for one in (seen, [*command, "--kubelet-dir=none"])
            ]
        finally:
            await nvidia.stop()
            await kubelet.stop()
        assert done.returncode == {"apply": 3, "plan": 0}[verb]
        assert "no GPU is changed before that has ended" in done.stdout
        assert without.returncode == 0
        assert "no GPU is changed" not in without.stdout + without.stderr


async def test_without_an_agent_nothing_is_taken() -> None:
    with place() as here:
        command = [sys.executable, "-m", "partage", "takeover", f"--kubelet-dir={here.kubelet_dir}"]
        command += [f"--run-dir={here.run_dir}"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=50)
        assert done.returncode == 3
        assert "no agent runs here" in done.stderr


# --- a cluster -------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """An API server with one Node, and the GPU Operator's DaemonSet, which follows the Node's label."""

    node: Node
    kubeconfig: Path
    labels: dict[str, str] = field(default_factory=lambda: {LABEL: "true"})
    obeys: bool = True
    patched: list[Any] = field(default_factory=list)

    async def answer(self, request: Request) -> Answer:
        if request.path == "/apis/apps/v1/daemonsets":
            return Answer(
                {"items": [SET, {**SET, "spec": {"template": {"spec": {"containers": [{"name": "x"}]}}}}]}
            )
        if request.method == "PATCH":
            self.patched.append(request.json)
            for key, value in request.json["metadata"]["labels"].items():
                self.labels.pop(key, None)
                self.labels |= {key: value} if value is not None else {}
            if self.obeys:
                wanted = self.labels.get(LABEL) == "true"
                if wanted != self.node.nvidia.running:
                    await (self.node.nvidia.start() if wanted else self.node.nvidia.stop())
        return Answer(node(7, **self.labels))


SET = {
    "metadata": {
        "namespace": "gpu-operator",
        "name": "nvidia-device-plugin-daemonset",
        "resourceVersion": "3",
    },
    "spec": {
        "template": {
            "spec": {"nodeSelector": {LABEL: "true"}, "containers": [{"name": "nvidia-device-plugin"}]}
        }
    },
}


@asynccontextmanager
async def cluster_of(node_: Node) -> AsyncIterator[Cluster]:
    async with api_server() as server:
        cluster = Cluster(node_, _kubeconfig(node_.place.root, server.url))
        server.answer = cluster.answer
        yield cluster
