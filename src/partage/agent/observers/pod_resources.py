"""Who holds what: when PodResources is asked, and what its answers mean for the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import Struct, field

from partage.agent.options import Intervals
from partage.edges.kubelet.port import PodResources
from partage.errors import Unreachable
from partage.model.allocation import ContainerHold
from partage.model.ids import ResourceName, ShareId
from partage.plan.serve.ledger import Certainty, Ledger
from partage.values import Frozen

log = logging.getLogger(__name__)


class NodeNames(Frozen):
    """What is ours: resources by name, and the node's GPUs and MIG devices by UUID."""

    resources: Collection[str]
    devices: Collection[str]

    def has(self, resource: str, ids: Iterable[str]) -> bool:
        """Whether a hold concerns us: not another vendor's device. It may have been given out under a name
        that an earlier policy, or another plugin, used."""
        return resource in self.resources or any(ShareId.parse(share).device in self.devices for share in ids)


class PodResourcesPoller(Struct):
    """Asks PodResources soon after an Allocate, else now and then; pauses longer when it is refused.

    names: of now. checkpoint: what the kubelet has written down of who holds what, None: nothing.
    there: whether PodResources has a socket at all.
    known: whether it is known who holds what. trouble: why the last question had no answer. asked_once: the
    first question had an answer, or none.
    """

    pod_resources: PodResources
    ledger: Ledger
    clock: Callable[[], float]
    ask: Callable[[], None]
    intervals: Intervals
    names: Callable[[], NodeNames]
    checkpoint: Callable[[], Mapping[ResourceName, Collection[str]] | None]
    there: Callable[[], bool]
    known: bool = False
    trouble: str = ""
    _pause_s: float = 0.0
    _waited: bool = False
    asked_once: asyncio.Event = field(default_factory=asyncio.Event)
    _soon: asyncio.Event = field(default_factory=asyncio.Event)

    def soon(self) -> None:
        """An Allocate was answered: the kubelet will know its pod in a moment."""
        if not self.trouble and not self._soon.is_set():
            self._pause_s = self.intervals.holders_first_s
            self._soon.set()

    def waited_for(self, *, waited: bool) -> None:
        """Whether a GPU waits for somebody to give a share back: then the end of a pod is news."""
        if waited and not self._waited and not self.trouble:
            self._soon.set()
        self._waited = waited

    async def question(self) -> tuple[ContainerHold, ...]:
        """Ask once. Raises Unreachable."""
        asked_s = self.clock()
        try:
            said = await self.pod_resources.held()
        except Unreachable as error:
            self._note(str(error))
            raise
        self._note("")
        before = self.ledger.version
        names = self.names()
        holders = tuple(row for row in said if names.has(row.resource, row.ids))
        self.ledger.observed(holders, asked_s)
        if self.ledger.version != before or not self.known:
            self.known = True
            self.ask()
        return holders

    async def run(self) -> None:
        """Ask for ever."""
        written = self._read_checkpoint()
        while True:
            await self._rest()
            try:
                await self.question()
            except Unreachable:
                if not self.known and (written or not self.there()):
                    # Without checkpoint and socket nobody can ever tell: the node goes on.
                    self.known = True
                    self.ask()
                self.asked_once.set()
                self._pause_s = min(max(self._pause_s, 0.5) * 2, self.intervals.holders_longest_s)
                continue
            self.asked_once.set()
            unnamed = any(entry.certainty is Certainty.TENTATIVE for entry in self.ledger.entries())
            longest_s = self.intervals.holders_waited_s if self._waited else self.intervals.holders_s
            soon_s = max(self._pause_s, self.intervals.holders_first_s) * 2
            self._pause_s = min(soon_s, longest_s) if unnamed else longest_s

    def _read_checkpoint(self) -> bool:
        """Before the first question: what the kubelet has written down is held, whoever names it.

        PodResources never names an ordinary init container, and a pod only a moment after its admission: an
        agent that was away then would take their shares for free. Returns whether there is a checkpoint.
        """
        written = self.checkpoint()
        names, now_s = self.names(), self.clock()
        for resource, ids in (written or {}).items():
            if names.has(resource, ids):
                self.ledger.allocated(resource, sorted(ids), now_s)
        return written is not None

    async def _rest(self) -> None:
        """Pause; an Allocate cuts a long pause short, but not to nothing: the kubelet needs its moment."""
        if not self._soon.is_set():
            try:
                async with asyncio.timeout(self._pause_s):
                    await self._soon.wait()
            except TimeoutError:
                return
        self._soon.clear()
        await asyncio.sleep(self.intervals.holders_first_s)

    def _note(self, trouble: str) -> None:
        if bool(trouble) != bool(self.trouble):
            if trouble:
                log.warning("holders are not known", extra={"reason": trouble})
            else:
                log.info("holders are known")
            self.ask()
        self.trouble = trouble
