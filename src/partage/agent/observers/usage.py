"""Asks what GPUs and containers use: at every scrape, and in between often enough to know who it was.

It begins with the first scrape, or the first sample of the history, and ends some minutes after the last
one. Where nobody wants the figures, nothing is asked, and the helper samples nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError

from msgspec import Struct, field

from partage.agent.observers.containers import NodeContainers
from partage.agent.status.status import UsageObservation, UseSeen
from partage.edges.hardware.port import SAMPLED_FOR_S
from partage.edges.host.waiting import until_tick
from partage.errors import HardwareError
from partage.model.driver_limit import LimitAt
from partage.model.ids import ContainerId
from partage.model.share import NodeOffer
from partage.plan.last_hour import LastHour, with_samples
from partage.plan.serve.ledger_entry import Holder
from partage.plan.serve.watchdog import grants_of
from partage.plan.usage import usage_of


def answer_in(
    wait_s: float,
    loop: asyncio.AbstractEventLoop,
    question: Coroutine[None, None, UsageObservation | None],
) -> UsageObservation | None:
    """The answer of a coroutine of that loop, from another thread; None where it takes longer."""
    asked = asyncio.run_coroutine_threadsafe(question, loop)
    with contextlib.suppress(TimeoutError, CancelledError, RuntimeError):
        return asked.result(wait_s)
    return None


class UsageObserver(Struct):
    """The last answer, what the answers of the last hour were, and the task that asks.

    holders_known: whether it is known now who holds what. offer: all that can be held now. counted: what is
    counted for cgroups. trouble: why the last call failed.
    """

    node: NodeContainers
    holders_known: Callable[[], bool]
    offer: Callable[[], NodeOffer]
    counted: Callable[[], Mapping[LimitAt, int]] = dict
    observation: UsageObservation | None = None
    trouble: str = ""
    _hour: LastHour = field(default_factory=dict)
    _began_s: float = 0.0
    _sampled_s: float | None = None
    _names: dict[ContainerId, Holder] = field(default_factory=dict)
    _asking: asyncio.Task[None] | None = None
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _wanted_s: float = 0.0

    def __post_init__(self) -> None:
        self._began_s = self.node.clock()

    @property
    def seen(self) -> UseSeen:
        """What was sampled last. Nothing is asked for it, so that whoever reads it wakes nobody."""
        return UseSeen(self._began_s, self._sampled_s, self.observation, self._hour)

    async def run(self) -> None:
        """Ask every usage_s seconds while somebody wants to know."""
        while True:
            await self._wanted.wait()
            await until_tick(self.node.intervals.usage_s)
            if self.node.clock() - self._wanted_s > SAMPLED_FOR_S:
                self._wanted.clear()
                self.observation = None
            elif (
                self.observation is None
                or self.node.clock() - self.observation.at_s >= self.node.intervals.usage_s / 2
            ):
                await self._asked_once()

    async def ask(self) -> UsageObservation | None:
        """A new answer; where there is none, the last one."""
        self._wanted_s = self.node.clock()
        self._wanted.set()
        await self._asked_once()
        return self.observation

    async def look(self) -> UsageObservation | None:
        """As ``ask``, without more questions after it. Peaks are kept all the same."""
        await self._asked_once()
        return self.observation

    def fresh(self, loop: asyncio.AbstractEventLoop) -> UsageObservation | None:
        """As ``ask``, from another thread than that of the loop; the last answer where that takes too
        long.
        """
        return answer_in(self.node.intervals.usage_answer_s, loop, self.ask()) or self.observation

    async def _asked_once(self) -> None:
        """Those who ask while another one waits get the same answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="usage")
        await asyncio.shield(self._asking)

    async def _ask(self) -> None:
        at_s = self.node.clock()
        try:
            samples = await self.node.hardware.samples()
        except HardwareError as error:
            self.trouble = str(error)
            return
        counted = self.counted()
        named = {at.container for at in counted}
        await self._learn_names(named | {peak.container for peak in samples.peaks if peak.container})
        granted = grants_of(self.node.ledger.entries(), self.offer())
        known = self.holders_known()
        use = usage_of(samples, self._names, granted, holders_known=known, counted=counted)
        self.observation, self.trouble = UsageObservation(at_s, samples, use), ""
        self._sampled_s, self._hour = at_s, with_samples(self._hour, samples, at_s)

    async def _learn_names(self, needed: set[ContainerId]) -> None:
        """The names of containers with a figure. Kept after the kubelet has removed the logs; they never
        change.
        """
        known = {one: holder for one, holder in self._names.items() if one in needed}
        if needed - known.keys():
            names = await self.node.names()
            known |= {container: names[container] for container in needed if container in names}
        self._names = known
