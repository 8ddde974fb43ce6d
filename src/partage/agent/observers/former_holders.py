"""Asks the helper whether processes are left of pods that the kubelet has forgotten (docs/adr/0125)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection

from msgspec import Struct

from partage.edges.files.node_notes import LeftHolds
from partage.errors import DriverUnavailable, HardwareTimeout, PartageError
from partage.model.gpu_use import Left
from partage.model.ids import PodUid
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.ledger_entry import EndingHold

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How long the helper may look for processes that are left, in seconds. It takes milliseconds."""
ALLOCATE_LOOK_S = 0.05
"""The same while the kubelet waits for the answer to Allocate."""
MOST_PODS = 500
"""Pods that the helper is asked about at once."""

SAID_S = 5.0
"""After how long without an answer it is said that nobody has looked, in seconds."""
ERRORS, ERRORS_S = 5, 60.0
"""A helper that has answered only with errors, so often and for so many seconds, cannot look."""


class _Failing(Struct):
    """Looks that failed, all since the last that did not: since when (and as a time of day), and how many of
    them the helper answered with an error."""

    since_s: float
    since: str
    errors: int = 0


class FormerHolders(Struct):
    """What is left of the pods of ending holds.

    left: asks which processes of pods still run. files: what the run directory says of such pods. unseen: why
    nobody can look, so that the kubelet's word decides; empty if somebody could.
    """

    ledger: Ledger
    clock: Callable[[], float]
    ask: Callable[[], None]
    left: Callable[[Collection[PodUid]], Awaitable[Left]]
    files: LeftHolds
    unseen: str = ""
    _written: tuple[EndingHold, ...] | None = None
    _looked: bool = False
    _failing: _Failing | None = None

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
            self._failing = None
            return
        asked = frozenset(sorted(self.ledger.ending_pods)[:MOST_PODS])
        try:
            async with asyncio.timeout(LOOK_S):
                left = await self.left(asked)
        except TimeoutError:
            self._failed(asked, HardwareTimeout(f"no answer within {LOOK_S:g} s"))
        except PartageError as error:
            self._failed(asked, error)
        else:
            self._failing = None
            self._note(asked, left)
        self._write()
        if self.ledger.version != before:
            self.ask()

    async def look_at_once(self, pods: frozenset[PodUid]) -> Left | None:
        """What still runs of these pods; None if that is not known in ALLOCATE_LOOK_S."""
        try:
            async with asyncio.timeout(ALLOCATE_LOOK_S):
                left = await self.left(pods - self.files.freed())
        except (PartageError, TimeoutError) as error:
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

    def _failed(self, asked: frozenset[PodUid], error: PartageError) -> None:
        """They are waited for until somebody has looked. A helper that is away is not needed to look alone:
        no GPU changes without it. One that answers, and with nothing but errors, cannot look.
        """
        now_s = self.clock()
        if self._failing is None:
            log.info("not looked for processes", extra={"reason": str(error)})
            self._failing = _Failing(now_s, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        failing, answered = self._failing, not isinstance(error, DriverUnavailable | HardwareTimeout)
        failing.errors += answered
        lasts_s = now_s - failing.since_s
        if answered and (self.unseen or (failing.errors >= ERRORS and lasts_s >= ERRORS_S)):
            self._note(asked, Left(unseen=f"since {failing.since} the helper answers with an error: {error}"))
        elif lasts_s >= SAID_S:
            self.ledger.not_looked(asked, str(error), failing.since_s)

    def _note(self, asked: frozenset[PodUid], left: Left) -> None:
        """The kubelet's word decides if nobody can look."""
        self._looked = True
        if left.unseen != self.unseen:
            log.warning("processes that are left are not seen", extra={"reason": left.unseen or None})
            self.unseen = left.unseen
            self.ask()
        if left.unseen:
            self.ledger.by_the_kubelets_word(asked, left.unseen, self.clock())
        else:
            self.ledger.looked(asked, left.processes)
