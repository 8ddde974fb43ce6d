"""Moments in which the agent could take a held share for free. Nothing is given twice in any of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from partage.edges.kubelet.endpoint import ResourceEndpoint
from partage.model.mps import DaemonPhase
from partage.model.pod import Container, Pod
from partage.plan.reconcile.node_plan import Phase
from partage.plan.report import GpuReport
from partage.sim.kubelet.behaviour import Behaviour
from partage.sim.kubelet.pods import PodPhase
from partage.sim.node.faults import Fault, HangCall, ResetGpu, SetDaemonPhase
from partage.sim.node.files.load import load_machine
from tests.agent.harness import place
from tests.edges.kubelet.shelf import Shelf, running
from tests.examples import some
from tests.node.layouts import DISABLED, Layout, LayoutTruth, LayoutWorld, made
from tests.node.loops import SimulatedTimeLoop
from tests.node.sharing import EXCLUSIVE, GPU, HALVES, SHARED, SHARINGS, THIRDS, Sharing
from tests.node.truth import Truth
from tests.node.world import World

MPS_HALVES = next(one for one in SHARINGS if one.name == "mps halves")
MPS_THIRDS = Sharing("mps thirds", "mps: {replicas: 3}", "mps", (SHARED,) * 3)
LARGE = "nvidia.com/mig-3g.40gb"
MEDIUM = "nvidia.com/mig-2g.20gb"
SPLIT = made("3g.40gb", "2g.20gb", "1g.10gb")
SPLIT_HALVES, SPLIT_THIRDS = (made("3g.40gb", "2g.20gb", replicas=count) for count in (2, 3))
LARGE_SHARED = f"{LARGE}.shared"
SMALLER = made("3g.40gb", "1g.10gb", "1g.10gb")
AN_HOUR_S = 3600.0
FOUR_MINUTES_S = 240.0
"""Longer than a share is held that nobody names: two minutes."""


def pod(name: str, resource: str) -> Pod:
    return Pod("default", name, (Container("main", {resource: 1}),))


class Node:
    """A node with one GPU, that has had a policy for a while."""

    def __init__(self, world: World, truth: Truth) -> None:
        self.world, self.truth = world, truth

    async def lives(self, seconds: float, step_s: float = 2.0) -> None:
        """Time passes; the laws hold all the time."""
        step_s = min(seconds, step_s if seconds < 60 else 60.0)
        for _ in range(round(seconds / step_s)):
            await self.world.passes(step_s)
            self.truth.check()

    async def holds(self, name: str, resource: str) -> Pod:
        """A pod that runs and has been seen."""
        one = pod(name, resource)
        await self.world.admit(one, bound=False, patience_s=5.0)
        assert self.running(one)
        await self.lives(12.0)
        return one

    def running(self, one: Pod) -> bool:
        return any(status.pod == one and status.phase is PodPhase.RUNNING for status in self.world.live())

    async def restarts_kubelet(self, *, knows_pods: bool) -> None:
        await self.world.stop_kubelet()
        self.world.behave(knows_pods=knows_pods)
        await self.world.start_kubelet()

    def gpu(self) -> GpuReport:
        assert self.world.agent is not None
        assert self.world.agent.status.report is not None
        (gpu,) = self.world.agent.status.report.gpus
        return gpu


def play(
    policy: Sharing,
    life: Callable[[Node], Coroutine[Any, Any, None]],
    behaviour: Behaviour | None = None,
    *,
    reports: bool = False,
) -> None:
    async def whole(node: Node) -> None:
        node.world.write_policy([policy])
        await node.world.start_kubelet()
        node.world.start_agent()
        await node.truth.settles()
        await life(node)
        await node.truth.comes_to_rest()

    mig = isinstance(policy, Layout)
    kind, machine = (LayoutWorld, "1xh100-sxm5-80gb") if mig else (World, "1xl40s")
    with place() as somewhere, asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedTimeLoop)
        world = kind.of(somewhere, loop, load_machine(machine), behaviour or Behaviour(), 0)
        world.reports = reports
        truth = LayoutTruth(world) if isinstance(world, LayoutWorld) else Truth(world)
        try:
            runner.run(whole(Node(world, truth)))
        finally:
            runner.run(world.close())


# --- a kubelet that has just started ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "away_s"),
    [
        ("stays", 6.0),
        ("restarts too", 6.0),
        ("restarts later", 6.0),
        ("restarts later", FOUR_MINUTES_S),
        pytest.param("restarts later", AN_HOUR_S, marks=pytest.mark.real),
        # An hour takes 8 s: the others are part of make soak.
        *([("stays", AN_HOUR_S), ("restarts too", AN_HOUR_S)] if "PARTAGE_EXAMPLES" in os.environ else []),
    ],
)
@pytest.mark.parametrize(
    ("before", "resource", "after"),
    [
        (EXCLUSIVE, GPU, HALVES),
        (EXCLUSIVE, GPU, MPS_HALVES),
        (MPS_HALVES, SHARED, HALVES),
        (SPLIT, LARGE, DISABLED),
    ],
    ids=["time-slicing", "MPS", "MPS to time-slicing", "MIG"],
)
def test_a_kubelet_that_does_not_know_its_pods_yet_frees_nothing(
    before: Sharing, resource: str, after: Sharing, agent: str, away_s: float
) -> None:
    """The API server is away while the kubelet starts: PodResources answers, and names nothing."""

    async def life(node: Node) -> None:
        train = await node.holds("train", resource)
        node.world.write_policy([after])
        await node.lives(6.0)
        if agent == "restarts too":
            await node.world.kill_agent()
        await node.restarts_kubelet(knows_pods=False)
        if agent == "restarts too":
            node.world.start_agent()
        await node.lives(6.0)
        if agent == "restarts later":
            await node.world.stop_agent()
            node.world.start_agent()
        await node.lives(away_s)
        assert node.gpu().waits
        assert "checkpoint has holds" in node.gpu().plan.reason  # type: ignore[union-attr]
        node.world.behave(knows_pods=True)
        await node.lives(30.0)
        assert node.gpu().waits
        assert node.running(train)
        await node.world.end(train)
        await node.truth.settles()

    play(before, life)


def test_the_end_of_a_pod_that_the_kubelet_never_named_since_its_start_is_noticed() -> None:
    async def life(node: Node) -> None:
        train = await node.holds("train", GPU)
        node.world.write_policy([HALVES])
        await node.lives(6.0)
        await node.restarts_kubelet(knows_pods=False)
        await node.lives(6.0)
        await node.world.end(train)
        await node.lives(60.0)
        assert node.gpu().waits, "the kubelet cannot know it yet"
        node.world.behave(knows_pods=True)
        await node.lives(60.0)
        assert not node.gpu().waits

    play(EXCLUSIVE, life)


def test_other_shares_are_given_while_a_gpu_waits_for_proof() -> None:
    async def life(node: Node) -> None:
        await node.holds("train", SHARED)
        await node.restarts_kubelet(knows_pods=False)
        await node.lives(6.0)
        other = await node.holds("other", SHARED)
        assert node.running(other)
        third = pod("third", SHARED)
        await node.world.admit(third, bound=True, patience_s=5.0)
        assert not node.running(third)
        await node.world.forget_ended()
        node.world.behave(knows_pods=True)

    play(HALVES, life)


# --- a lost state, a slow node, a slow disk ---------------------------------------------------------


@pytest.mark.parametrize("slow_s", [0.0, 4.0, 6.0, 20.0])
@pytest.mark.parametrize("after", [HALVES, MPS_HALVES])
def test_a_gpu_that_is_seen_late_is_not_offered_before_its_holders_are_known(
    after: Sharing, slow_s: float
) -> None:
    """The state is lost, and the policy is another one."""

    async def life(node: Node) -> None:
        train = await node.holds("train", GPU)
        await node.world.kill_agent()
        node.world.lose_state()
        node.world.write_policy([after])
        if slow_s:
            await node.world.fault(HangCall("observe", slow_s, 1))
            node.world.troubles.clear()
        node.world.start_agent()
        await node.lives(40.0, step_s=0.1)
        assert node.gpu().waits
        await node.world.end(train)
        await node.truth.settles()

    play(EXCLUSIVE, life, Behaviour(list_delay_s=2.0))


@pytest.mark.parametrize(
    "fault",
    [ResetGpu(0), SetDaemonPhase(0, DaemonPhase.DEAD)],
    ids=["reset", "daemon dead"],
)
def test_shares_of_mps_are_recognised_when_the_state_and_the_daemon_are_lost_under_them(fault: Fault) -> None:
    """The daemon is started again under the pod, as it is with a state, and the other half is offered."""

    async def life(node: Node) -> None:
        train = await node.holds("train", SHARED)
        await node.world.kill_agent()
        node.world.lose_state()
        await node.world.fault(fault)
        node.world.start_agent()
        await node.lives(40.0)
        assert node.gpu().plan.phase is Phase.SETTLED  # type: ignore[union-attr]
        other = await node.holds("other", SHARED)
        assert node.running(other)
        assert node.running(train)
        await node.world.forget_ended()

    play(MPS_HALVES, life)


def test_shares_of_time_slicing_are_not_taken_for_shares_of_mps() -> None:
    """They have the same ids. The state is lost, and the policy is another one."""

    async def life(node: Node) -> None:
        train = await node.holds("train", SHARED)
        await node.world.kill_agent()
        node.world.lose_state()
        node.world.write_policy([MPS_HALVES])
        node.world.start_agent()
        await node.lives(40.0)
        assert node.gpu().waits
        await node.world.end(train)
        await node.truth.settles()

    play(HALVES, life)


@pytest.mark.parametrize("kubelet_restarts", [False, True])
def test_without_a_checkpoint_the_kubelet_has_to_say_who_holds_what(kubelet_restarts: bool) -> None:
    """The state is lost, the file too, and PodResources answers too late: that is no "nobody"."""

    async def life(node: Node) -> None:
        train = await node.holds("train", GPU)
        await node.world.kill_agent()
        await node.world.passes(1.0)
        node.world.lose_state()
        node.world.lose_checkpoint()
        node.world.write_policy([HALVES])
        node.world.behave(list_delay_s=6.0)
        node.world.start_agent()
        await node.lives(60.0)
        assert node.gpu().plan.phase is Phase.UNKNOWN  # type: ignore[union-attr]
        if kubelet_restarts:
            await node.restarts_kubelet(knows_pods=True)
            await node.lives(10.0)
        node.world.behave(list_delay_s=0.0)
        await node.lives(60.0)
        assert node.gpu().waits
        await node.world.end(train)
        await node.truth.settles()

    play(EXCLUSIVE, life)


def test_a_node_whose_kubelet_never_had_a_plugin_is_served_once_the_kubelet_answers() -> None:
    async def life(node: Node) -> None:
        await node.world.kill_agent()
        await node.world.passes(1.0)
        node.world.lose_state()
        node.world.lose_checkpoint()
        node.world.start_agent()
        await node.lives(20.0)
        assert not node.gpu().waits

    play(HALVES, life)


@pytest.mark.parametrize("witness", ["report", "none"])
@pytest.mark.parametrize(
    ("before", "after", "resource"),
    [(HALVES, THIRDS, SHARED), (MPS_HALVES, MPS_THIRDS, SHARED), (SPLIT_HALVES, SPLIT_THIRDS, LARGE_SHARED)],
    ids=["time-slicing", "MPS", "MIG"],
)
def test_ids_that_fit_the_new_offer_are_not_taken_for_shares_of_it(
    before: Sharing, after: Sharing, resource: str, witness: str
) -> None:
    """The state is lost under half a GPU, and the policy says thirds: both have an id that ends with ::0."""

    async def life(node: Node) -> None:
        train = await node.holds("train", resource)
        await node.world.kill_agent()
        node.world.lose_state()
        if witness == "none":
            (node.world.place.run_dir / "report.json").unlink()
        node.world.write_policy([after])
        node.world.start_agent()
        await node.lives(40.0)
        assert node.gpu().waits
        assert node.running(train)
        await node.world.end(train)
        await node.truth.settles()

    play(before, life, reports=True)


@pytest.mark.parametrize("witness", ["report", "kubelet"])
@pytest.mark.parametrize("policy", [HALVES, MPS_HALVES], ids=["time-slicing", "MPS"])
def test_a_lost_state_costs_nothing_while_somebody_remembers_it(policy: Sharing, witness: str) -> None:
    """The report of the agent before, or the last list that the kubelet was sent."""

    async def life(node: Node) -> None:
        train = await node.holds("train", SHARED)
        await node.world.kill_agent()
        node.world.lose_state()
        if witness == "kubelet":
            (node.world.place.run_dir / "report.json").unlink()
        else:
            node.world.lose_checkpoint()
        node.world.start_agent()
        await node.lives(20.0)
        assert not node.gpu().waits
        other = await node.holds("other", SHARED)
        assert node.running(other)
        assert node.running(train)

    play(policy, life, reports=True)


def test_a_device_that_is_allocated_while_the_disk_is_slow_is_not_destroyed() -> None:
    """Its withdrawal has been decided, and is not published before the state is on disk; the kubelet has
    chosen the device before that, and asks for it shortly after."""

    async def life(node: Node) -> None:
        for number in some(range(30), 0):  # the list is sent 1.5 to 4 seconds after the policy was written
            recovery = asyncio.create_task(is_slow_until_the_list_is_sent(node))
            node.world.write_policy([SMALLER])
            await asyncio.sleep(1.1 + 0.1 * number)
            late = pod(f"late-{number}", MEDIUM)
            await node.world.admit(late, bound=False, patience_s=0.0)
            await node.lives(8.0)
            await node.world.admitted()
            refusals = [
                status.message for status in node.world.kubelet.pods() if "unknown device" in status.message
            ]
            assert not refusals
            if node.running(late):
                await node.world.end(late)
            await node.world.forget_ended()
            await recovery
            node.world.write_policy([SPLIT])
            await node.truth.settles()

    async def is_slow_until_the_list_is_sent(node: Node) -> None:
        node.world.loop.thread_s = 1.5  # type: ignore[attr-defined]
        await node.world.kubelet.until(lambda: not node.world.kubelet.allocatable().get(MEDIUM), 60.0)
        node.world.loop.thread_s = 0.0  # type: ignore[attr-defined]

    play(SPLIT, life, Behaviour(allocate_delay_s=0.4))


# --- holds that exclude each other ------------------------------------------------------------------


def test_a_second_plugin_that_gives_the_whole_gpu_is_noticed() -> None:
    """The shares that are still free are withdrawn until one of the two has ended."""

    async def life(node: Node) -> None:
        world = node.world
        await node.holds("ours", SHARED)
        uuid = node.gpu().uuid
        other = ResourceEndpoint(Shelf(uuid, resource="example.com/gpu"), world.place.kubelet_dir)
        async with running(other):
            await conflict(node, uuid)
        await world.forget_ended()

    async def conflict(node: Node, uuid: str) -> None:
        world = node.world
        await asyncio.sleep(1.0)
        whole = pod("whole", "example.com/gpu")
        await world.admit(whole, bound=False, patience_s=5.0)
        assert node.running(whole)
        await world.passes(40.0)
        assert f"example.com/gpu {uuid} by default/whole" in node.gpu().plan.conflict  # type: ignore[union-attr]
        third = pod("third", SHARED)
        await world.admit(third, bound=True, patience_s=5.0)
        assert not node.running(third)
        await world.end(whole)
        await world.passes(40.0)
        assert not node.gpu().plan.conflict  # type: ignore[union-attr]

    play(HALVES, life)
