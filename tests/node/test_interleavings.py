"""Any interleaving of pods, restarts, kills, reloads and faults leaves the node true to its laws.

The agent, the kubelet and the hardware live in one loop whose time is simulated: sockets are real, an hour
is not. ``PARTAGE_EXAMPLES`` says how many runs (``make soak``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from partage.errors import DriverUnavailable, HardwareTimeout
from partage.model.ids import ContainerId
from partage.model.layout import LayoutItem
from partage.model.mps import DaemonPhase
from partage.model.pod import Container, Pod
from partage.sim.kubelet.behaviour import Behaviour, PodResourcesMode
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
    SetDaemonPhase,
    SetMig,
    Vacate,
)
from partage.sim.node.files.load import load_machine
from tests.agent.harness import Place, place
from tests.examples import examples
from tests.node.loops import SimulatedTimeLoop
from tests.node.sharing import MIG_SHARINGS, SHARINGS, WRONG_POLICIES, Sharing
from tests.node.truth import Truth
from tests.node.world import World

EXAMPLES = int(os.environ.get("PARTAGE_EXAMPLES", examples(25)))
STEPS = 15
GPUS = 3

WAIT_LIMIT_S = st.sampled_from([0.0, 0.001, 0.4, 5.0])
PAUSES_S = st.sampled_from([0.0, 0.02, 0.4, 1.2, 2.5, 12.0])
NUMBERS = st.integers(0, 9)
PLANS = st.tuples(*[st.sampled_from(SHARINGS)] * GPUS)
MIG_PLANS = st.tuples(*[st.sampled_from(MIG_SHARINGS)] * GPUS)
BEHAVIOURS = st.builds(
    Behaviour,
    lists_ended_pods=st.booleans(),
    unlisted_s=st.sampled_from([0.0, 0.5]),
    start_delay_s=st.sampled_from([0.0, 0.3, 5.0]),
    list_delay_s=st.sampled_from([0.0, 0.0, 0.4]),
    allocate_delay_s=st.sampled_from([0.0, 0.0, 0.4]),
    always_asks_preference=st.booleans(),
    keeps_by_path=st.booleans(),
)
CALLS = st.sampled_from(["observe", "conditions", "events", "perform", "daemons"])
ERRORS = st.sampled_from([HardwareTimeout("no answer"), DriverUnavailable("the helper is gone")])
TIMES = st.sampled_from([1, 3, None])
FAULTS: st.SearchStrategy[Fault] = st.one_of(
    st.builds(
        RaiseXid, st.integers(0, GPUS - 1), st.sampled_from([13, 31, 48, 63, 64, 79, 94, 95, 119, 999])
    ),
    st.builds(RaiseXid, st.none(), st.sampled_from([13, 48, 79, 999])),
    st.builds(LoseGpu, st.integers(0, GPUS - 1), nameless=st.booleans()),
    st.builds(GpuReturns, st.integers(0, GPUS - 1)),
    st.builds(ResetGpu, st.integers(0, GPUS - 1)),
    st.builds(SetCondition, st.integers(0, GPUS - 1), rows_pending=st.booleans(), fabric_ok=st.booleans()),
    st.builds(SetDaemonPhase, st.integers(0, GPUS - 1), st.just(DaemonPhase.DEAD)),
    st.builds(FailCall, CALLS, ERRORS, TIMES),
    st.builds(HangCall, CALLS, st.sampled_from([0.5, None]), TIMES),
    st.builds(HealCall, CALLS),
    st.just(DriverGone()),
    st.just(DriverLoaded()),
)
LAYOUTS = st.sampled_from([None, "", "3g.20gb 2g.10gb 1g.5gb", "1g.5gb 1g.5gb 1g.5gb", "2g.10gb 3g.20gb"])


def layout(text: str | None) -> tuple[LayoutItem, ...] | None:
    return None if text is None else tuple(LayoutItem.parse(item) for item in text.split())


class Node(RuleBasedStateMachine):
    """One node's life. Rules are what happens to it; invariants are checked after each."""

    machine = "3xl40s"
    plans = PLANS
    layout: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.runner = self.stack.enter_context(asyncio.Runner(loop_factory=SimulatedTimeLoop))
        self.names = iter(range(1000))
        self.is_lawful = True

    def do(self, what: Coroutine[Any, Any, None]) -> None:
        self.runner.run(what)

    @initialize(
        behaviour=BEHAVIOURS,
        seed=st.integers(0, 99),
        data=st.data(),
        single=st.booleans(),
        thread_s=st.sampled_from([0.0, 0.02, 0.5, 3.0]),
    )
    def begin(
        self, behaviour: Behaviour, seed: int, data: st.DataObject, single: bool, thread_s: float
    ) -> None:
        loop = cast("SimulatedTimeLoop", self.runner.get_loop())
        loop.thread_s = thread_s
        somewhere = self.stack.enter_context(place())
        self.world, self.truth = self._world(somewhere, loop, behaviour, seed)
        plan = data.draw(self.plans)
        self.do(self._begin(plan, single))

    def _world(
        self, somewhere: Place, loop: SimulatedTimeLoop, behaviour: Behaviour, seed: int
    ) -> tuple[World, Truth]:
        world = World.of(somewhere, loop, load_machine(self.machine), behaviour, seed)
        return world, Truth(world)

    async def _begin(self, plan: tuple[Sharing, ...], single: bool) -> None:
        if self.layout is not None:
            await self.world.fault(SetMig(0, layout(self.layout)))
            self.world.troubles.clear()
        self.world.write_policy(plan, single=single)
        await self.world.start_kubelet()
        self.world.start_agent()
        await asyncio.sleep(3.0)

    # --- pods ---

    @precondition(lambda self: self.world.kubelet_runs)
    @rule(
        count=st.integers(1, 3),
        which=NUMBERS,
        main=st.integers(0, 2),
        init=st.integers(0, 2),
        sidecar=st.booleans(),
        bound=st.booleans(),
        patience_s=WAIT_LIMIT_S,
    )
    def pods_come(
        self, count: int, which: int, main: int, init: int, sidecar: bool, bound: bool, patience_s: float
    ) -> None:
        """With init containers or without, with nothing but them, for more than there is."""
        resource = self._resource(which)
        inits = (Container("init", {resource: init}, "sidecar" if sidecar else "init"),) if init else ()
        containers = (*inits, Container("main", {resource: main} if main else {}))
        for _ in range(count):
            pod = Pod("default", f"pod-{next(self.names)}", containers)
            self.do(self.world.admit(pod, bound=bound, patience_s=patience_s))

    @precondition(lambda self: self.world.kubelet_runs)
    @rule(count=st.integers(1, 3), which=NUMBERS, main=st.integers(1, 2), then_s=PAUSES_S)
    def pods_wait(self, count: int, which: int, main: int, then_s: float) -> None:
        """Each takes what it asks for in the moment in which it is free."""
        resource = self._resource(which)
        for _ in range(count):
            pod = Pod("default", f"pod-{next(self.names)}", (Container("main", {resource: main}),))
            self.do(self._wait(pod))
        self.do(self.world.passes(then_s))

    async def _wait(self, pod: Pod) -> None:
        self.world.wait(pod)

    def _resource(self, which: int) -> str:
        names = sorted(name for name, count in self.world.kubelet.allocatable().items() if count)
        return names[which % len(names)] if names else "nvidia.com/gpu"

    def _live(self, which: int) -> Pod | None:
        live = [status.pod for status in self.world.live()]
        return live[which % len(live)] if live else None

    @precondition(lambda self: self.world.kubelet_runs and self.world.live())
    @rule(which=NUMBERS, failed=st.booleans(), deleted=st.booleans(), then_s=PAUSES_S)
    def pod_ends(self, which: int, failed: bool, deleted: bool, then_s: float) -> None:
        self.do(self._end(self._live(which), failed, deleted, then_s))

    async def _end(self, pod: Pod | None, failed: bool, deleted: bool, then_s: float) -> None:
        assert pod is not None
        await self.world.end(pod, failed=failed)
        if deleted:
            await self.world.forget_ended()
        await self.world.passes(then_s)

    @precondition(lambda self: self.world.kubelet_runs and self.world.live())
    @rule(which=NUMBERS, times=st.integers(1, 3))
    def container_crashes(self, which: int, times: int) -> None:
        pod = self._live(which)
        if pod is not None and pod.key not in self.world.under_way():
            for _ in range(times):
                self.do(self.world.restart_container(pod, "main"))

    @precondition(lambda self: self.world.kubelet_runs and self.world.live())
    @rule(which=NUMBERS, lives_s=PAUSES_S, then_s=PAUSES_S)
    def pod_is_deleted_by_force(self, which: int, lives_s: float, then_s: float) -> None:
        """The kubelet forgets it at once; its processes run on for a while."""
        pod = self._live(which)
        if pod is not None and pod.key not in self.world.under_way():
            self.do(self._delete_by_force(pod, lives_s, then_s))

    async def _delete_by_force(self, pod: Pod, lives_s: float, then_s: float) -> None:
        world = self.world
        (uid,) = (status.uid for status in world.live() if status.pod == pod)
        gpus = {one.gpu for one in world.held() if one.pod == pod.key}
        there = [number for number, gpu in world.hardware.state.gpus.items() if gpu.uuid in gpus]
        for number in there:
            await world.hardware.inject(
                Occupy(number, pod.key, pid=77, container=ContainerId("c" * 64), pod=uid)
            )
        await world.delete_by_force(pod)
        await world.passes(lives_s)
        for left in [status for status in world.kubelet.left() if status.uid == uid]:
            world.kubelet.processes_end(left)
        for number in there:
            await world.hardware.inject(Vacate(number, pod.key))
        world.note(f"processes of {pod.key} end")
        await world.passes(then_s)

    @rule(seconds=st.sampled_from([0.01, 1.0, 80.0, 130.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.do(self.world.passes(seconds))

    # --- the agent ---

    @precondition(lambda self: self.world.agent is not None)
    @rule(hard=st.booleans())
    def agent_ends(self, hard: bool) -> None:
        self.do(self.world.kill_agent() if hard else self.world.stop_agent())

    @precondition(lambda self: self.world.agent is None)
    @rule(then_s=PAUSES_S)
    def agent_starts(self, then_s: float) -> None:
        self.do(self._start_agent(then_s))

    async def _start_agent(self, then_s: float) -> None:
        self.world.start_agent()
        await self.world.passes(then_s)

    @precondition(lambda self: self.world.agent is not None)
    @rule(data=st.data(), hard=st.booleans(), away_s=PAUSES_S, changed=st.booleans(), then_s=PAUSES_S)
    def agent_is_restarted(
        self, data: st.DataObject, hard: bool, away_s: float, changed: bool, then_s: float
    ) -> None:
        """With the same policy, or another one."""
        self.do(self.world.kill_agent() if hard else self.world.stop_agent())
        self.do(self.world.passes(away_s))
        if changed:
            self.world.write_policy(data.draw(self.plans), single=self.world.single)
        self.do(self._start_agent(then_s))

    @precondition(lambda self: self.world.agent is None and not self.world.live())
    @rule()
    def state_is_lost(self) -> None:
        self.world.lose_state()

    @precondition(lambda self: self.world.agent is None and self.world.live())
    @rule(data=st.data(), slow_s=st.sampled_from([0.0, 6.0, 20.0]), then_s=PAUSES_S)
    def state_is_lost_under_pods(self, data: st.DataObject, slow_s: float, then_s: float) -> None:
        """The policy is another one, and the node answers late; the ids that are held may fit both."""
        plan = data.draw(self.plans)
        if not self.world.admissions:
            self.world.lose_state()
            self.world.write_policy(plan, single=self.world.single)
            if slow_s:
                self.do(self.world.fault(HangCall("observe", slow_s, 1)))
            self.do(self._start_agent(then_s))

    # --- the policy ---

    @rule(data=st.data(), single=st.booleans(), then_s=PAUSES_S)
    def policy_changes(self, data: st.DataObject, single: bool, then_s: float) -> None:
        self.world.write_policy(data.draw(self.plans), single=single)
        self.do(self.world.passes(then_s))

    @rule(text=st.sampled_from(WRONG_POLICIES), then_s=PAUSES_S)
    def policy_is_spoilt(self, text: str, then_s: float) -> None:
        self.world.write_wrong_policy(text)
        self.do(self.world.passes(then_s))

    # --- the kubelet ---

    @precondition(lambda self: self.world.kubelet_runs)
    @rule(away_s=PAUSES_S, knows_pods=st.booleans(), then_s=PAUSES_S)
    def kubelet_is_restarted(self, away_s: float, knows_pods: bool, then_s: float) -> None:
        """With an API server that answers or not."""
        self.do(self._restart_kubelet(away_s, knows_pods, then_s))

    async def _restart_kubelet(self, away_s: float, knows_pods: bool, then_s: float) -> None:
        await self.world.stop_kubelet()
        await self.world.passes(away_s)
        self.world.behave(knows_pods=knows_pods)
        await self.world.start_kubelet()
        await self.world.passes(then_s)

    @precondition(lambda self: not self.world.kubelet.behaviour.knows_pods)
    @rule(then_s=PAUSES_S)
    def api_server_answers_again(self, then_s: float) -> None:
        self.world.behave(knows_pods=True)
        self.do(self.world.passes(then_s))

    @precondition(lambda self: self.world.kubelet_runs)
    @rule()
    def kubelet_stops(self) -> None:
        self.do(self.world.stop_kubelet())

    @precondition(lambda self: not self.world.kubelet_runs)
    @rule(then_s=PAUSES_S)
    def kubelet_starts(self, then_s: float) -> None:
        self.do(self._start_kubelet(then_s))

    async def _start_kubelet(self, then_s: float) -> None:
        await self.world.start_kubelet()
        await self.world.passes(then_s)

    @precondition(lambda self: self.world.kubelet_runs)
    @rule()
    def plugin_sockets_vanish(self) -> None:
        self.world.note("sockets wiped")
        self.world.kubelet.wipe()

    @precondition(lambda self: self.world.kubelet_runs)
    @rule(seconds=st.sampled_from([0.5, 3.0, 12.0, 80.0]), then_s=PAUSES_S)
    def kubelet_stands_still(self, seconds: float, then_s: float) -> None:
        """What arrives meanwhile is dealt with afterwards."""
        self.do(self._stand_still(seconds, then_s))

    async def _stand_still(self, seconds: float, then_s: float) -> None:
        self.world.note(f"kubelet stands still for {seconds} s")
        self.world.kubelet.stand_still()
        await asyncio.sleep(seconds)
        self.world.note("kubelet goes on")
        self.world.kubelet.go_on()
        await self.world.passes(then_s)

    @rule(answers=st.booleans(), serves=st.booleans(), then_s=PAUSES_S)
    def kubelet_is_moody(self, answers: bool, serves: bool, then_s: float) -> None:
        mode = PodResourcesMode.SERVES if serves else PodResourcesMode.REFUSES
        self.world.behave(answers_registration=answers, pod_resources=mode)
        self.do(self.world.passes(then_s))

    # --- the hardware ---

    @rule(fault=FAULTS, then_s=PAUSES_S)
    def fault_happens(self, fault: Fault, then_s: float) -> None:
        self.do(self._happen(fault, then_s))

    async def _happen(self, fault: Fault, then_s: float) -> None:
        if not isinstance(fault, ResetGpu) or not self.world.is_used(fault.gpu):
            await self.world.fault(fault)
        await self.world.passes(then_s)

    @rule()
    def node_reboots(self) -> None:
        self.do(self.world.reboot())

    # --- two things at once ---

    @precondition(lambda self: self.world.kubelet_runs and self.world.agent is not None)
    @rule(which=NUMBERS, count=st.integers(1, 2), rounds=st.integers(0, 40), other=st.integers(0, 3))
    def pod_comes_while(self, which: int, count: int, rounds: int, other: int) -> None:
        """In the middle of an admission the agent or the kubelet goes away, or the policy changes."""
        resource = self._resource(which)
        containers = (Container("main", {resource: count}), Container("second", {resource: 1}))
        pod = Pod("default", f"pod-{next(self.names)}", containers)
        self.do(self._admit_and(pod, rounds, self._others()[other]))

    def _others(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        return [self.world.kill_agent, self.world.stop_agent, self.world.stop_kubelet, self._rewrite]

    async def _rewrite(self) -> None:
        plan = (*self.world.plan[1:], self.world.plan[0])
        self.world.write_policy(plan, single=not self.world.single)

    async def _admit_and(self, pod: Pod, rounds: int, other: Callable[[], Coroutine[Any, Any, None]]) -> None:
        admission = asyncio.create_task(self.world.admit(pod, bound=False, patience_s=0.0))
        for _ in range(rounds):
            await asyncio.sleep(0)
        await other()
        await admission

    # --- the laws ---

    @invariant()
    def the_laws_hold(self) -> None:
        if hasattr(self, "truth"):
            self.do(self._check())

    async def _check(self) -> None:
        try:
            self.truth.check()
        except AssertionError as error:
            self.is_lawful = False
            raise self._told(error) from error

    def _told(self, error: AssertionError) -> AssertionError:
        return AssertionError("\n".join([str(error), "what happened:", *self.world.log]))

    def teardown(self) -> None:
        try:
            if hasattr(self, "truth") and self.is_lawful:
                self.do(self._settle())
        finally:
            if hasattr(self, "world"):
                self.do(self.world.close())
            self.stack.close()

    async def _settle(self) -> None:
        """Faults stop; then everything comes to rest."""
        world = self.world
        try:
            await self._faults_stop()
            await self.truth.settles()
            await self._layout_is_made()
            await self.truth.comes_to_rest()
            await world.stop_agent()
            await world.stop_kubelet()
            self.truth.check()
        except AssertionError as error:
            raise self._told(error) from error

    async def _layout_is_made(self) -> None:
        """Machines without MIG have none."""

    async def _faults_stop(self) -> None:
        world = self.world
        world.note("faults stop")
        await world.queue_leaves()
        world.behave(answers_registration=True, pod_resources=PodResourcesMode.SERVES, knows_pods=True)
        if not world.kubelet_runs:
            await world.start_kubelet()
        if not world.policy_is_good:
            world.write_policy(world.plan, single=world.single)
        await world.heal()
        await world.forget_ended()  # a kubelet that still names them is believed
        await world.agent_turns()
        slow_s = world.loop.thread_s  # type: ignore[attr-defined]
        await asyncio.sleep(12.0 + 3 * slow_s)  # what happened last has been noticed, a dead daemon too


class MigNode(Node):
    """The same with MIG devices, which an administrator makes anew now and then."""

    machine = "3xa100-40gb"
    plans = MIG_PLANS
    layout = "3g.20gb 2g.10gb 1g.5gb"

    @rule(gpu=st.integers(0, GPUS - 1), text=LAYOUTS)
    def layout_changes(self, gpu: int, text: str | None) -> None:
        if not self.world.is_used(gpu) and gpu not in self.world.hardware.state.lost:
            self.do(self.world.fault(SetMig(gpu, layout(text))))

    async def _layout_is_made(self) -> None:
        """GPUs with MIG devices can be reset only when nobody uses them."""
        world = self.world
        for status in world.live():
            await world.end(status.pod)
        for index in world.hardware.state.gpus:
            await world.fault(ResetGpu(index))
            await world.fault(SetMig(index, layout(self.layout if index == 0 else None)))
        world.troubles.clear()


HOW = settings(
    max_examples=EXAMPLES,
    print_blob=True,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
TestNode = Node.TestCase
TestNode.settings = HOW
TestMigNode = MigNode.TestCase
TestMigNode.settings = HOW
