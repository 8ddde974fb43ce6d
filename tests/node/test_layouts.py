"""The laws of a node whose MIG layouts the agent makes itself, in any interleaving.

Steps take their time, and one that has begun goes on when its agent is killed. Administrators change layouts
by hand meanwhile, processes that are no pods are in the way, and the driver refuses, hangs or loses answers.
"""

from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from partage.errors import DriverUnavailable, HardwareTimeout, InsufficientResources
from partage.model.layout import LayoutItem
from partage.sim.kubelet.behaviour import Behaviour
from partage.sim.node.faults import (
    DriverGone,
    DriverLoaded,
    FailCall,
    Fault,
    GpuReturns,
    HangCall,
    HealCall,
    LoseGpu,
    Occupy,
    RaiseXid,
    ResetGpu,
    SetCondition,
    SetMig,
    Vacate,
)
from partage.sim.node.files.load import load_machine
from tests.agent.harness import Place
from tests.node.layouts import DISABLED, LayoutTruth, LayoutWorld, made
from tests.node.loops import SimulatedTimeLoop
from tests.node.sharing import EXCLUSIVE, HALVES, Share, Sharing
from tests.node.test_interleavings import EXAMPLES, GPUS, HOW, PAUSES_S, TIMES, Node

ON_H100 = (
    made("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"),
    made("3g.40gb", "3g.40gb"),
    made("2g.20gb", "2g.20gb", "2g.20gb"),
    made("3g.40gb", "1g.10gb", "1g.10gb", "1g.10gb"),
    made("1c.3g.40gb", "2c.3g.40gb", "1g.10gb"),
    made("1c.3g.40gb", "1c.3g.40gb", "1c.3g.40gb"),
    made("2g.20gb", "1g.10gb", "1g.10gb", replicas=2),
    made("3g.40gb", "2g.20gb", replicas=2),
    DISABLED,
    EXCLUSIVE,
    HALVES,
)
ON_A100 = (
    made("3g.20gb", "2g.10gb", "1g.5gb"),
    made("3g.20gb", "3g.20gb"),
    made("2g.10gb", "1g.5gb", "1g.5gb"),
    made("2g.10gb", "1g.5gb", replicas=2),
    DISABLED,
    EXCLUSIVE,
    HALVES,
)
GPU_NUMBERS = st.integers(0, GPUS - 1)
CALLS = st.sampled_from(["observe", "conditions", "events", "perform", "perform", "uses"])
ERRORS = st.sampled_from([HardwareTimeout("no answer"), DriverUnavailable("the helper is gone")])
REFUSALS = st.sampled_from(
    [InsufficientResources("no room"), HardwareTimeout("no answer"), DriverUnavailable("gone")]
)
FAULTS: st.SearchStrategy[Fault] = st.one_of(
    st.builds(FailCall, st.just("perform"), REFUSALS, TIMES, st.booleans()),
    st.builds(FailCall, CALLS, ERRORS, TIMES),
    st.builds(HangCall, CALLS, st.sampled_from([0.5, 5.0, None]), TIMES),
    st.builds(HealCall, CALLS),
    st.builds(Occupy, GPU_NUMBERS, pid=st.just(4711)),
    st.builds(Vacate, GPU_NUMBERS),
    st.builds(LoseGpu, GPU_NUMBERS, nameless=st.booleans()),
    st.builds(GpuReturns, GPU_NUMBERS),
    st.builds(ResetGpu, GPU_NUMBERS),
    st.builds(RaiseXid, st.one_of(st.none(), GPU_NUMBERS), st.sampled_from([13, 48, 79, 94, 95, 119])),
    st.builds(SetCondition, GPU_NUMBERS, rows_pending=st.booleans(), fabric_ok=st.booleans()),
    st.just(DriverGone()),
    st.just(DriverLoaded()),
)
IN_THE_MIDDLE_S = st.floats(0.0, 6.0, allow_nan=False)
"""A layout begins about two seconds after its policy was written, where nobody is in the way."""


