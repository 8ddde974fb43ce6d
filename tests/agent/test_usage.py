"""What the metrics say of a node on which a hundred processes come and go, against what was planted there."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import Struct, field
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from partage.agent.kubelet_service import run
from partage.agent.options import AgentOptions, Intervals
from partage.agent.status.status import AgentStatus, ClaimFigures
from partage.edges.hardware.helper_client import RemoteHardware
from partage.edges.hardware.supervisor import HelperState
from partage.model.dcgm_names import DcgmNames
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid, PodUid, ResourceName, ShareId, device_of
from partage.model.mps import SERVER_PROGRAM
from partage.plan.serve.ledger_entry import Holder
from partage.plan.usage import OtherMemory
from partage.serve_http.metrics.metric_definitions import METRICS
from partage.serve_http.metrics.metrics import MetricsWriter, ReportCollector, metrics_writer
from partage.sim.node.faults import HideProcesses, Occupy, RaiseXid, Vacate
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.load import Load, LoadShape, load_at
from partage.sim.node.state import SimulatedNode
from partage.units import GIB, MIB
from tests.agent.harness import Place, SimulatedHelper
from tests.kubelet_script import ScriptedKubelet, held

POLICY = """\
version: partage/v1
gpus:
  - select: {index: [2, 3]}
    name: nvidia.com/gpu.slices
    time-slicing: {replicas: 12}
  - select: {index: [4, 5]}
    mps: {replicas: 8}
  - select: {index: [6, 7]}
    mig: {layout: [3g.40gb, 1g.10gb, 1g.10gb]}
  - select: rest
    exclusive: {}
"""
PROCESSES = 100
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
INTERVALS = Intervals(
    holders_s=0.05, holders_first_s=0.05, policy_s=0.05, withdraw_s=0.05, usage_answer_s=20.0
)
Labels = frozenset[tuple[str, str]]


class Clock(Struct):
    """The time of the simulated node. It stands still, so that a figure is the same on both sides."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Planted(Struct):
    """A pod of one container on one share. processes: pid to its memory and load. since_s: when they came,
    and
    after: after how many samples.
    """

    holder: Holder
    container: ContainerId
    resource: ResourceName
    share: ShareId
    gpu: GpuUuid
    gpu_index: int
    part: tuple[int | None, int | None]
    since_s: float
    after: int
    processes: dict[int, tuple[int, Load]] = field(default_factory=dict)

    @property
    def device(self) -> DeviceUuid:
        return device_of(self.share)

    def used_bytes(self, now_s: float) -> int:
        ages = now_s - self.since_s
        return sum(load_at(load, low, ages).memory_bytes or 0 for low, load in self.processes.values())

    def peak_bytes(self, sampled: list[float]) -> int:
        """The highest of the samples since it came."""
        return max(self.used_bytes(at_s) for at_s in sampled[self.after :])


class Scrape:
    """The samples of one scrape, read by the official parsers."""

    def __init__(self, text: str, *, openmetrics: bool = False) -> None:
        parse = openmetrics_families if openmetrics else text_string_to_metric_families
        self.samples: dict[str, dict[Labels, float]] = {}
        for family in parse(text):
            for sample in family.samples:
                rows = self.samples.setdefault(sample.name, {})
                key = frozenset(sample.labels.items())
                assert key not in rows, f"{sample.name} has the same labels twice"
                rows[key] = sample.value
        self.count = sum(len(rows) for rows in self.samples.values())

    def by(self, name: str, *labels: str, **wanted: str) -> dict[tuple[str, ...], float]:
        """The samples with these values, by the values of some labels."""
        rows = ((dict(key), value) for key, value in self.samples.get(name, {}).items())
        return {
            tuple(row.get(label, "") for label in labels): value
            for row, value in rows
            if wanted.items() <= row.items()
        }


