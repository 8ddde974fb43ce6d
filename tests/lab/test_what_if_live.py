"""What ``simulate --trace`` decides is what a running agent decides: each pod gets the same shares, the same
pods are refused with the same words, and those that wait find no room on the live node either.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.lab.stories.model import PolicyText, Story
from partage.lab.stories.stage import StoryStage
from partage.model.allocation import AllocationRefused
from partage.model.ids import ShareId, device_of
from partage.plan.offer.desired import resolve
from partage.plan.whatif.demand import demand_on
from partage.plan.whatif.node_devices import Holding, NodeAllocator
from partage.plan.whatif.node_offer import NodeOffer
from partage.plan.whatif.play import Ended, Event, Refused, Started, play
from partage.plan.whatif.pods import Fleet, NodeKind, PodWants, TracePod
from partage.sim.kubelet.pod import Container, Pod, PodPhase
from partage.sim.node.machine_names import parse_machine

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


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Paths of sockets have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="partage-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_live_agent_decides_the_same(case: str, short_folder: Path) -> None:
    name, text, gpus, milli, refuses = CASES[case]
    content = f"version: partage/v1\n{text}\n".encode()
    machine = parse_machine(name)
    desired = resolve(parse_policy(content, "policy.yaml").policy, machine.inventory, geometry_of)
    kind, offer = NodeKind(name, machine.inventory), NodeOffer(desired)
    pods = _trace(1, gpus, milli)
    played = play(pods, Fleet((kind,), (name,), (0,)), [desired])
    at_once = {
        event.pod
        for event in played.events
        if isinstance(event, Started) and event.at_s == pods[event.pod].created_s
    }
    waits = [_Waits(one.created_s, number) for number, one in enumerate(pods) if number not in at_once]
    assert waits, "a trace in which nothing waits tests little"
    assert any(isinstance(event, Refused) for event in played.events) == refuses

    story = Story(short_folder, case, machine, PolicyText("policy.yaml", content), None, ())
    stage = StoryStage(story, short_folder, 3, lambda _: None)
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
        used = sum(pod.requests().get(resource, 0) for pod in running)
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
