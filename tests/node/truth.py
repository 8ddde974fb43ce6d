"""What has to hold of the agent, at every moment and once faults have stopped. Raises AssertionError."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from partage.model.pod import Container, Pod
from partage.plan.report import Report
from partage.plan.serve.ledger_entry import Certainty, LedgerEntry
from partage.sim.kubelet.pods import PodPhase
from tests.node.sharing import Share, Terms, device_part
from tests.node.world import Held, World

SETTLES_WITHIN_S = 7200.0
"""Of simulated time. A GPU that failed in its probation, and again, waits twice as long each time."""
QUIET_S = 75.0
"""After so long without news the agent has asked PodResources again, be it that it was refused before."""


class Truth:
    """Holds one world to its laws. Remembers when who held what last changed."""

    def __init__(self, world: World, settles_within_s: float = SETTLES_WITHIN_S) -> None:
        self._world = world
        self._settles_within_s = settles_within_s
        self._holder: dict[Share, tuple[str, str]] = {}
        self._changed_s: dict[Share, float] = {}

    def check(self) -> None:
        """What holds at every moment."""
        world = self._world
        world.notice_admissions()
        world.notice_agent()
        assert not world.loop.trouble, world.loop.trouble
        assert not world.kubelet.protocol_errors, world.kubelet.protocol_errors
        held = world.held()
        _no_share_has_two_pods(held)
        in_use = [one for one in held if not one.over]
        _one_strategy_on_each_gpu(in_use)
        self._free_shares_are_of_the_strategy_that_is_held(held, in_use)
        self._ledger_says_nothing_else(in_use)
        if not world.troubles and world.loop.time() - world.quiet_since_s > QUIET_S:
            self._ledger_says_everything(in_use)

    def _free_shares_are_of_the_strategy_that_is_held(self, held: list[Held], in_use: list[Held]) -> None:
        """What might be given out next would not break the law."""
        taken = {one.share for one in held}
        offered = self._world.offered() if self._world.kubelet_runs else {}
        free = {share for share, healthy in offered.items() if healthy and share not in taken}
        gpus: dict[str, dict[str, Share]] = defaultdict(dict)
        devices: dict[str, dict[str, Share]] = defaultdict(dict)
        for share in (*free, *(one.share for one in in_use)):
            gpus[self._world.gpu(share)][_kind(share)] = share
            devices[device_part(share[1])][share[0] if _kind(share) == "mig" else ""] = share
        for where, found in (*gpus.items(), *devices.items()):
            assert len(found) == 1, f"{where} is offered or held in several ways: {found}"

    # --- the ledger ---

    def _ledger_says_nothing_else(self, in_use: list[Held]) -> None:
        """A share that PodResources names for one running container has that holder, or a doubtful one."""
        agent = self._world.agent
        now: dict[Share, tuple[str, str]] = {}
        for one in in_use:
            if one.named:
                assert one.share not in now, f"{one.share} is named for {now[one.share]} and {one}"
                now[one.share] = (one.pod, one.container)
        for share in {*now, *self._holder}:
            if now.get(share) != self._holder.get(share):
                self._changed_s[share] = self._world.loop.time()
        self._holder = now
        if agent is None or agent.status.report is None:
            return
        report = agent.status.report
        entries = _entries(report)
        for share, holder in now.items():
            entry = entries.get(share)
            if entry is None or report.made.clock_s <= self._changed_s[share]:
                continue
            named = [(f"{one.namespace}/{one.pod}", one.container) for one in entry.holders]
            unnamed = entry.certainty is Certainty.UNCONFIRMED and not named
            known = entry.certainty is Certainty.TENTATIVE or unnamed or holder in named
            assert known, f"{holder} has {share}: {entry}"

    def _ledger_says_everything(self, in_use: list[Held]) -> None:
        """Once all have had time to speak, it is exact; in doubt only where ended pods are named, too."""
        world = self._world
        if world.agent is None or not world.kubelet_runs or world.under_way():
            return
        report = world.agent.status.report
        assert report is not None, "the agent says nothing"
        if world.loop.time() - world.agent.since_s < QUIET_S:
            return
        entries = _entries(report)
        waiting = {status.pod.key for status in world.live() if status.waiting}
        for one in in_use:
            if not one.named or one.pod in waiting or world.is_unknown(one):
                continue
            entry = entries.get(one.share)
            assert entry is not None, f"{one} is not in the ledger"
            assert entry.certainty in (Certainty.OBSERVED, Certainty.PROVEN), f"{one} has no name: {entry}"
            if not world.kubelet.behaviour.lists_ended_pods:
                assert entry.holder is not None, f"{one} is doubtful: {entry}"
        if not world.kubelet.behaviour.lists_ended_pods:
            known = {one.share for one in world.held()}
            for share, entry in entries.items():
                assert share in known or entry.certainty is Certainty.TENTATIVE, f"nobody holds {entry}"

    # --- once faults have stopped ---

    async def settles(self) -> None:
        """Everything comes to rest as it is wanted, GPUs that somebody keeps from changing aside."""
        await self._until(self._unsettled)

    def _unsettled(self) -> list[str]:
        world = self._world
        complaints = self._silent_or_unregistered()
        offered, held = world.offered(), world.held()
        unknown = {one.gpu for one in held if world.is_unknown(one) or world.has_unknown_terms(one)}
        for gpu, wanted in world.wanted().items():
            mine = {share: healthy for share, healthy in offered.items() if world.gpu(share) == gpu}
            if gpu not in unknown:
                complaints += self._complaints_of(gpu, wanted, held, mine)
        return complaints

    def _complaints_of(
        self, gpu: str, wanted: dict[Share, Terms], held: Sequence[Held], offered: dict[Share, bool]
    ) -> list[str]:
        """What is not as it should be on one GPU. offered: what the kubelet knows of it.

        What an init container was given counts as held for as long as its pod lives: the kubelet counts so.
        """
        mine = [one for one in held if one.gpu == gpu]
        if all(wanted.get(one.share) == one.terms for one in mine):
            healthy = {share for share, well in offered.items() if well}
            return _differ(gpu, healthy, set(wanted)) + self._waits(gpu, False)
        kept = {one.share for one in mine}
        return _differ(gpu, set(offered), kept) + self._waits(gpu, True)

    def _silent_or_unregistered(self) -> list[str]:
        agent = self._world.agent
        if agent is None:
            return []
        if agent.status.report is None:
            return ["the agent says nothing"]
        states = (state for state in agent.status.endpoints() if not state.registered)
        return [f"{state.resource} is not registered: {state.last_error}" for state in states]

    def _waits(self, gpu: str, should: bool) -> list[str]:
        """What the agent says of it, where we hear it."""
        agent = self._world.agent
        if agent is None or agent.status.report is None:
            return []
        does = any(one.uuid == gpu and one.waits for one in agent.status.report.gpus)
        return [] if does is should else [f"{gpu} {'waits' if does else 'does not wait'}"]

    async def comes_to_rest(self) -> None:
        """All pods have ended: everything is offered, nobody is waited for, nothing is held."""
        world = self._world
        for status in world.live():
            await world.end(status.pod)
        await world.forget_ended()
        await self._until(self._restless)
        await self._everything_can_be_had()

    def _restless(self) -> list[str]:
        world = self._world
        complaints = self._unsettled()
        if world.agent is not None and world.agent.status.report is not None:
            complaints += [f"held: {entry}" for entry in world.agent.status.report.entries]
        wanted = {share for shares in world.wanted().values() for share in shares}
        return complaints + _differ("the node", set(world.offered()), wanted)

    async def _everything_can_be_had(self) -> None:
        """None is lost: one pod for each share, and all of them run."""
        world = self._world
        wanted = {share for shares in world.wanted().values() for share in shares}
        pods = [
            Pod("last", f"pod-{number}", (Container("main", {resource: 1}),))
            for number, (resource, _) in enumerate(sorted(wanted))
        ]
        for pod in pods:
            await world.admit(pod, bound=False, patience_s=60.0)
            self.check()
        running = {status.pod.key for status in world.live() if status.phase is PodPhase.RUNNING}
        assert running == {pod.key for pod in pods}, f"some do not run: {world.kubelet.pods()}"
        assert {one.share for one in world.held()} == wanted
        for pod in pods:
            await world.end(pod)
        await world.forget_ended()

    async def _until(self, complaints: Callable[[], list[str]]) -> None:
        """Wait until there is nothing to complain of, and the laws hold all the time."""
        world = self._world
        pause_s, end_s = 0.05, world.loop.time() + self._settles_within_s
        while found := complaints():
            assert world.loop.time() < end_s, f"it does not settle: {found}"
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 10.0)
            await world.retry()
            self.check()


def _no_share_has_two_pods(held: list[Held]) -> None:
    """Not even under two names."""
    owner: dict[str, Held] = {}
    for one in held:
        other = owner.setdefault(one.share[1], one)
        assert other.pod == one.pod, f"given twice: {other} and {one}"


def _one_strategy_on_each_gpu(in_use: list[Held]) -> None:
    """And one way to share each device: MIG devices of one GPU are apart by their hardware."""
    seen: dict[str, Held] = {}
    for one in in_use:
        other = seen.setdefault(one.gpu, one)
        assert (other.terms[1], _kind(other.share)) == (one.terms[1], _kind(one.share)), f"{other} and {one}"
        device = device_part(one.share[1])
        other = seen.setdefault(device, one)
        assert other.terms[2] == one.terms[2], f"{other} and {one}"


def _kind(share: Share) -> str:
    """Resources that belong together on one GPU."""
    resource = share[0].removeprefix("nvidia.com/")
    if resource.startswith("mig-"):
        return "mig"
    return "clients" if resource in ("gpu.big", "gpu.small") else resource


def _entries(report: Report) -> dict[Share, LedgerEntry]:
    return {(entry.resource, entry.id): entry for entry in report.entries}


def _differ(where: str, found: set[Share], wanted: set[Share]) -> list[str]:
    surplus, missing = sorted(found - wanted), sorted(wanted - found)
    return [f"{where}: surplus {surplus}, missing {missing}"] if surplus or missing else []
