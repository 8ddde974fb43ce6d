"""The reconciler alone: a port that records what it is asked, and time that passes without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

import pytest

from partage.agent.reconciler.executor import TransactionEnd, TransactionOutcome
from partage.agent.reconciler.reconciler import Reconciler
from partage.errors import GpuInUse, InsufficientResources, PartageError
from partage.model.geometry import Placement
from partage.model.gpu import ComputeMode, Driver, Inventory
from partage.model.ids import GpuUuid
from partage.model.step import CreateCompute, CreateInstance, SetComputeMode, SetMigMode, Step, Transaction
from partage.plan.reconcile.node_plan import GpuPlan, NodePlan, Phase
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.node.loops import SimulatedTimeLoop

B = GpuUuid("b")

A = GpuUuid("a")

RETRY_S, CUT_OFF_S = 2.0, 5.0
STEPS_S = 1.0
"""How long the steps of a transaction take here."""
READ_BACK_S = 0.5
SETTLED = NodePlan()


def layout(gpu: GpuUuid) -> Transaction:
    return Transaction((gpu,), (SetMigMode(gpu, enabled=True),))


def setting(gpu: GpuUuid) -> Transaction:
    mode = SetComputeMode(gpu, ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT)
    return Transaction((gpu,), (mode,))


def ready(*transactions: Transaction) -> NodePlan:
    gpus = {gpu: GpuPlan(Phase.READY, steps=one.steps) for one in transactions for gpu in one.gpus}
    return NodePlan(gpus, transactions, ready=transactions)


def not_ready(phase: Phase, *transactions: Transaction) -> NodePlan:
    gpus = {gpu: GpuPlan(phase, "not now", steps=one.steps) for one in transactions for gpu in one.gpus}
    return NodePlan(gpus, transactions)


class ScriptedPort:
    """Answers ``plans`` one after the other, the last one again and again, and records what it is asked.

    in_hand: says which GPUs are in hand. answers: whether the hardware does. pause: see ``pause_s``.
    errors: why the next transactions of a GPU fail. asked: the questions, with the GPUs in hand at that time.
    begun: transactions, with the time. originals: steps before which they were remembered. concluded: plans.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.plans = [SETTLED]
        self.in_hand: Callable[[], dict[GpuUuid, Phase]] = dict
        self.answers = True
        self.must_ask = False
        self.pause: float | None = None
        self.errors: dict[str, list[PartageError]] = {}
        self.inventory = Inventory(Driver("550.54", "12.4"))
        self.asked: list[tuple[str, dict[GpuUuid, Phase]]] = []
        self.begun: list[tuple[float, Transaction]] = []
        self.originals: list[Step] = []
        self.concluded: list[NodePlan] = []

    def count(self, question: str) -> int:
        """How often this was asked."""
        return [name for name, _ in self.asked].count(question)

    def _note(self, question: str) -> None:
        self.asked.append((question, self.in_hand()))

    # --- what the reconciler asks ---

    def plan(self) -> NodePlan:
        self._note("plan")
        return self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]

    def must_observe(self) -> bool:
        return self.must_ask

    def pause_s(self, *, settled: bool) -> float | None:
        return self.pause

    async def observe(self, *, users: bool) -> bool:
        self._note("observe")
        self.must_ask = self.must_ask and not self.answers
        return self.answers

    async def remember(self, steps: Iterable[Step]) -> None:
        self._note("remember")
        self.originals += steps

    async def carry_out(self, transaction: Transaction) -> TransactionOutcome:
        self._note("carry out")
        self.begun.append((round(self.clock(), 2), transaction))
        await asyncio.sleep(STEPS_S)
        for gpu in transaction.gpus:
            if self.errors.get(gpu):
                error, failed = self.errors[gpu].pop(0), transaction.steps[-1]
                return TransactionOutcome(transaction, TransactionEnd.ROLLED_BACK, (), failed, error)
        return TransactionOutcome(transaction, TransactionEnd.DONE)

    async def read_back(self) -> Inventory:
        self._note("read back")
        await asyncio.sleep(READ_BACK_S)
        return self.inventory

    async def conclude(self, plan: NodePlan) -> None:
        self.concluded.append(plan)