class Stage:
    """An agent in this loop with a simulated node behind the helper's socket, and pods that a test plants."""

    def __init__(self, node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper, clock: Clock) -> None:
        self.node, self.kubelet, self.helper, self.clock = node, kubelet, helper, clock
        self.status = AgentStatus(time.monotonic)
        self.pods: dict[Holder, Planted] = {}
        self.write: MetricsWriter = metrics_writer(self.status, INTERVALS, None, DcgmNames.BOTH, "here")
        self.random = random.Random(7)
        self.sampled: list[float] = []
        self._pids = iter(range(1000, 100_000))
        self.node.container_logs.mkdir(exist_ok=True)

    @property
    def state(self) -> SimulatedNode:
        assert self.helper.hardware is not None
        return self.helper.hardware.state

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        options = AgentOptions(
            kubelet_dir=self.node.kubelet_dir,
            pod_resources=self.node.pod_resources,
            state_dir=self.node.state_dir,
            run_dir=self.node.run_dir,
            container_logs=self.node.container_logs,
            policy=self.node.policy,
            intervals=INTERVALS,
        )
        hardware, stop = RemoteHardware(self.node.hardware_socket), asyncio.Event()
        hardware.start()
        agent = asyncio.create_task(run(options, hardware, stop=stop, status=self.status))
        try:
            await self.until(self.is_settled)
            yield
        finally:
            stop.set()
            await agent
            await hardware.close()

    async def until(self, condition: object) -> None:
        async with asyncio.timeout(20):
            while not condition():  # type: ignore[operator]
                await asyncio.sleep(0.02)

    def is_settled(self) -> bool:
        report = self.status.report
        return report is not None and sum(row.healthy for row in report.resources) == 2 + 24 + 16 + 6

    # --- pods ---

    def free_shares(self) -> list[tuple[ResourceName, ShareId, GpuUuid, int]]:
        assert self.status.report is not None
        taken = {pod.share for pod in self.pods.values()}
        return [
            (offer.resource, share, gpu.uuid, gpu.index)
            for gpu in self.status.report.gpus
            for offer in gpu.offer
            for share in offer.share_ids
            if share not in taken
        ]

    def come(self, number: int, processes: int) -> None:
        """A pod on a share that is free, with processes under load."""
        resource, share, gpu, index = self.random.choice(self.free_shares())
        holder = Holder("team", f"pod-{number}", "main")
        migs = {mig.uuid: (mig.gi_id, mig.ci_id) for mig in self.state.gpus[index].mig_devices}
        part = next((ids for uuid, ids in migs.items() if uuid == device_of(share)), (None, None))
        pod = Planted(
            holder,
            ContainerId(f"{number:064x}"),
            resource,
            share,
            gpu,
            index,
            part,
            self.clock.now_s,
            len(self.sampled),
        )
        log = f"{holder.pod}_{holder.namespace}_{holder.container}-{pod.container}.log"
        (self.node.container_logs / log).touch()
        for _ in range(processes):
            pid = next(self._pids)
            low = self.random.randrange(1, 300) * MIB
            load = Load(
                self.random.choice(list(LoadShape)),
                to_bytes=low + self.random.randrange(0, 300) * MIB,
                busy=self.random.random() / 10,
                every_s=self.random.choice([3.0, 7.0, 30.0]),
                noise=0.1,
                seed=pid,
            )
            pod.processes[pid] = low, load
            uid = PodUid(f"0b5a1e0c-6f1e-4d3c-9b42-{number:012d}")
            self.helper.inject(
                Occupy(
                    index,
                    f"work-{number}",
                    gi=part[0],
                    ci=part[1],
                    pid=pid,
                    memory_bytes=low,
                    container=pod.container,
                    pod=uid,
                    mps=4 <= index <= 5,
                    load=load,
                )
            )
        self.pods[holder] = pod
        self._tell_kubelet()

    def go(self, holder: Holder) -> None:
        """The processes end, then the kubelet forgets the pod."""
        pod = self.pods.pop(holder)
        self.helper.inject(Vacate(pod.gpu_index, f"work-{int(pod.container, 16)}"))
        self._tell_kubelet()

    def _tell_kubelet(self) -> None:
        self.kubelet.pod_resources = held(
            {
                f"{one.holder.namespace}/{one.holder.pod}": {
                    one.holder.container: {one.resource: [one.share]}
                }
                for one in self.pods.values()
            }
        )

    def ledger_agrees(self) -> bool:
        report = self.status.report
        found = {(one.id, one.holder) for one in report.entries} if report else set()
        return found == {(one.share, one.holder) for one in self.pods.values()}

    # --- what is expected ---

    async def scrape(self, accept: str = "") -> Scrape:
        """One scrape. Since the one before it, memory was sampled every second."""
        while self.sampled and self.clock.now_s - self.sampled[-1] >= 1.0:
            self.sampled.append(self.sampled[-1] + 1.0)
        self.sampled.append(self.clock.now_s)
        text, content_type = await asyncio.to_thread(self.write, accept)
        assert content_type.startswith("application/openmetrics-text" if accept else "text/plain")
        return Scrape(text.decode(), openmetrics=bool(accept))

    def check_use(self, found: Scrape) -> None:
        """Every figure of a container is what was planted, and everything else of every device too."""
        now_s = self.clock.now_s
        used = found.by("partage_container_memory_used_bytes", "namespace", "pod", "container", "device")
        planted = {(*_names(pod), pod.device): pod.used_bytes(now_s) for pod in self.pods.values()}
        # A pod whose end the kubelet has not told yet still holds its share, and uses nothing of it.
        assert {who: number for who, number in used.items() if number or who in planted} == planted
        peaks = found.by("partage_container_memory_peak_bytes", "namespace", "pod", "container", "device")
        for pod in self.pods.values():
            assert peaks[(*_names(pod), pod.device)] == pod.peak_bytes(self.sampled)
        processes = found.by("partage_container_processes", "pod")
        assert {who: number for who, number in processes.items() if number} == {
            (pod.holder.pod,): len(pod.processes) for pod in self.pods.values()
        }
        # What is used on a device is the sum of what is attributed and what is not.
        rest = found.by("partage_unattributed_memory_bytes", "device", "reason")
        total = found.by("partage_gpu_memory_used_bytes", "gpu") | found.by(
            "partage_mig_memory_used_bytes", "device"
        )
        migs = found.by("partage_mig_memory_used_bytes", "gpu")
        for (device,), used_bytes in total.items():
            if (device,) not in migs:
                attributed = sum(value for (*_, on), value in used.items() if on == device)
                assert used_bytes == attributed + sum(
                    value for (on, _), value in rest.items() if on == device
                )

    def check_shares(self, found: Scrape) -> None:
        """Labels agree with the ledger."""
        assert self.status.report is not None
        holders = found.by("partage_share_holder", "share", "namespace", "pod", "container")
        assert holders == {(pod.share, *_names(pod)): 1.0 for pod in self.pods.values()}
        sizes = {
            share: offer
            for gpu in self.status.report.gpus
            for offer in gpu.offer
            for share in offer.share_ids
        }
        promised = found.by("partage_container_memory_share_bytes", "namespace", "pod", "container", "device")
        assert promised == {
            (*_names(pod), pod.device): sizes[pod.share].memory_bytes for pod in self.pods.values()
        }
        guarantees = found.by("partage_container_guarantee", "pod", "guarantee")
        assert guarantees == {
            (pod.holder.pod, str(sizes[pod.share].guarantee)): 1.0 for pod in self.pods.values()
        }
        assert found.by("partage_container_ungranted") == {}


