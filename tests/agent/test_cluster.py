"""The agent in a cluster: the labels of its Node, against an API server on real sockets."""

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from partage.agent.status.status import AgentStatus
from partage.edges.kube.cluster import ApiCluster
from partage.kubernetes.agent.node_writer import ClusterIntervals, NodeWriter
from partage.model.node_labels import WrittenLabels
from partage.sim.node.faults import Reboot
from partage.sim.node.files.load import load_machine
from partage.sim.node.machine import Machine
from tests.agent.harness import Place, native, place, simulated_helper
from tests.agent.hosted import hosted_beside
from tests.edges.kube.scripted import PKI, Answer, ScriptedServer, Stream, api_server, node, quick, status
from tests.kubelet_script import ScriptedKubelet, scripted_kubelet

FOUR = "4xh100-sxm5-80gb"


class NodeServer:
    """An API server with one Node. applied: what each apply said."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        server.answer = self.answer
        server.opened = self._missed
        self.labels = {"mine": "1"}
        self.owned: set[str] = set()
        self.version = 10
        self.applied: list[dict[str, str]] = []
        self.annotations: dict[str, str] = {}
        self.by_hand: set[str] = set()
        self.conditions: dict[str, dict[str, str]] = {}
        self.capacity: dict[str, str] = {}
        self.pods: dict[str, dict[str, str]] = {}
        self.refuse_pods: Answer | None = None
        self.events: list[dict[str, Any]] = []
        self.taints: list[dict[str, str]] = []
        self.refuse: Answer | None = None
        self.refuse_status: Answer | None = None
        self.stream: Stream | None = None

    @property
    def watched(self) -> bool:
        return self.stream is not None or not self.server.streams.empty()

    async def answer(self, request) -> Answer:
        if "/events" in request.path:
            self.events += [request.json] if request.method == "POST" else []
            return Answer({}, 201)
        if request.method == "GET" and request.path == "/api/v1/nodes/n1":
            return Answer(self._node())
        if "/pods/" in request.path:
            self.pods[request.path.rpartition("/")[2]] = request.json["metadata"]["annotations"]
            return self.refuse_pods or Answer({"metadata": {}, "spec": {"containers": []}})
        if request.query.get("fieldManager") == "partage-cli":
            return await self._annotate(request.json["metadata"])
        if request.method == "PATCH" and "spec" in request.json:
            return await self._set_taints(request.json)
        if request.method == "PATCH":
            change = self._set_conditions if request.path.endswith("/status") else self._apply
            answer = self.refuse or change(request.json)
            await self._tell()
            return answer
        found = {"metadata": {"resourceVersion": str(self.version)}, "items": [self._node()]}
        return Answer({} if request.watches else found)

    def _node(self):
        found = node(self.version, **self.labels)
        found["metadata"]["annotations"] = self.annotations
        found["spec"]["taints"] = self.taints
        found["status"]["conditions"] = list(self.conditions.values())
        found["status"]["capacity"] = self.capacity
        found["status"]["addresses"] = [{"type": "InternalIP", "address": "10.0.0.1"}]
        return found

    def _set_conditions(self, body) -> Answer:
        if self.refuse_status is not None:
            return self.refuse_status
        if "capacity" in body["status"]:
            assert body["status"]["allocatable"] == body["status"]["capacity"]
            merged = self.capacity | body["status"]["capacity"]
            self.capacity = {key: value for key, value in merged.items() if value is not None}
            self.version += 1
            return Answer(self._node())
        self.conditions |= {row["type"]: row for row in body["status"]["conditions"]}
        self.version += 1
        return Answer(self._node())

    async def _set_taints(self, body) -> Answer:
        if body["metadata"]["resourceVersion"] != str(self.version):
            return status(409, "Conflict", "the Node has been modified")
        await self.taint(*body["spec"]["taints"])
        return Answer(self._node())

    async def taint(self, *taints: dict[str, str]) -> None:
        """All taints are these now; the watch says so."""
        self.taints = list(taints)
        self.version += 1
        await self._tell()

    def _apply(self, body) -> Answer:
        labels = body["metadata"]["labels"]
        by_hand = {key: value for key, value in self.annotations.items() if key in self.by_hand}
        self.annotations = {**body["metadata"]["annotations"], **by_hand}
        self.applied.append(labels)
        kept = {key: value for key, value in self.labels.items() if key not in self.owned}
        self.labels, self.owned = {**kept, **labels}, set(labels)
        self.version += 1
        return Answer(self._node())

    async def _annotate(self, meta) -> Answer:
        """As a person with kubectl."""
        if (meta["uid"], meta["resourceVersion"]) != ("u1", str(self.version)):
            return status(409, "Conflict", "the Node has been modified")
        self.by_hand |= set(meta["annotations"])
        merged = {**self.annotations, **meta["annotations"]}
        self.annotations = {key: value for key, value in merged.items() if value is not None}
        self.version += 1
        await self._tell()
        return Answer(self._node())

    async def edit(self, **labels: str) -> None:
        """As another client; the watch says so."""
        self.labels |= labels
        self.version += 1
        await self._tell()

    async def _missed(self, request, stream: Stream) -> None:
        """As a real API server: a watch begins with what has changed since its ``resourceVersion``."""
        if int(request.query.get("resourceVersion") or 0) < self.version:
            await stream.send("MODIFIED", self._node())

    async def _tell(self) -> None:
        """The watch says how the Node is now, if one is open."""
        while not self.server.streams.empty():
            self.stream = self.server.streams.get_nowait()
        if self.stream is not None and not self.stream.ended.is_set():
            await self.stream.send("MODIFIED", self._node())


def _kubeconfig(root: Path, url: str) -> Path:
    path = root / "kubeconfig"
    document = {
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority": str(PKI / "ca.crt")}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return path


@asynccontextmanager
async def _agent(
    policy: str | None = None,
    *,
    kubelet: bool = False,
    refuse_status: Answer | None = None,
    prepare: Callable[[NodeServer], None] = lambda _: None,
    machine: str | None = FOUR,
    helper: Machine | str = FOUR,
    **options: Any,
) -> AsyncIterator[tuple[Any, ...]]:
    """An agent beside an API server, and beside a kubelet if it is asked for. machine: None: ``helper`` is
    that of a helper of the test.
    """
    async with api_server() as server:
        api = NodeServer(server)
        api.refuse_status = refuse_status
        prepare(api)
        with place() as here, ExitStack() as stack:
            beside: tuple[Any, ...] = (stack.enter_context(_kubelet(here)),) if kubelet else ()
            if machine is None:
                beside = (*beside, stack.enter_context(simulated_helper(here, helper)))
            where = {"kubeconfig": _kubeconfig(here.root, server.url), "node_name": "n1"}
            async with hosted_beside(here, machine=machine, policy=policy, **where, **options) as agent:
                yield here, api, agent, *beside


def _kubelet(here: Place) -> AbstractContextManager[ScriptedKubelet]:
    return scripted_kubelet(here.kubelet_dir, here.pod_resources)


async def _until(true_of, what: str, agent=None) -> None:
    def told() -> str:
        return f"{what}: {''.join(agent.log) if agent else ''}"

    try:
        async with asyncio.timeout(60):  # a busy machine is no fault
            while not true_of():
                await asyncio.sleep(0.01)
                assert agent is None or agent.runs, told()
    except TimeoutError:
        raise AssertionError(told()) from None


async def test_labels_follow_the_policy_and_those_of_before_disappear():
    async with _agent(policy=native("{select: all, time-slicing: {replicas: 4}}")) as (here, api, agent):
        await _until(lambda: api.labels.get("nvidia.com/gpu.replicas") == "4", "labels", agent)
        assert api.labels["partage.dev/gpu.shared.guarantee"] == "none"
        assert api.labels["mine"] == "1"
        here.write_policy(native())
        await _until(lambda: api.labels.get("nvidia.com/gpu.replicas") == "1", "labels", agent)
        assert "partage.dev/gpu.shared.guarantee" not in api.labels
        assert api.labels["mine"] == "1"
        assert api.server.requests[-1].headers["authorization"] == "Bearer t"


async def test_an_api_server_that_is_away_is_degraded_and_nothing_waits_for_it():
    async with _agent() as (_, api, agent):
        await _until(lambda: api.applied, "labels", agent)
        await api.server.stop()
        await asyncio.to_thread(agent.wait, lambda: "node-not-updated" in agent.degraded(), "told")
        assert "node-not-updated" not in agent.health()[1], "the node works"
        metric = 'partage_dependency_up{dependency="api-server"}'
        await asyncio.to_thread(agent.wait, lambda: agent.metric(metric) == 0, "in a metric, too")
        await api.server.start()
        await asyncio.to_thread(agent.wait, lambda: "node-not-updated" not in agent.degraded(), "well again")


def test_without_a_cluster_its_client_is_not_imported():
    names = "[one for one in sys.modules if one.startswith(('h11', 'partage.edges.kube.'))]"
    code = f"import sys, partage.cli.run_agent; print({names})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--cluster=/no/such/file", "--node-name=n1"], "No such file"),
        (["--cluster=/no/such/file"], "--node-name"),
    ],
)
def test_a_cluster_that_cannot_be_read_ends_the_agent(options, text, capsys):
    from partage.cli.main import run

    with place() as here:
        assert run(["agent", *here.options(), "--machine=1xl4", *options]) == 2
    assert text in capsys.readouterr().err


async def test_beside_nvidias_feature_discovery_only_own_labels_are_written():
    """At first both write, which is told; an agent that writes only its own takes the others away."""

    def by_nvidia(api: NodeServer) -> None:
        api.labels = {"nvidia.com/gfd.timestamp": "1700000000"}

    async with _agent(prepare=by_nvidia) as (_, api, agent):
        await asyncio.to_thread(agent.wait, lambda: "labels-written-twice" in agent.degraded(), "told")
        await _until(lambda: "nvidia.com/gpu.count" in api.labels, "labels", agent)
    async with _agent(None, labels=WrittenLabels.OWN, prepare=by_nvidia) as (_, api, agent):
        await _until(lambda: api.applied, "labels", agent)
        assert {key.partition("/")[0] for key in api.applied[-1]} == {"partage.dev"}
        await asyncio.to_thread(agent.wait, lambda: agent.report()["policy"], "a report")
        assert "labels-written-twice" not in agent.degraded()
    keys = ["nvidia.com/gpu.count", "nvidia.com/mig.config.state", "partage.dev/gpu.NVIDIA-L4"]
    written = {one: [key for key in keys if one.writes(key)] for one in WrittenLabels}
    assert written == {WrittenLabels.ALL: keys, WrittenLabels.OWN: keys[1:], WrittenLabels.NONE: []}


# --- against others, and refusals -----------------------------------------------------------------

QUICK = ClusterIntervals(
    settle_s=0.01, retry_s=0.01, retry_longest_s=0.02, contested_s=0.2, contested_longest_s=0.4
)


@asynccontextmanager
async def _labels(wanted):
    """The task with these labels wanted, beside an API server, and how often it asked for a turn."""
    async with api_server() as server:
        api = NodeServer(server)
        asked: list[str] = []
        cluster = ApiCluster(server.config(), "n1", backoff=quick)
        labels = NodeWriter(
            cluster, "n1", AgentStatus(time.monotonic), lambda: asked.append(labels.trouble), QUICK
        )
        labels._wanted = wanted
        task = asyncio.create_task(labels.run())
        try:
            yield api, labels, asked
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_a_label_that_someone_else_changes_is_set_again_and_ever_more_rarely():
    loop = asyncio.get_running_loop()
    async with _labels({"a": "1"}) as (api, _, _):
        times = []
        for count in range(1, 5):
            await _until(lambda count=count: len(api.applied) == count, "applied")
            times.append(loop.time())
            await _until(lambda: api.watched, "a watch")
            await api.edit(a=f"other{count}")
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert pauses[0] >= 0.1, "half of contested_s"
        assert pauses[2] >= 0.2, "half of contested_longest_s"
        await api.edit(b="2")
        assert len(api.applied) == 4


async def test_what_others_label_is_none_of_our_business():
    async with _labels({"a": "1"}) as (api, _, _):
        await _until(lambda: len(api.applied) == 1, "applied")
        await _until(lambda: api.watched, "a watch")
        await api.edit(b="2")
        await asyncio.sleep(0.1)
        assert len(api.applied) == 1


async def test_a_refusal_is_told_and_tried_again():
    async with _labels({"a": "1"}) as (api, labels, asked):
        api.refuse = status(403, "Forbidden", "cannot patch nodes")
        await _until(lambda: "cannot patch nodes" in labels.trouble, "told")
        assert "not permitted" in asked[-1]
        api.refuse = None
        await _until(lambda: len(api.applied) == 1, "applied")
        await _until(lambda: labels.trouble == "", "well again")


# --- labels that the agent reads -------------------------------------------------------------------

CHOICE, MIG_CONFIG = "nvidia.com/device-plugin.config", "nvidia.com/mig.config"
STATE = f"{MIG_CONFIG}.state"


async def test_a_label_of_the_node_chooses_the_policy_and_a_layout():
    async with api_server() as server:
        api = NodeServer(server)
        with place() as here:
            policies = here.root / "policies"
            policies.mkdir()
            (policies / "default.yaml").write_text(native())
            (policies / "fours.yaml").write_text(native("{select: all, time-slicing: {replicas: 4}}"))
            where = {"kubeconfig": _kubeconfig(here.root, server.url), "node_name": "n1"}
            async with hosted_beside(here, policy=policies, machine=FOUR, **where) as agent:
                await _until(lambda: api.labels.get("nvidia.com/gpu.replicas") == "1", "default", agent)
                await api.edit(**{CHOICE: "fours"})
                await _until(lambda: api.labels.get("nvidia.com/gpu.replicas") == "4", "fours", agent)
                assert STATE not in api.labels
                await api.edit(**{MIG_CONFIG: "all-3g.40gb"})
                await _until(lambda: api.labels.get(STATE) == "success", "a layout", agent)
                assert api.labels["nvidia.com/mig-3g.40gb.count"] == "8"
                await api.edit(**{MIG_CONFIG: "thirds"})
                await _until(lambda: api.labels.get(STATE) == "failed", "a wrong name", agent)
                assert api.labels["nvidia.com/mig-3g.40gb.count"] == "8"
                del api.labels[MIG_CONFIG]
                await api.edit()
                await _until(lambda: STATE not in api.labels, "no label", agent)


IN_A_VM = """
virtual: true
gpus: [{name: NVIDIA A100-SXM4-40GB, mig-mode: [0, 0]}]
"""


async def test_a_layout_whose_mode_only_a_reboot_turns_on_is_called_rebooting_until_then(tmp_path):
    """As mig-manager calls it: the mode is noted, and a virtual machine may not reset its GPU."""
    (tmp_path / "machine.yaml").write_text(IN_A_VM)

    def asked(api: NodeServer) -> None:
        api.labels = {MIG_CONFIG: "all-3g.20gb"}

    vm = load_machine(str(tmp_path / "machine.yaml"))
    async with _agent(native(), prepare=asked, machine=None, helper=vm) as (_, api, agent, helper):
        await _until(lambda: api.labels.get(STATE) == "rebooting", "the mode waits for a reboot", agent)

        def refused() -> bool:
            said = agent.report()["migConfig"]
            return said["state"] == "rebooting" and "may not reset its GPUs" in said["reason"]

        await asyncio.to_thread(agent.wait, refused, "the report says why")
        helper.inject(Reboot())
        await _until(lambda: api.labels.get(STATE) == "success", "after the reboot", agent)
        assert api.labels["nvidia.com/mig-3g.20gb.count"] == "2"
