"""A node under load that a real Prometheus scrapes: a real agent process, simulated GPUs, planted pods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from partage.model.ids import ContainerId, PodUid, ShareId, device_of
from partage.model.samples import ThrottleTime
from partage.sim.node.faults import Occupy, SetSensors
from partage.sim.node.load import Load, LoadShape, Sensors
from partage.units import GIB
from tests.agent.harness import (
    AgentProcess,
    Place,
    SimulatedHelper,
    ids,
    offered,
    place,
    registered,
    running,
    simulated_helper,
    spawn,
)
from tests.kubelet_script import ScriptedKubelet, held, scripted_kubelet
from tests.prometheus.server import ROOT, RULES, Server, prometheus

POLICY = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, name: nvidia.com/gpu.strict, watch: kill, time-slicing: {replicas: 8}}
  - {select: {index: [2, 3]}, name: nvidia.com/gpu.slices, time-slicing: {replicas: 4}}
  - {select: {index: [4]}, mps: {replicas: 8}}
  - {select: {index: [5]}, time-slicing: {unit: 1Gi}}
  - {select: {index: [6, 7]}, mig: {layout: [3g.40gb, 1g.10gb, 1g.10gb]}}
  - {select: rest, exclusive: {}}
"""
WHOLE, STRICT, SLICES = "nvidia.com/gpu", "nvidia.com/gpu.strict", "nvidia.com/gpu.slices"
SHARED, MIG, UNITS = "nvidia.com/gpu.shared", "nvidia.com/mig-3g.40gb", "aliyun.com/gpu-mem"
MONITOR = ROOT / "tests" / "deploy" / "rendered" / "all.yaml"
NODE, AGENT_POD = "gpu-node-1", {"namespace": "partage", "pod": "partage-agent-x2x4k", "container": "agent"}