def _names(pod: Planted) -> tuple[str, str, str]:
    return pod.holder.namespace, pod.holder.pod, pod.holder.container


@pytest.fixture
async def stage(node: Place, kubelet: ScriptedKubelet) -> AsyncIterator[Stage]:
    """Eight GPUs under four strategies."""
    node.write_policy(POLICY)
    clock = Clock()
    machine = load_machine("8xh100-sxm5-80gb")
    helper = SimulatedHelper(node, machine)
    helper.hardware = SimulatedHardware(machine, clock=clock)
    helper.start()
    made = Stage(node, kubelet, helper, clock)
    try:
        async with made.running():
            yield made
    finally:
        await asyncio.to_thread(helper.close)


async def test_every_figure_is_what_was_planted_while_pods_come_and_go(stage: Stage) -> None:
    await stage.scrape()  # sampling begins with the first scrape
    numbers = iter(range(1, 1000))
    while sum(len(pod.processes) for pod in stage.pods.values()) < PROCESSES:
        stage.come(next(numbers), 3)
    assert len(stage.pods) >= PROCESSES // 3
    host = Occupy(2, "daemon", pid=1, memory_bytes=77 * MIB)
    server = Occupy(2, SERVER_PROGRAM, pid=2, memory_bytes=33 * MIB)
    unnamed = Occupy(3, "stray", pid=3, memory_bytes=11 * MIB, container=ContainerId("9" * 64))
    stage.helper.inject(host, server, unnamed)
    for turn in range(8):
        stage.clock.now_s += stage.random.choice([0.0, 1.0, 2.5, 20.0])
        found = await stage.scrape(OPENMETRICS if turn % 2 else "")
        stage.check_use(found)
        rest = found.by("partage_unattributed_memory_bytes", "gpu", "reason")
        gpus = [stage.state.gpus[index].uuid for index in range(8)]
        assert rest[gpus[2], OtherMemory.HOST] == 77 * MIB
        assert rest[gpus[2], OtherMemory.MPS_SERVER] == 33 * MIB
        assert rest[gpus[3], OtherMemory.UNNAMED] == 11 * MIB
        assert all(value == 0 for (_, reason), value in rest.items() if reason == OtherMemory.NO_PROCESS)
        for holder in stage.random.sample(sorted(stage.pods), 6):
            stage.go(holder)
        for _ in range(6):
            stage.come(next(numbers), stage.random.randrange(1, 6))
    await stage.until(stage.ledger_agrees)
    found = await stage.scrape()
    stage.check_use(found)
    stage.check_shares(found)