class LayoutNode(Node):
    """One node whose policies want layouts."""

    machine = "3xh100-sxm5-80gb"
    sharings: tuple[Sharing, ...] = ON_H100
    plans = st.tuples(*[st.sampled_from(ON_H100)] * GPUS)
    by_hand = st.sampled_from([None, "", "3g.40gb 2g.20gb", "1g.10gb 1g.10gb", "2g.20gb 3g.40gb"])
    world: LayoutWorld

    def _world(
        self, somewhere: Place, loop: SimulatedTimeLoop, behaviour: Behaviour, seed: int
    ) -> tuple[LayoutWorld, LayoutTruth]:
        world = LayoutWorld.of(somewhere, loop, load_machine(self.machine), behaviour, seed)
        return world, LayoutTruth(world)

    # --- layouts ---

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.4, 3.0]))
    def steps_take(self, seconds: float) -> None:
        """From now on."""
        self.world.note(f"steps take {seconds} s")
        self.world.slow.step_s = seconds

    @rule(data=st.data(), which=GPU_NUMBERS, then_s=PAUSES_S)
    def one_layout_changes(self, data: st.DataObject, which: int, then_s: float) -> None:
        self.world.write_policy(self._changed(data, which), single=self.world.single)
        self.do(self.world.passes(then_s))

    def _changed(self, data: st.DataObject, which: int) -> list[Sharing]:
        plan = list(self.world.plan)
        plan[which] = data.draw(st.sampled_from(self.sharings))
        return plan

    @precondition(lambda self: self.world.agent is not None)
    @rule(data=st.data(), after_s=IN_THE_MIDDLE_S, how=st.integers(0, 2), which=GPU_NUMBERS)
    def agent_ends_in_the_middle(self, data: st.DataObject, after_s: float, how: int, which: int) -> None:
        """Of a change; the next one finds the policy as it was, or another one."""
        self.world.write_policy(data.draw(self.plans), single=self.world.single)
        self.do(self.world.passes(after_s))
        if self.world.agent is None:  # the policy was wrong
            return
        self.do(self.world.stop_agent() if how == 1 else self.world.kill_agent())
        if how == 2:
            self.world.write_policy(self._changed(data, which), single=self.world.single)
        self.do(self._start_agent(0.0))

    @rule(data=st.data(), after_s=IN_THE_MIDDLE_S, fault=FAULTS)
    def fault_in_the_middle(self, data: st.DataObject, after_s: float, fault: Fault) -> None:
        self.world.write_policy(data.draw(self.plans), single=self.world.single)
        self.do(self.world.passes(after_s))
        self.do(self._happen(fault, 0.0))

    @rule(data=st.data(), after_s=IN_THE_MIDDLE_S, then_s=PAUSES_S)
    def policy_changes_in_the_middle(self, data: st.DataObject, after_s: float, then_s: float) -> None:
        for pause_s in (after_s, then_s):
            self.world.write_policy(data.draw(self.plans), single=self.world.single)
            self.do(self.world.passes(pause_s))

    @rule(gpu=GPU_NUMBERS, data=st.data(), then_s=PAUSES_S)
    def layout_is_made_by_hand(self, gpu: int, data: st.DataObject, then_s: float) -> None:
        text = data.draw(self.by_hand)
        items = None if text is None else tuple(LayoutItem.parse(item) for item in text.split())
        if gpu not in self.world.hardware.state.lost:
            self.do(self._happen(SetMig(gpu, items), then_s))

    @precondition(lambda self: self.world.agent and self.world.kubelet_runs and not self.world.troubles)
    @rule(data=st.data(), which=GPU_NUMBERS)
    def nobody_else_hears_of_it(self, data: st.DataObject, which: int) -> None:
        """While one GPU's layout changes, what the kubelet knows of the others stays as it is."""
        self.do(self.world.passes(12.0))
        if self.world.agent is not None and self.world.policy_is_good:
            self.do(self._change_one(self._changed(data, which), which))

    async def _change_one(self, plan: list[Sharing], which: int) -> None:
        await self.world.admitted()
        others = self._at_rest(which)
        changed = asyncio.create_task(self._until_changed(others))
        self.world.write_policy(plan, single=self.world.single)
        await self.world.passes(20.0)
        is_heard = changed.done()
        changed.cancel()
        await asyncio.gather(changed, return_exceptions=True)
        if is_heard:
            raise self._told(AssertionError(f"others than GPU {which} heard of it: {others}"))

    def _at_rest(self, which: int) -> dict[Share, bool]:
        """What is offered of the other GPUs that are as they are wanted."""
        world = self.world
        uuid, offered = world.hardware.state.gpus[which].uuid, world.offered()
        wanted = [shares for gpu, shares in world.wanted().items() if gpu != uuid]
        return {share: True for shares in wanted if all(map(offered.get, shares)) for share in shares}

    async def _until_changed(self, others: dict[Share, bool]) -> None:
        await self.world.kubelet.until(
            lambda: not others.items() <= self.world.offered().items(), limit_s=10_000.0
        )

    # --- faults ---

    async def _happen(self, fault: Fault, then_s: float) -> None:
        world = self.world
        world.unreachable |= isinstance(fault, FailCall | HangCall | DriverGone)
        gpu = getattr(fault, "gpu", None)
        if isinstance(fault, RaiseXid | LoseGpu | SetCondition):
            world.sick |= set(range(GPUS)) if gpu is None else {gpu}
        if not isinstance(fault, ResetGpu | SetMig) or not world.is_used(fault.gpu):
            await world.fault(fault)
        await world.passes(then_s)

    @rule(fault=FAULTS, then_s=PAUSES_S)
    def fault_happens(self, fault: Fault, then_s: float) -> None:
        self.do(self._happen(fault, then_s))

    async def _layout_is_made(self) -> None:
        """By the agent. GPUs that are ill with something that only a reset ends can be reset now."""
        for status in self.world.live():
            await self.world.end(status.pod)
        await self.world.reset_the_sick()


class ResetNode(LayoutNode):
    """The same on Ampere, where a change of MIG mode takes a reset."""

    machine = "3xa100-sxm4-40gb"
    sharings = ON_A100
    plans = st.tuples(*[st.sampled_from(ON_A100)] * GPUS)
    by_hand = st.sampled_from([None, "", "3g.20gb 2g.10gb", "1g.5gb 1g.5gb"])


def some(share: float) -> settings:
    """As many lives as that share of the other nodes': changes of layouts take many turns."""
    return settings(HOW, max_examples=max(5, round(EXAMPLES * share)))


TestLayoutNode = LayoutNode.TestCase
TestLayoutNode.settings = some(0.6)
TestResetNode = ResetNode.TestCase
TestResetNode.settings = some(0.4)
