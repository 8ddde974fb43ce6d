"""Polls PodResources for the holders of shares, and updates the ledger.

Where an answer of PodResources is not enough, the kubelet's checkpoint decides: the kubelet is asked, gets
every list once more, and writes its checkpoint for that (docs/adr/0059).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf

from msgspec import Struct, field

from partage.agent.observers.former_holders import FormerHolders
from partage.agent.options import Intervals
from partage.agent.supervision import wait_at_most
from partage.edges.host.waiting import until_tick
from partage.edges.kubelet.checkpoint import CheckpointIdentity
from partage.edges.kubelet.pod_resources import KubeletRefused
from partage.edges.kubelet.port import Checkpoint, PodResources
from partage.errors import Unreachable
from partage.model.gpu_use import Left
from partage.model.ids import DeviceUuid, GpuUuid, PodUid, ResourceName, ShareId, device_of
from partage.model.share import CheckpointHolds, ContainerHold
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.ledger_entry import Certainty
from partage.values import Frozen

log = logging.getLogger(__name__)

CHECKPOINT_S = 1.0
"""How long the kubelet has to write its checkpoint after a list, in seconds. It does so at once."""
CHECKPOINT_STEP_S = 0.02

_UNNAMED = (Certainty.TENTATIVE, Certainty.UNCONFIRMED)
"""Their container is expected to be named soon: after its admission, or after a restart of the kubelet."""


_NOT_LOOKED = object()
"""In place of the checkpoint's identity: an Allocate is being answered."""


class NodeNames(Frozen):
    """Partage's resource names, the UUIDs of the node's GPUs, and of all GPUs and MIG devices."""

    resources: Collection[ResourceName]
    gpus: frozenset[GpuUuid]
    devices: Collection[DeviceUuid]

    def has(self, resource: ResourceName, ids: Iterable[ShareId]) -> bool:
        """Whether a hold is of these resources or devices. Its name may be from an earlier policy or another
        plugin."""
        return resource in self.resources or any(device_of(share) in self.devices for share in ids)


