"""What ``simulate --trace`` decides is what a running agent decides: each pod gets the same shares, the same
pods are refused with the same words, and those that wait find no room on the live node either.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.lab.stories.model import PolicyText, Story
from partage.lab.stories.stage import StoryStage
from partage.model.ids import ResourceName, ShareId, device_of
from partage.model.pod import Container, Pod
from partage.model.share import AllocationRefused
from partage.plan.offer.desired import resolve
from partage.sim.kubelet.pods import PodPhase
from partage.sim.node.machine_names import parse_machine
from partage.units import GIB
from partage.values import Frozen
from partage.whatif.decide.demand import NodeOffer, demand_on
from partage.whatif.decide.node_devices import Holding, NodeAllocator
from partage.whatif.decide.play import Ended, Event, Refused, Started, play
from partage.whatif.decide.pods import Fleet, NodeKind, PodWants, TracePod

EXCLUSIVE = "gpus: [{select: all, exclusive: {}}]"
SLICED = "gpus: [{select: {index: [0, 1]}, time-slicing: {replicas: 4}}, {select: rest, exclusive: {}}]"
PACKED = (
    "gpus: [{select: all, time-slicing: {replicas: 3}}]\n"
    "resources: {allocation: packed, fail-requests-greater-than-one: false}"
)
SEVERAL = "gpus: [{select: all, mps: {replicas: 4}}]\nresources: {fail-requests-greater-than-one: false}"
UNITS = "gpus: [{select: all, time-slicing: {unit: 4Gi}}]"
SPREAD = "gpus: [{select: all, time-slicing: {unit: 4Gi, placement: spread}}]"
LAYOUT = (
    "gpus: [{select: {index: [0]}, mig: {layout: [3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb]}},"
    " {select: {index: [1]}, mig: {layout: [1g.10gb, 1g.10gb, 1g.10gb], time-slicing: {replicas: 2}}},"
    " {select: rest, exclusive: {}}]"
)
CASES = {
    "whole GPUs with links": ("8xv100-sxm2-32gb", EXCLUSIVE, (1, 2, 3, 4), (1000,), False),
    "slices beside whole GPUs": ("3xl4", SLICED, (1,), (200, 1000), False),
    "packed slices": ("3xl4", PACKED, (1, 2), (300,), False),
    "several shares of MPS": ("2xl4", SEVERAL, (1,), (200, 400, 700), True),
    "units": ("3xl4", UNITS, (1,), (200, 400, 500, 700), True),
    "units, spread": ("3xl4", SPREAD, (1,), (200, 400, 500, 700), True),
    "MIG": ("3xh100-sxm5-80gb", LAYOUT, (1,), (60, 120, 250, 400, 1000), False),
}


SHARED = [
    "time-slicing: {replicas: 2}", "time-slicing: {replicas: 3}, name: nvidia.com/gpu.slices",
    "mps: {replicas: 4}", "mps: {replicas: 2}, name: nvidia.com/gpu.mps",
]  # fmt: skip
UNITS_OF_MEMORY = [
    "time-slicing: {unit: 2Gi}",
    "mps: {unit: 3Gi, placement: spread}, name: nvidia.com/gpu-units",
]
NAMES = [
    ResourceName(f"{domain}/{name}")
    for domain, name in (
        ("nvidia.com", "gpu"), ("nvidia.com", "gpu.shared"), ("nvidia.com", "gpu.slices"),
        ("nvidia.com", "gpu.mps"), ("nvidia.com", "gpu-units"), ("aliyun.com", "gpu-mem"),
    )
]  # fmt: skip


def _trace(seed: int, gpus: tuple[int, ...], milli: tuple[int, ...]) -> list[TracePod]:
    draw = random.Random(seed)
    return [
        TracePod(
            f"pod-{number}",
            PodWants(gpus=draw.choice(gpus), gpu_milli=draw.choice(milli)),
            created_s=float(number * 100),
            lasts_s=float(draw.randrange(100, 1200) // 50 * 50 + 7),
        )
        for number in range(16)
    ]


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_live_agent_decides_the_same(case: str) -> None:
    name, text, gpus, milli, refuses = CASES[case]
    followed = await _compare(name, text, _trace(1, gpus, milli))
    assert followed.waits, "a trace in which nothing waits tests little"
    assert followed.refused == refuses


GIVEN = st.sampled_from(["exclusive: {}", *SHARED, *UNITS_OF_MEMORY])
POLICIES = st.builds(
    (
        "gpus: [{{select: {{index: [0]}}, {}}}, {{select: rest, {}}}]\n"
        "resources: {{allocation: {}, fail-requests-greater-than-one: {}}}"
    ).format,
    GIVEN,
    GIVEN,
    st.sampled_from(["packed", "distributed"]),
    st.sampled_from(["true", "false"]),
)
WANTS = st.one_of(
    st.builds(
        PodWants,
        gpus=st.sampled_from([1, 1, 1, 2]),
        gpu_milli=st.sampled_from([120, 250, 330, 480, 700, 1000]),
    ),
    st.builds(
        PodWants, gpus=st.just(1), gpu_memory_bytes=st.sampled_from([2, 5, 9, 17]).map(lambda gib: gib * GIB)
    ),
    st.sets(st.sampled_from(NAMES), min_size=1, max_size=2).flatmap(
        lambda names: st.builds(
            PodWants,
            requests=st.tuples(*(st.tuples(st.just(name), st.integers(1, 3)) for name in sorted(names))),
        )
    ),
)
TRACES = st.lists(st.tuples(WANTS, st.integers(0, 3), st.integers(1, 20)), min_size=4, max_size=14)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(["2xl4", "3xa10", "4xv100-sxm2-32gb"]), POLICIES, TRACES, st.integers(0, 9))
def test_on_any_node_a_live_agent_decides_the_same(
    machine: str, policy: str, trace: list[tuple[PodWants, int, int]], seed: int
) -> None:
    """Any two strategies side by side, any mix of pods, and devices listed in any order."""
    at_s, pods = 0.0, []
    for number, (wants, gap, lasts) in enumerate(trace):
        at_s += gap * 50.0
        pods.append(TracePod(f"pod-{number}", wants, at_s, lasts * 50.0 + 7))
    asyncio.run(_compare(machine, policy, pods, seed))


class _Followed(Frozen):
    """What happened on both: pods that had to wait, and whether any was refused."""

    waits: int
    refused: bool


async def _compare(name: str, text: str, pods: list[TracePod], seed: int = 3) -> _Followed:
    """Play the pods, and do what happened on a live node. seed: of the order in which its kubelet lists
    devices.
    """
    content = f"version: partage/v1\n{text}\n".encode()
    machine = parse_machine(name)
    desired = resolve(parse_policy(content, "policy.yaml").policy, machine.inventory, geometry_of)
    kind, offer = NodeKind(name, machine.inventory), NodeOffer(desired)
    played = play(pods, Fleet((kind,), (name,), (0,)), [desired])
    at_once = {
        event.pod
        for event in played.events
        if isinstance(event, Started) and event.at_s == pods[event.pod].created_s
    }
    waits = [
        _Waits(one.created_s, number)
        for number, one in enumerate(pods)
        if number not in at_once and number not in played.never
    ]
    # paths of sockets have 107 bytes at most
    with tempfile.TemporaryDirectory(prefix="partage-", dir="/tmp") as folder:
        story = Story(Path(folder), "trace", machine, PolicyText("policy.yaml", content), None, ())
        stage = StoryStage(story, Path(folder), seed, lambda _: None)
        live = _Live(stage, pods, kind, offer)
        try:
            await stage.open()
            await stage.rest()
            assert stage.kubelet.allocatable() == {one.name: len(one.ids) for one in offer.resources.values()}
            for event in sorted([*played.events, *waits], key=_order):
                await live.follow(event)
        finally:
            await stage.close()
    assert live.followed == len(played.events) + len(waits)
    return _Followed(len(waits), any(isinstance(event, Refused) for event in played.events))


class _Waits:
    """A pod that has been created found no room."""

    def __init__(self, at_s: float, pod: int) -> None:
        self.at_s = at_s
        self.pod = pod


def _order(event: Event | _Waits) -> tuple[float, int]:
    """As they happen; among the events of one moment the order stays, and then it is clear who waits."""
    return event.at_s, int(isinstance(event, _Waits))


class _Live:
    """The live node, and beside it the same devices as ``play`` has them."""

    def __init__(self, stage: StoryStage, pods: list[TracePod], kind: NodeKind, offer: NodeOffer) -> None:
        self.stage, self.pods, self.kind, self.offer = stage, pods, kind, offer
        self.devices = NodeAllocator(offer)
        self.followed = 0
        self._now_s = 0.0
        self._holdings: dict[int, Holding] = {}
        self._refused: set[PodWants] = set()

    async def follow(self, event: Event | _Waits) -> None:
        """Do on the live node what happened, and compare: what the pod gets, and what is free afterwards."""
        self.stage.clock.jump(event.at_s - self._now_s)
        self._now_s = event.at_s
        self.devices.look(event.at_s)
        await self._free_as_expected()
        self.followed += 1
        demand = demand_on(self.pods[event.pod].wants, self.kind, self.offer)
        assert isinstance(demand, tuple)
        containers = (Container("main", dict(demand)),)
        pod = Pod("default", f"pod-{event.pod}", containers)
        match event:
            case Ended():
                await self.stage.kubelet.end(pod)
                self.devices.release(self._holdings.pop(event.pod))
                self._refused.clear()
            case Started(holding=holding):
                status = await self.stage.admit(pod, may_wait=False)
                assert status.phase is PodPhase.RUNNING, status.message
                assert self._places(status.container("main").ids) == self._places(dict(holding))
                assert self.devices.allocate(demand, event.at_s) == holding
                self._holdings[event.pod] = holding
            case Refused(text=text):
                self._refused.add(self.pods[event.pod].wants)
                status = await self.stage.admit(
                    Pod("default", f"refused-{self.followed}", containers), may_wait=False
                )
                assert status.phase is PodPhase.FAILED
                assert text in status.message
                with pytest.raises(AllocationRefused):
                    self.devices.allocate(demand, event.at_s)
            case _Waits():
                no_room = any(count > self._free(name) for name, count in demand)
                # or one like it was refused, and nothing has ended since: this one would be, too
                assert no_room or self.pods[event.pod].wants in self._refused
        await self._free_as_expected()

    async def _free_as_expected(self) -> None:
        expected = {str(name): count for name, count in self.devices.free.items()}

        def free() -> dict[str, int]:
            return {name: self._free(name) for name in self.stage.kubelet.allocatable()}

        await self.stage.eventually(lambda: free() == expected)
        assert free() == expected

    def _free(self, resource: str) -> int:
        """What the scheduler takes to be free."""
        running = [status.pod for status in self.stage.kubelet.pods() if status.holds]
        used = sum(pod.totals.get(resource, 0) for pod in running)
        return self.stage.kubelet.allocatable()[resource] - used

    def _places(self, ids: object) -> object:
        """Where the shares are; the UUIDs of MIG devices are known only once they are made."""
        assert isinstance(ids, dict)
        return {name: sorted(self._place(one) for one in some) for name, some in ids.items()}

    def _place(self, share: ShareId) -> tuple[str, str]:
        device = device_of(share)
        planned = {one.device: one for some in self.offer.desired.offer.values() for one in some}
        report = self.stage.agent_status.report
        assert report is not None
        made = {one.device: one for some in report.offer.values() for one in some}
        row = planned.get(device) or made[device]
        if row.profile is not None:
            return str(row.gpu_index), row.profile
        return str(row.gpu_index), str(share)
