"""The task that carries plans out: one MIG layout at a time, settings of several GPUs concurrently.

Every turn publishes a plan. If something in it is ready, the reconciler observes again, plans again, and
carries out what is still ready. A GPU in hand keeps what it serves until it was read back.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.model.step import (
    CreateCompute,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    Reset,
    SetMigMode,
    Step,
    Transaction,
)
from partage.plan.reconcile.node_plan import FailedAttempt, NodePlan, Phase, failed_again

if TYPE_CHECKING:  # many nodes never carry anything out
    from partage.agent.reconciler.executor import TransactionOutcome

log = logging.getLogger(__name__)

_LAYOUT = (SetMigMode, Reset, DestroyCompute, DestroyInstance, CreateInstance, CreateCompute)


class ReconcilerPort(Protocol):
    """What the reconciler needs from the rest of the agent."""

    def plan(self) -> NodePlan:
        """A plan from what is known now and what was published last."""
        ...

    def must_observe(self) -> bool:
        """Whether something has to be asked before planning."""
        ...

    def pause_s(self, *, settled: bool) -> float | None:
        """How long until the settings have to be observed again, in seconds; None: no limit."""
        ...

    async def observe(self, *, users: bool) -> bool:
        """Observe settings, and, if users is set, the uses of GPUs. False: no answer."""
        ...

    async def remember(self, steps: Iterable[Step]) -> None:
        """Write to disk the settings that these steps are about to change."""
        ...

    async def carry_out(self, transaction: Transaction) -> TransactionOutcome:
        """Do the steps; roll back if one fails."""
        ...

    async def read_back(self) -> Inventory:
        """Observe the node until it answers and containers can get its devices."""
        ...

    async def conclude(self, plan: NodePlan) -> None:
        """End the journal of an interrupted change once its GPUs have their layout."""
        ...


class Reconciler(Struct):
    """Carries out what is ready. All mappings are by GPU UUID.

    ask: asks for a turn. retry_s: the first pause after a failure. cut_off_s: how long a
    step of a killed agent may still be carried out. in_hand: GPUs whose steps are carried out
    or read back. attempts: what failed, and when it is tried again. endings: transactions so far, by how they
    ended.
    """

    port: ReconcilerPort
    clock: Callable[[], float]
    ask: Callable[[], None]
    retry_s: float
    cut_off_s: float
    in_hand: dict[GpuUuid, Phase] = field(default_factory=dict)
    attempts: dict[GpuUuid, FailedAttempt] = field(default_factory=dict)
    endings: Counter[str] = field(default_factory=Counter)
    _plan: NodePlan = field(default_factory=NodePlan)
    _nothing_ready: bool = False
    _observed_s: float = -math.inf
    _published: asyncio.Event = field(default_factory=asyncio.Event)

    # --- the loop's side ---

    def published(self, plan: NodePlan) -> None:
        """A turn has published this plan: the kubelet has been told what is offered meanwhile."""
        self._plan, self._nothing_ready = plan, False
        self.attempts = {gpu: one for gpu, one in self.attempts.items() if gpu in plan.unsettled}
        self._published.set()

    def forget_failures(self) -> None:
        """The policy changed: what failed is retried at once."""
        self.attempts = {}

    # --- the task ---

    async def run(self) -> None:
        """Carry out what is ready, until cancelled."""
        await self.finish_cut_off()
        while True:
            await self._something_to_do()
            await self.step()

    async def finish_cut_off(self) -> None:
        """At the start: wait for a step of a killed agent, and read its GPUs back."""
        if self.in_hand:
            await asyncio.sleep(self.cut_off_s)
            await self._release()

    async def step(self) -> None:
        """Observe once, plan once, carry out what is ready."""
        if not await self._observe(users=not self._plan.settled):
            await asyncio.sleep(self.retry_s)
            return
        plan = self.port.plan()
        if batch := next_batch(plan.ready):
            await self._carry_out(batch)
        else:
            self._nothing_ready = True  # until the next turn has published what is known now
            if not plan.settled:
                self.ask()

    async def _something_to_do(self) -> None:
        """Wait until something is ready or has to be asked, or it is time to observe again."""
        while not self._is_ready() and not self.port.must_observe():
            await self.port.conclude(self._plan)
            self._published.clear()
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._published.wait()
            except TimeoutError:
                return

    def _is_ready(self) -> bool:
        phases = (gpu_plan.phase for gpu_plan in self._plan.gpus.values())
        return not self._nothing_ready and (bool(self._plan.ready) or Phase.READY in phases)

    async def _observe(self, *, users: bool) -> bool:
        self._observed_s = self.clock()
        return await self.port.observe(users=users)

    def _pause_s(self) -> float | None:
        pause_s = self.port.pause_s(settled=self._plan.settled)
        if pause_s is not None:  # since the last observation: turns that come more often must not put it off
            pause_s -= self.clock() - self._observed_s
        due_s = [attempt.again_s - self.clock() for attempt in self.attempts.values()]
        return pause_s if pause_s is None else max(0.0, min([pause_s, *(s for s in due_s if s > 0)]))

    async def _carry_out(self, batch: Sequence[Transaction]) -> None:
        gpus = [gpu for transaction in batch for gpu in transaction.gpus]
        self.in_hand = dict.fromkeys(gpus, Phase.CHANGING)
        await self.port.remember(step for transaction in batch for step in transaction.steps)
        outcomes = await asyncio.gather(*(self.port.carry_out(transaction) for transaction in batch))
        for outcome in outcomes:
            self._judge(outcome)
        self.in_hand = dict.fromkeys(gpus, Phase.VERIFYING)
        self.ask()
        await self._release(outcomes)

    async def _release(self, outcomes: Iterable[TransactionOutcome] = ()) -> None:
        """Read the GPUs in hand back, then release them."""
        inventory = await self.port.read_back()
        await self._observe(users=True)
        self._renew(inventory, outcomes)
        self.in_hand, self._plan = {}, NodePlan()
        self.ask()

    def _judge(self, outcome: TransactionOutcome) -> None:
        gpus = outcome.transaction.gpus
        self.endings[str(outcome.ending)] += 1
        if outcome.error is None:
            log.info("steps done", extra={"gpus": list(gpus)})
            self.attempts = {gpu: one for gpu, one in self.attempts.items() if gpu not in gpus}
            return
        reason = outcome.reason
        log.error("steps failed", extra={"gpus": list(gpus), "ending": outcome.ending, "reason": reason})
        for gpu in gpus:
            self.attempts[gpu] = failed_again(self.attempts.get(gpu), reason, self.clock(), self.retry_s)

    def _renew(self, inventory: Inventory, outcomes: Iterable[TransactionOutcome]) -> None:
        """A GPU instance that had no room for a compute instance is made again at the next attempt."""
        from partage.plan.reconcile.instances import to_renew

        for outcome in outcomes:
            if outcome.failed is not None and outcome.error is not None:
                for gpu, instances in to_renew(inventory, outcome.failed, outcome.error).items():
                    if gpu in self.attempts:
                        self.attempts[gpu] = replace(self.attempts[gpu], renew=instances)


def next_batch(ready: Sequence[Transaction]) -> tuple[Transaction, ...]:
    """What is carried out together: one MIG layout, else the settings of all GPUs."""
    if ready and makes_layout(ready[0]):
        return (ready[0],)
    return tuple(transaction for transaction in ready if not makes_layout(transaction))


def makes_layout(transaction: Transaction) -> bool:
    """Whether it changes MIG modes or instances."""
    return any(isinstance(step, _LAYOUT) for step in transaction.steps)
