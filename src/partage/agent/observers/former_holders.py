"""Asks the helper whether processes are left of pods that the kubelet has forgotten (docs/adr/0125)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from msgspec import Struct

from partage.edges.files.left_holds import LeftHolds
from partage.errors import HardwareError
from partage.model.ids import PodUid
from partage.model.process import Left
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.ledger_entry import EndingHold

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How long the helper may look for processes that are left, in seconds. It takes milliseconds."""
ALLOCATE_LOOK_S = 0.05
"""The same while the kubelet waits for the answer to Allocate."""
MOST_PODS = 500
"""Pods that the helper is asked about at once."""


class FormerHolders(Struct):
    """What is left of the pods of ending holds.

    left: asks which processes of pods still run. files: what the run directory says of such pods. unseen: why
    nobody can look; empty if somebody could.
    """

    ledger: Ledger
    ask: Callable[[], None]
    left: Callable[[Collection[PodUid]], Awaitable[Left]]
    files: LeftHolds
    unseen: str = ""
    _written: tuple[EndingHold, ...] | None = None
    _looked: bool = False

    def restore(self) -> None:
        """At first: what was ending for the agent before."""
        if self._written is None:
            self._written = self.files.read()
            self.ledger.restore_ending(self._written)

    @property
    def wants_look(self) -> bool:
        """Whether it is to be looked although nothing may be ending: at first, and while nobody can. It is
        said then, as long as it is so."""
        return bool(self.unseen) or not self._looked

    async def look(self) -> None:
        """Whether anything is left of the holders that the kubelet has forgotten."""
        pods, before = self.ledger.ending_pods, self.ledger.version
        if pods:
            self.ledger.looked(self.files.freed(), ())
        elif not self.wants_look:
            return
        asked = frozenset(sorted(self.ledger.ending_pods)[:MOST_PODS])
        try:
            async with asyncio.timeout(LOOK_S):
                self._note(asked, await self.left(asked))
        except (HardwareError, TimeoutError) as error:  # they are waited for until somebody has looked
            log.debug("not looked for processes", extra={"reason": str(error)})
        self._write()
        if self.ledger.version != before:
            self.ask()

    async def look_at_once(self, pods: frozenset[PodUid]) -> Left | None:
        """What still runs of these pods; None if that is not known in ALLOCATE_LOOK_S."""
        try:
            async with asyncio.timeout(ALLOCATE_LOOK_S):
                left = await self.left(pods - self.files.freed())
        except (HardwareError, TimeoutError) as error:
            log.warning("former holders are not looked for", extra={"reason": str(error) or "no answer"})
            return None
        if left.processes:
            asyncio.get_running_loop().call_soon(self._write)
        return left

    def _write(self) -> None:
        """For the next agent: nobody else knows which shares these pods had."""
        ending = self.ledger.ending
        if ending == self._written:
            return
        try:
            self.files.write(ending)
            self._written = ending
        except OSError as error:
            log.warning("ending holds are not remembered", extra={"reason": str(error)})

    def _note(self, asked: frozenset[PodUid], left: Left) -> None:
        """Where nobody can look, the kubelet's word decides."""
        self._looked = True
        if left.unseen != self.unseen:
            log.warning("processes that are left are not seen", extra={"reason": left.unseen or None})
            self.unseen = left.unseen
            self.ask()
        self.ledger.looked(asked, left.processes)