async def test_a_scrape_every_minute_misses_no_spike_and_no_short_life(stage: Stage) -> None:
    await stage.scrape()
    stage.come(1, 0)
    await stage.until(stage.ledger_agrees)
    (pod,) = stage.pods.values()
    spikes = Load(LoadShape.SPIKES, to_bytes=9 * GIB, every_s=60.0, for_s=2.0)
    work = Occupy(
        pod.gpu_index, "work-1", gi=pod.part[0], ci=pod.part[1], pid=5, memory_bytes=GIB, load=spikes
    )
    stage.helper.inject(replace(work, container=pod.container, pod=PodUid("0" * 32)))
    stage.clock.now_s += 60.5  # the spike was in between
    found = await stage.scrape()
    assert found.by("partage_container_memory_used_bytes", "pod") == {("pod-1",): GIB}
    assert found.by("partage_container_memory_peak_bytes", "pod") == {("pod-1",): 9 * GIB}
    stage.go(pod.holder)
    await stage.until(stage.ledger_agrees)
    stage.clock.now_s += 60
    found = await stage.scrape()
    assert found.by("partage_container_memory_used_bytes", "pod") == {}
    assert found.by("partage_container_memory_peak_bytes", "pod") == {("pod-1",): 9 * GIB}
    stage.clock.now_s += 400
    assert (await stage.scrape()).by("partage_container_memory_peak_bytes", "pod") == {}