class PodResourcesPoller(Struct):
    """Asks PodResources soon after an Allocate, else regularly; pauses longer after a refusal.

    names: the current names. kubelet: the identity of the running kubelet. resend: sends the kubelet every
    list once more; False: it watches none now. former: looks for processes that are left of former holders.
    claims_seen: told after each answer, which names containers with claims, too. accepted: whether the
    kubelet has accepted a registration. may_know: whether there may be a kubelet that
    knows of holds and has no checkpoint. known: UUIDs of the GPUs whose holders are known. listed: ids in the
    last lists of the plugins before, as the first checkpoint that was read has them. trouble: why the last
    request failed; unreadable: why the checkpoint could not be read; unproven: why the ends of holds cannot
    be proven; empty if they could. answered_s: when the last question was asked that was answered.
    asked_once: set after the first request, also if it failed.
    """

    pod_resources: PodResources
    checkpoint: Checkpoint
    ledger: Ledger
    clock: Callable[[], float]
    ask: Callable[[], None]
    intervals: Intervals
    names: Callable[[], NodeNames]
    kubelet: Callable[[], object]
    resend: Callable[[], bool]
    former: FormerHolders
    claims_seen: Callable[[], None]
    accepted: Callable[[], bool]
    may_know: Callable[[], bool]
    known: frozenset[GpuUuid] = frozenset()
    listed: Mapping[ResourceName, frozenset[ShareId]] = field(default_factory=dict)
    trouble: str = ""
    unreadable: str = ""
    unproven: str = ""
    answered_s: float = -inf
    _read: object = None
    _at_allocate: object = None
    _is_complete: bool = False
    _was_read: bool = False
    _kubelet: object = None
    _pause_s: float = 0.0
    _waited: bool = False
    _answer: bool = False
    _checked: frozenset[tuple[ResourceName, ShareId]] = frozenset()
    _check_pause_s: float = 0.0
    _check_s: float = 0.0
    asked_once: asyncio.Event = field(default_factory=asyncio.Event)
    _soon: asyncio.Event = field(default_factory=asyncio.Event)

    def knows_holders(self) -> bool:
        """Whether it is known now who holds what."""
        return bool(self.known) and not self.trouble

    def allocated(self) -> None:
        """An Allocate is answered: ask soon. A checkpoint that is another one than now, after the answer, has
        been written since."""
        self._at_allocate = _NOT_LOOKED
        asyncio.get_running_loop().call_soon(self._note_checkpoint)
        self.soon()

    def _note_checkpoint(self) -> None:
        self._at_allocate = self.checkpoint.identity()

    def soon(self) -> None:
        """Ask soon: PodResources will list a pod shortly."""
        if not self.trouble:
            self.now()

    def now(self) -> None:
        """Ask soon, also if the last request failed: a GPU has appeared whose holders are not known."""
        if not self._soon.is_set():
            self._pause_s = self.intervals.holders_first_s
            self._soon.set()

    def waited_for(self, *, waited: bool, answer: bool = False) -> None:
        """Note whether a GPU waits for a share to be released, or something waits for an answer, whatever it
        is: then ask more often.
        """
        if (waited or answer) and not (self._waited or self._answer) and not self.trouble:
            self._soon.set()
        self._waited, self._answer = waited, answer

    async def left_at_once(self, pods: frozenset[PodUid]) -> Left | None:
        """What still runs of these pods, for Allocate; None if that is not known at once."""
        left = await self.former.look_at_once(pods)
        if left is not None and left.processes:  # it is said what is waited for, and soon asked again
            self.soon()
            self.ask()
        return left

    async def ask_holders(self) -> tuple[ContainerHold, ...]:
        """Ask once. Raises Unreachable."""
        names, before = self.names(), self.ledger.version
        self.former.restore()
        self._restore(names)
        asked_s = self.clock()
        try:
            said, kubelet = await self._held()
        except Unreachable as error:
            self._note(str(error))
            self._know_pods()
            refused = isinstance(error, KubeletRefused) and not self.unreadable
            if self._is_complete or refused:  # the checkpoint has all holds, though without names
                self._know(names, before)
            raise
        self._note("")
        if kubelet != self._kubelet:
            self._kubelet = kubelet
            self.ledger.kubelet_started()
        now = self.names()
        holders = tuple(row for row in said if now.has(row.resource, row.ids))
        self.ledger.observed(holders, asked_s)
        self.claims_seen()
        self.answered_s = max(self.answered_s, asked_s)
        self._know_pods()
        if self.ledger.ending_pods:
            await self.former.look()
        if self._answer:
            self.ask()
        self._know(names, before)
        return holders

    async def _held(self) -> tuple[Sequence[ContainerHold], object]:
        """The holds, and the kubelet that named them."""
        kubelet = self.kubelet()
        said = await self.pod_resources.held()
        if self.kubelet() != kubelet:
            raise Unreachable("the kubelet started again while it was asked")
        return said, kubelet

    async def run(self) -> None:
        """Ask regularly."""
        while True:
            await self._rest()
            asked_s = self.clock()
            try:
                await self.ask_holders()
            except Unreachable:
                self._pause_s = min(max(self._pause_s, 0.5) * 2, self.intervals.holders_longest_s)
            else:
                self._pause_s = self._next_pause_s()
            self.asked_once.set()
            if self.trouble or self.former.wants_look:
                await self.former.look()
            await self._check(asked_s)

    def _next_pause_s(self) -> float:
        """The pause after an answer: short while a pod is expected to be named soon, or a process to end."""
        ending = bool(self.ledger.ending_pods)
        often = self._waited or self._answer or ending
        longest_s = self.intervals.holders_waited_s if often else self.intervals.holders_s
        unnamed = any(entry.certainty in _UNNAMED for entry in self.ledger.entries())
        soon_s = max(self._pause_s, self.intervals.holders_first_s) * 2
        return min(soon_s, longest_s) if unnamed or ending else longest_s

    # --- the checkpoint ---

    def _restore(self, names: NodeNames) -> None:
        """All ids in the checkpoint that are of GPUs not known yet are held.

        PodResources never lists an ordinary init container, and lists a pod only shortly after its
        admission. An agent that starts then would take their shares for free. Without a file nothing was
        ever given if there is no kubelet yet; one that is there has to say it itself (PodResources).
        """
        if names.gpus <= self.known and not self.unreadable:
            return
        now_s = self.clock()
        try:
            held = self._must_have() if self.accepted() else self.checkpoint.held()
            listed = self.checkpoint.listed()
        except Unreachable as error:
            self._is_complete, self.unreadable = False, self._warned(str(error), self.unreadable)
            return
        self._is_complete, self.unreadable = held is not None or not self.may_know(), ""
        if listed is not None and not self._was_read:
            self._was_read, self.listed = True, listed
        for resource, ids in (held or {}).items():
            if names.has(resource, ids):
                self.ledger.restored(resource, ids, now_s)
        self.ledger.know_pods(held or {})

    def _must_have(self) -> CheckpointHolds:
        """Held ids, of a kubelet that has accepted a registration: it has a file. Raises Unreachable."""
        held = self.checkpoint.held()
        if held is None:
            raise Unreachable("the kubelet has accepted a registration, and has no checkpoint")
        return held

    async def _check(self, asked_s: float) -> None:
        """Compare with a checkpoint that was written after the question of asked_s; less often each time.

        Also if there was no answer: then ended pods may still be in it, but what is not in it is not held.
        """
        wanted = self.ledger.must_check
        if not wanted:
            self._checked, self.unproven = wanted, ""
            return
        if wanted != self._checked:
            self._checked, self._check_pause_s, self._check_s = wanted, 0.0, asked_s
        if asked_s < self._check_s:
            return
        before = self.checkpoint.identity()
        if self.resend():
            longest_s = self.intervals.holders_s if self._waited else self.intervals.check_longest_s
            self._check_pause_s = min(max(self._check_pause_s * 2, 1.0), longest_s)
            self._check_s = asked_s + self._check_pause_s
            await self._compare(before, asked_s)

    async def _compare(self, before: CheckpointIdentity | None, asked_s: float) -> None:
        version = self.ledger.version
        if not await self._is_written_after(before):
            trouble = f"the kubelet has not written its checkpoint for {CHECKPOINT_S:g} s"
            self.unproven = self._warned(trouble, self.unproven)
            return
        try:
            self.ledger.checked(self._must_have(), asked_s)
            self.unproven = ""
        except Unreachable as error:
            self.unproven = self._warned(str(error), self.unproven)
        if self.ledger.version != version:
            self.ask()

    async def _is_written_after(self, before: CheckpointIdentity | None) -> bool:
        for _ in range(round(CHECKPOINT_S / CHECKPOINT_STEP_S)):
            if self.checkpoint.identity() not in (before, None):
                return True
            await asyncio.sleep(CHECKPOINT_STEP_S)
        return False

    def _know_pods(self) -> None:
        """The checkpoint says which pod holds an id. It is read when there is an id of an unknown pod, and
        something is new."""
        if not self.ledger.lacks_pods:
            return
        now = self.checkpoint.identity(), self.ledger.version
        if now == self._read:
            return
        self._read = now
        is_newer = self._at_allocate is not _NOT_LOOKED and now[0] != self._at_allocate
        try:
            self.ledger.know_pods(self.checkpoint.held() or {}, is_newer=is_newer)
        except Unreachable as error:  # ids of unknown pods end by the kubelet's word
            log.debug("pods of holders are not known", extra={"reason": str(error)})

    # --- what follows ---

    def _know(self, names: NodeNames, version: int) -> None:
        """The holders of all GPUs of now are known; a turn is needed if that or the ledger is new."""
        if self.ledger.version != version or not names.gpus <= self.known:
            self.known |= names.gpus
            self.ask()

    async def _rest(self) -> None:
        """Pause; an Allocate shortens the pause to holders_first_s, which the kubelet needs."""
        half_s = self.intervals.holders_s / 2
        if self._pause_s >= 2 * half_s:  # at rest, together with the others
            await until_tick(half_s, self._soon, least_s=self._pause_s - half_s)
        else:
            await wait_at_most(self._soon, self._pause_s)
        if not self._soon.is_set():
            return
        self._soon.clear()
        await asyncio.sleep(self.intervals.holders_first_s)

    def _warned(self, trouble: str, before: str) -> str:
        """The trouble; logged if it is new."""
        if trouble != before:
            log.warning("ends of holds cannot be proven", extra={"reason": trouble})
            self.ask()
        return trouble

    def _note(self, trouble: str) -> None:
        if bool(trouble) != bool(self.trouble):
            if trouble:
                log.warning("holders are not known", extra={"reason": trouble})
            else:
                log.info("holders are known")
            self.ask()
        self.trouble = trouble