class Bench:
    """A reconciler that runs in a loop with simulated time.

    turns: how often it asked for a turn. turn: what a turn publishes; None: it publishes nothing.
    """

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.turns = 0
        loop = runner.get_loop()
        self.began_s = loop.time()
        self.port = ScriptedPort(self.clock)
        self.reconciler = Reconciler(self.port, self.clock, self._ask, RETRY_S, CUT_OFF_S)
        self.port.in_hand = lambda: self.reconciler.in_hand
        self.turn: Callable[[], NodePlan] | None = None

    def clock(self) -> float:
        return self.runner.get_loop().time() - self.began_s

    def _ask(self) -> None:
        self.turns += 1
        if self.turn is not None:
            self.reconciler.published(self.turn())

    def start(self) -> None:
        self.runner.get_loop().create_task(self.reconciler.run(), name="reconciler")

    def passes(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    def publish(self, plan: NodePlan, then: Iterable[NodePlan] = ()) -> None:
        """A turn publishes ``plan``. then: what fresh plans say after it; the same, unless given."""
        self.port.plans = list(then) or [plan]
        self.reconciler.published(plan)

    @property
    def done(self) -> list[Transaction]:
        return [one for _, one in self.port.begun]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        yield Bench(runner)
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedTimeLoop)
        assert loop.trouble == []


# --- what is carried out, and what is not ---------------------------------------------------------


def test_nothing_is_asked_while_everything_is_settled(bench: Bench) -> None:
    bench.start()
    bench.publish(SETTLED)
    bench.passes(1000)
    assert bench.port.asked == []
    assert all(one == SETTLED for one in bench.port.concluded)


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.WITHDRAWING, Phase.FAILED, Phase.BLOCKED])
def test_only_what_is_ready_is_carried_out(bench: Bench, phase: Phase) -> None:
    bench.start()
    now, later = ready(setting(A)), not_ready(phase, setting(GpuUuid("b")))
    both = NodePlan({**now.gpus, **later.gpus}, (*now.transactions, *later.transactions), now.ready)
    bench.publish(both)
    bench.passes(10)
    assert bench.done == [setting(A)]


def test_the_fresh_plan_is_carried_out_and_not_the_published_one(bench: Bench) -> None:
    bench.start()
    bench.publish(ready(setting(A), setting(GpuUuid("b"))), then=[ready(setting(GpuUuid("b")))])
    bench.passes(10)
    assert bench.done == [setting(B)]


def test_one_layout_at_a_time_and_settings_side_by_side(bench: Bench) -> None:
    todo = [layout(A), layout(GpuUuid("b")), setting(GpuUuid("c")), setting(GpuUuid("d"))]
    bench.turn = lambda: ready(*todo[len(bench.done) :])
    bench.start()
    bench.publish(ready(*todo), then=[ready(*todo), ready(*todo[1:]), ready(*todo[2:]), SETTLED])
    bench.passes(10)
    one = STEPS_S + READ_BACK_S
    assert bench.port.begun == [(0, todo[0]), (one, todo[1]), (2 * one, todo[2]), (2 * one, todo[3])]


def test_originals_are_remembered_before_the_first_step(bench: Bench) -> None:
    bench.start()
    bench.publish(ready(setting(A), setting(GpuUuid("b"))))
    bench.passes(0.5)
    names = [name for name, _ in bench.port.asked if name in ("remember", "carry out")]
    assert names == ["remember", "carry out", "carry out"]
    assert bench.port.originals == [*setting(A).steps, *setting(GpuUuid("b")).steps]