@dataclass
class Lab:
    """All parts. pods: namespace/pod to the resource and the shares that it holds."""

    node: Place
    kubelet: ScriptedKubelet
    helper: SimulatedHelper
    agent: AgentProcess
    server: Server
    pods: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    _waiting: list[Occupy] = field(default_factory=list)

    def run(
        self, pod: str, resource: str, gpu: int, memory_gib: int, *, load: Load, shares: int = 1, **how: Any
    ) -> None:
        """A pod on free shares of that GPU; without a resource it holds none."""
        number = len(self._waiting) + 1
        namespace, _, name = pod.partition("/")
        container = ContainerId(f"{number:064x}")
        if resource:
            assert self.helper.hardware is not None
            one = self.helper.hardware.state.gpus[gpu]
            mine = {one.uuid, *(mig.uuid for mig in one.mig_devices)}
            taken = {share for _, some in self.pods.values() for share in some}
            offered = (share for share in ids(self.kubelet, resource) if device_of(ShareId(share)) in mine)
            free = list(islice((share for share in offered if share not in taken), shares))
            if (mig := next((mig for mig in one.mig_devices if mig.uuid == free[0]), None)) is not None:
                how |= {"gi": mig.gi_id, "ci": mig.ci_id}
            self.pods[pod] = resource, free
        (self.node.container_logs / f"{name}_{namespace}_main-{container}.log").touch()
        self._waiting.append(
            Occupy(
                gpu,
                name,
                pid=4_200_000 + number,  # above the pids of most nodes
                memory_bytes=memory_gib * GIB,
                container=container,
                pod=PodUid(f"0b5a1e0c-6f1e-4d3c-9b42-{number:012d}"),
                load=load,
                **how,
            )
        )

    def _go(self) -> None:
        """As on a real node: the kubelet knows a container before its processes run."""
        self.kubelet.pod_resources = held(
            {one: {"main": {resource: shares}} for one, (resource, shares) in self.pods.items()}
        )
        for resource, shares in self.pods.values():
            calls = registered(self.kubelet, resource).calls
            assert calls is not None
            calls.allocate(shares)
        held_shares = sum(len(shares) for _, shares in self.pods.values())
        self.agent.wait(lambda: self._held() == held_shares, "all holders known")
        self.helper.inject(*self._waiting)

    def _held(self) -> int:
        """Shares, units of memory too."""
        samples = self.agent.get("/metrics")[1].decode().splitlines()
        counts = (line for line in samples if line.startswith("partage_container_shares{"))
        return round(sum(float(line.rpartition(" ")[2]) for line in counts))

    def run_job(self, job: str, gpu: int, memory_gib: int, load: Load) -> None:
        """A Slurm job on that GPU."""
        pid = 4_250_000 + int(job)
        self.helper.inject(Occupy(gpu, "step", pid=pid, memory_bytes=memory_gib * GIB, load=load, job=job))

    def load_it(self) -> None:
        """Pods under every strategy. Two use too much, and one of them is ended; one has no share.

        Slurm jobs and a program of the host use GPUs too.
        """
        for number, shape in enumerate(LoadShape):
            wave = Load(shape, to_bytes=5 * GIB, idle=0.05, busy=0.2, every_s=4.0, seed=number)
            self.run(f"team/infer-{number}", SHARED, 4, 2, load=wave, mps=True)
            self.run(f"team/notebook-{number}", SLICES, 2, 2, load=wave)
        sensors = SetSensors(3, Sensors(temperature_c=88.0, throttled_s={ThrottleTime.THERMAL: 3.0}))
        self.helper.inject(sensors)
        self.run("research/train", WHOLE, 1, 60, load=Load(busy=0.9))
        self.run("research/mig", MIG, 6, 20, load=Load(busy=0.5))
        self.run("team/greedy", SLICES, 3, 30, load=Load(busy=0.1))
        self.run("other/stray", "", 3, 3, load=Load(busy=0.1))
        self.run("team/chat", UNITS, 5, 6, load=Load(busy=0.3), shares=12)
        self.run("team/ended", STRICT, 0, 40, load=Load(busy=0.1))
        self._go()
        self.run_job("17", 0, 8, Load(LoadShape.WAVE, to_bytes=12 * GIB, busy=0.4, every_s=4.0))
        self.run_job("18", 1, 4, Load(busy=0.2))
        self.helper.inject(Occupy(3, "daemon", pid=4_300_000, memory_bytes=20 * GIB))


def relabelling() -> tuple[list[dict[str, Any]], bool]:
    """What the chart's ServiceMonitor asks for, as Prometheus' own configuration writes it."""
    objects = yaml.safe_load_all(MONITOR.read_text())
    (monitor,) = (one for one in objects if one and one["kind"] == "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    words = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    rules = [{words.get(key, key): value for key, value in one.items()} for one in endpoint["relabelings"]]
    return rules, endpoint["honorLabels"]


def configuration(address: str) -> dict[str, Any]:
    """Scrape the agent every second, with the labels that the Prometheus Operator gives its target."""
    relabelings, honor = relabelling()
    target = {**AGENT_POD, "__meta_kubernetes_pod_node_name": NODE}
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "partage-agent",
                "honor_labels": honor,
                "static_configs": [{"targets": [address], "labels": target}],
                "relabel_configs": relabelings,
            }
        ],
    }


@contextmanager
def lab(directory: Path) -> Iterator[Lab]:
    """An agent and a Prometheus that has scraped it."""
    with (
        place() as node,
        scripted_kubelet(node.kubelet_dir, node.pod_resources) as kubelet,
        simulated_helper(node) as helper,
    ):
        node.container_logs.mkdir(exist_ok=True)
        with running(spawn(node, "--dcgm-names=both", machine=None, policy=POLICY)) as agent:
            for resource, count in {STRICT: 8, SLICES: 8, SHARED: 8, UNITS: 79, MIG: 2, WHOLE: 1}.items():
                offered(kubelet, resource, count)
            agent.report()
            with prometheus(directory, configuration(agent.url.removeprefix("http://"))) as server:
                yield Lab(node, kubelet, helper, agent, server)