async def test_hidden_processes_make_figures_absent_and_never_zero(stage: Stage) -> None:
    stage.come(1, 2)
    await stage.until(stage.ledger_agrees)
    stage.helper.inject(HideProcesses())
    found = await stage.scrape()
    assert found.by("partage_container_memory_used_bytes") == {}
    assert found.by("partage_container_processes") == {}
    assert found.by("partage_usage_processes_hidden") == {(): 1.0}
    assert len(found.by("partage_container_memory_share_bytes")) == 1  # what was promised is known


async def test_dashboards_of_dcgm_exporter_find_their_series(stage: Stage) -> None:
    for number in range(1, 20):
        stage.come(number, 2)
    stage.helper.inject(RaiseXid(1, 43))
    await stage.until(stage.ledger_agrees)
    await stage.until(lambda: stage.status.counts.last_xids)
    found = await stage.scrape()
    gpu = stage.state.gpus[1]
    # Panels of the dashboard 12239 select by instance and gpu.
    for name in ("GPU_TEMP", "POWER_USAGE", "SM_CLOCK", "FB_USED", "MEM_CLOCK", "TOTAL_ENERGY_CONSUMPTION"):
        assert found.by(f"DCGM_FI_DEV_{name}", "UUID", gpu="1", modelName=gpu.product, Hostname="here")
    xids = found.by("DCGM_FI_DEV_XID_ERRORS", "gpu", "err_code", "err_msg")
    assert xids["1", "43", "XID 43"] == 43
    assert xids["2", "0", "No Error"] == 0
    whole = found.by("partage_gpu_memory_used_bytes", "index")
    for index in ("2", "4"):
        old = found.by("DCGM_FI_DEV_FB_USED", "pod", gpu=index)
        new = found.by("DCGM_FI_DEV_FB_USED_BYTES", "pod", gpu=index)
        assert old[("",)] * MIB == pytest.approx(whole[(index,)])
        assert {pod: value * MIB for pod, value in old.items()} == pytest.approx(new)
        containers = [value for (pod,), value in new.items() if pod]
        assert sum(containers) == whole[(index,)]
    # One container per MIG device: its names are on the row of the instance, and there is no other row.
    in_mig = [pod for pod in stage.pods.values() if pod.gpu_index >= 6]
    rows = found.by("DCGM_FI_DEV_FB_USED_BYTES", "gpu", "GPU_I_ID", "pod")
    for pod in in_mig:
        same = [
            value
            for (gpu, gi, _), value in rows.items()
            if (gpu, gi) == (str(pod.gpu_index), str(pod.part[0]))
        ]
        assert same == [pod.used_bytes(stage.clock.now_s)]
    assert all(value <= 1 for value in found.by("DCGM_FI_DEV_GPU_UTIL_RATIO", "gpu", "pod").values())
    assert not [gpu for (gpu, _) in found.by("DCGM_FI_DEV_GPU_UTIL", "gpu", "pod") if gpu in "67"]


async def test_without_the_switch_no_name_of_dcgm_is_served(stage: Stage) -> None:
    stage.write = metrics_writer(stage.status, INTERVALS, None)
    found = await stage.scrape()
    assert not [name for name in found.samples if name.startswith("DCGM")]


async def test_the_metrics_that_are_defined_are_those_that_are_made(stage: Stage) -> None:
    await stage.until(lambda: stage.status.watch_observation() is not None)
    stage.status.claims = lambda: ClaimFigures({"prepared": 1}, {"held": 2}, 3, 0.5, 1)
    collector = ReportCollector(stage.status, INTERVALS, lambda: HelperState(up=True))
    made = await asyncio.to_thread(lambda: {one.name.removeprefix("partage_") for one in collector.collect()})
    # No label asks for a layout here, and no agent of a compute node knows jobs.
    assert METRICS.keys() - made == {"mig_config_state", "job_info", "job_memory_limit_bytes"}
    assert made <= METRICS.keys()