def test_gpus_are_in_hand_until_they_were_read_back(bench: Bench) -> None:
    bench.start()
    bench.publish(ready(setting(A), setting(GpuUuid("b"))))
    bench.passes(STEPS_S / 2)
    assert bench.reconciler.in_hand == {"a": Phase.CHANGING, "b": Phase.CHANGING}
    assert bench.turns == 0
    bench.passes(STEPS_S)
    assert bench.reconciler.in_hand == {"a": Phase.VERIFYING, "b": Phase.VERIFYING}
    assert bench.turns == 1
    bench.passes(READ_BACK_S)
    assert bench.reconciler.in_hand == {}
    assert bench.turns == 2
    held = dict(bench.port.asked[-3:])
    assert held["read back"] == held["observe"] == {"a": Phase.VERIFYING, "b": Phase.VERIFYING}
    assert bench.reconciler.endings == {"done": 2}


# --- failures -------------------------------------------------------------------------------------


def failing(bench: Bench, *, times: int) -> Transaction:
    """A GPU whose transaction fails so often. Plans are those of the real planner: not before it is due."""
    bench.port.errors["a"] = [GpuInUse(f"number {number}") for number in range(times)]
    one = layout(A)

    def plan() -> NodePlan:
        attempt = bench.reconciler.attempts.get(A)
        if "a" in bench.reconciler.in_hand or (attempt and attempt.again_s > bench.clock()):
            return not_ready(Phase.FAILED, one)
        return SETTLED if bench.reconciler.endings["done"] else ready(one)

    bench.turn = bench.port.plan = plan  # type: ignore[method-assign]
    bench.port.pause = 0.7
    return one


def test_a_failure_is_tried_again_after_two_four_eight_up_to_sixty_seconds(bench: Bench) -> None:
    failing(bench, times=7)
    bench.start()
    bench.publish(bench.port.plan())
    bench.passes(400)
    began = [when for when, _ in bench.port.begun]
    ended = [when + STEPS_S for when in began]
    pauses = [later - earlier for earlier, later in zip(ended, began[1:], strict=False)]
    assert pauses == pytest.approx([2, 4, 8, 16, 32, 60, 60], abs=0.02)
    assert bench.reconciler.attempts == {}, "the eighth was done"
    assert bench.reconciler.endings == {"rolled-back": 7, "done": 1}


def test_what_failed_says_why_and_when_it_is_tried_again(bench: Bench) -> None:
    failing(bench, times=2)
    bench.start()
    bench.publish(bench.port.plan())
    bench.passes(5)
    attempt = bench.reconciler.attempts[A]
    assert attempt.again_s == pytest.approx(2 * STEPS_S + 2 + 4, abs=0.01)
    assert attempt.tries == 2
    assert attempt.reason == f"{layout(A).steps[0]}: number 1"


def test_under_another_policy_what_failed_is_tried_at_once(bench: Bench) -> None:
    failing(bench, times=5)
    bench.start()
    bench.publish(bench.port.plan())
    bench.passes(20)
    begun, attempt = len(bench.port.begun), bench.reconciler.attempts[A]
    assert attempt.again_s > bench.clock() + 5
    bench.reconciler.forget_failures()
    bench.publish(bench.port.plan())
    bench.passes(0.1)
    assert len(bench.port.begun) == begun + 1


def test_a_gpu_that_is_settled_without_us_is_no_failure_any_more(bench: Bench) -> None:
    bench.port.errors["a"] = [GpuInUse("busy")]
    bench.start()
    bench.publish(ready(layout(A)))
    bench.passes(STEPS_S + READ_BACK_S + 0.1)
    assert bench.reconciler.attempts.keys() == {"a"}
    bench.publish(NodePlan({A: GpuPlan(Phase.SETTLED)}))
    assert bench.reconciler.attempts == {}


def test_one_that_fails_does_not_hold_up_the_others(bench: Bench) -> None:
    bench.port.errors["a"] = [GpuInUse("busy")]
    bench.start()
    bench.publish(ready(setting(A), setting(GpuUuid("b"))))
    bench.passes(10)
    assert bench.reconciler.endings == {"rolled-back": 1, "done": 1}
    assert bench.reconciler.attempts.keys() == {"a"}


def test_a_gpu_instance_without_room_is_made_again_at_the_next_attempt(bench: Bench) -> None:
    hardware = SimulatedHardware(load_machine("h100-sxm5-80gb"))
    place = Placement(0, 4)

    async def inventory() -> Inventory:
        gpu = (await hardware.observe()).gpus[0].uuid
        await hardware.perform(SetMigMode(gpu, enabled=True))
        await hardware.perform(CreateInstance(gpu, "3g.40gb", place))
        await hardware.perform(CreateCompute(gpu, "3g.40gb", place, "1c.3g.40gb"))
        return await hardware.observe()

    found = bench.port.inventory = bench.runner.run(inventory())
    gpu = found.gpus[0]
    bench.port.errors[gpu.uuid] = [InsufficientResources("no room")]
    bench.start()
    last = CreateCompute(gpu.uuid, "3g.40gb", place, "2c.3g.40gb")
    bench.publish(ready(Transaction((gpu.uuid,), (last,))))
    bench.passes(10)
    assert bench.reconciler.attempts[gpu.uuid].renew == {gpu.mig_devices[0].gi_id}


# --- how often it looks ---------------------------------------------------------------------------


def test_where_the_fresh_plan_says_not_ready_it_waits_for_the_next_published_plan(bench: Bench) -> None:
    bench.start()
    for number in (1, 2, 3):
        bench.publish(ready(layout(A)), then=[not_ready(Phase.WITHDRAWING, layout(A))])
        bench.passes(1000)
        assert (bench.port.count("plan"), bench.port.count("observe")) == (number, number)
        assert bench.turns == number, "a turn publishes what is known now"
    assert bench.done == []


def test_while_something_waits_it_looks_again_after_the_pause(bench: Bench) -> None:
    bench.port.pause = 100.0
    bench.start()
    bench.publish(not_ready(Phase.WAITING, layout(A)))
    bench.passes(999)
    assert (bench.port.count("plan"), bench.port.count("observe")) == (10, 10)


def test_turns_that_come_more_often_do_not_put_the_next_look_off(bench: Bench) -> None:
    bench.port.pause = 5.0
    bench.start()
    for _ in range(99):
        bench.publish(SETTLED)
        bench.passes(1.0)
    assert bench.port.count("observe") == 20


def test_what_was_not_asked_yet_is_asked_at_once(bench: Bench) -> None:
    bench.port.must_ask = True
    bench.start()
    bench.passes(0.1)
    assert bench.port.count("observe") == 1


def test_hardware_that_does_not_answer_is_asked_again_after_the_first_pause(bench: Bench) -> None:
    bench.port.answers = False
    bench.start()
    bench.publish(ready(layout(A)))
    bench.passes(RETRY_S * 2.5)
    assert (bench.port.count("observe"), bench.port.count("plan"), bench.done) == (3, 0, [])
    bench.port.answers = True
    bench.passes(RETRY_S)
    assert bench.done == [layout(A)]


# --- after an agent that was killed ---------------------------------------------------------------


def test_gpus_of_a_change_that_was_cut_off_are_left_alone_until_its_last_step_is_over(bench: Bench) -> None:
    bench.reconciler.in_hand = {A: Phase.VERIFYING}
    bench.start()
    bench.publish(ready(layout(B)))
    bench.passes(CUT_OFF_S - 0.1)
    assert (bench.port.asked, bench.turns) == ([], 0)
    assert bench.reconciler.in_hand == {"a": Phase.VERIFYING}
    bench.passes(READ_BACK_S + 0.2)
    assert bench.port.asked[0] == ("read back", {"a": Phase.VERIFYING})
    assert (bench.reconciler.in_hand, bench.turns, bench.done) == ({}, 1, [])
    bench.publish(ready(layout(A)))
    bench.passes(0.1)
    assert bench.done == [layout(A)]


def test_the_journal_is_concluded_by_the_published_plan_once_nothing_of_it_is_ready(bench: Bench) -> None:
    bench.start()
    bench.publish(ready(layout(A)))
    bench.passes(STEPS_S)
    assert bench.port.concluded == []
    waiting = not_ready(Phase.WAITING, layout(B))
    bench.passes(READ_BACK_S + 0.1)
    bench.publish(waiting)
    bench.passes(0.1)
    assert bench.port.concluded[-1] == waiting
