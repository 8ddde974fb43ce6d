"""Policies that want MIG layouts, hardware on which steps take time, and the laws of a node where they are
made."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from partage.edges.files.journal import Unfinished, read_journal
from partage.model.gpu import Gpu
from partage.model.step import Created, Step
from partage.sim.kubelet.behaviour import Behaviour
from partage.sim.node.faults import Fault, ResetGpu, Vacate
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine import Machine
from partage.sim.node.state import SimulatedNode
from tests.agent.harness import Place
from tests.node.loops import Loop
from tests.node.sharing import Share, Sharing, Terms
from tests.node.truth import Truth
from tests.node.world import Held, World

NOT_MADE: tuple[Share, Terms] = (("the layout", "is not made"), ("", "", 0))
"""Stands for all that a GPU would offer if its layout lived."""
SEEN_WITHIN_S = 20.0
"""After so long the agent has seen what became of a GPU, where its calls are answered."""


@dataclass(frozen=True, slots=True, repr=False)
class Layout(Sharing):
    """A layout to be made. profiles: of its MIG devices; None: no MIG mode."""

    profiles: tuple[str, ...] | None = None

    def shares(self, gpu: Gpu) -> dict[Share, Terms]:
        """What the GPU offers once the layout lives, and nothing else."""
        return super(Layout, self).shares(gpu) if self.lives_on(gpu) else dict([NOT_MADE])

    def lives_on(self, gpu: Gpu) -> bool:
        """Nothing else is there either, and nothing waits for a reset."""
        mode = gpu.mig_mode
        assert mode is not None
        if gpu.empty_instances or mode.current != mode.pending or mode.current is (self.profiles is None):
            return False
        return Counter(one.profile for one in gpu.mig_devices) == Counter(self.profiles or ())


def made(*profiles: str, replicas: int = 1) -> Layout:
    """A layout, on top of it whole devices or time slices."""
    sharing = "" if replicas == 1 else f", time-slicing: {{replicas: {replicas}}}"
    name = f"{' '.join(profiles)}{f' x{replicas}' if replicas > 1 else ''}"
    resources = ("nvidia.com/gpu",) * replicas  # of MIG devices, the number alone counts
    return Layout(name, f"mig: {{layout: [{', '.join(profiles)}]{sharing}}}", "mig", resources, profiles)


DISABLED = Layout("no mig", "mig: {layout: all-disabled}", "exclusive", ("nvidia.com/gpu",), None)


def live_devices(state: SimulatedNode) -> set[str]:
    """UUIDs of all that a container can have at this moment, on lost GPUs as well."""
    found: set[str] = set()
    for gpu in state.gpus.values():
        found |= {mig.uuid for mig in gpu.mig_devices} if gpu.mig_enabled else {gpu.uuid}
    return found


class SlowHardware(SimulatedHardware):
    """A step takes step_s, and goes on when nobody waits for it any more, as in a helper's thread.

    homes: GPU UUID of every device that ever lived. taken: devices that a fault took, and when. forsaken:
    whoever asked is dead, and does nothing more.
    """

    def __init__(self, machine: Machine, loop: Loop) -> None:
        super().__init__(machine, clock=loop.time)
        self._loop = loop
        self._acts: set[asyncio.Task[Created | None]] = set()
        self._asked: set[asyncio.Future[Created | None]] = set()
        self.forsaken = False
        self.step_s = 0.0
        self.homes: dict[str, str] = {}
        self.taken: dict[str, float] = {}
        self._learn()

    async def perform(self, step: Step) -> Created | None:
        if self.forsaken:
            raise asyncio.CancelledError
        act = self._loop.create_task(self._slowly(step))
        self._acts.add(act)
        act.add_done_callback(self._over)
        asked = asyncio.shield(act)
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        return await asked

    async def _slowly(self, step: Step) -> Created | None:
        await asyncio.sleep(self.step_s)
        try:
            return await super().perform(step)
        finally:
            self._learn()

    def _over(self, act: asyncio.Task[Created | None]) -> None:
        self._acts.discard(act)
        if not act.cancelled():
            act.exception()  # whoever waited has heard it

    def forsake(self) -> None:
        """The agent is killed: nobody waits for what has begun."""
        self.forsaken = True
        for asked in tuple(self._asked):
            asked.cancel()

    async def inject(self, fault: Fault) -> None:
        before = live_devices(self.state)
        await super().inject(fault)
        self._learn()
        self.taken |= dict.fromkeys(before - live_devices(self.state), self._loop.time())

    def _learn(self) -> None:
        for gpu in self.state.gpus.values():
            self.homes[gpu.uuid] = gpu.uuid
            self.homes |= {mig.uuid: gpu.uuid for mig in gpu.mig_devices}

    async def close(self) -> None:
        for act in tuple(self._acts):
            act.cancel()
        await asyncio.gather(*self._acts, return_exceptions=True)


@dataclass(slots=True)
class LayoutWorld(World):
    """A world whose policies want layouts.

    sick: GPUs that only a reset may heal. unreachable: calls fail or hang, and the agent may not see what
    happens.
    """

    sick: set[int] = field(default_factory=set)
    unreachable: bool = False

    @classmethod
    def of(cls, place: Place, loop: Loop, machine: Machine, behaviour: Behaviour, seed: int) -> Self:
        world = super(LayoutWorld, cls).of(place, loop, machine, behaviour, seed)
        world.hardware = SlowHardware(machine, loop)
        return world

    @property
    def slow(self) -> SlowHardware:
        """The hardware, as what it is."""
        assert isinstance(self.hardware, SlowHardware)
        return self.hardware

    def start_agent(self) -> None:
        super(LayoutWorld, self).start_agent()
        self.slow.forsaken = False

    async def kill_agent(self) -> None:
        self.slow.forsake()
        await super(LayoutWorld, self).kill_agent()

    async def heal(self) -> None:
        """Nobody is in the way any more either. A GPU with MIG devices is reset later."""
        for index in self.hardware.state.gpus:
            await self.fault(Vacate(index))
        await super(LayoutWorld, self).heal()
        self.unreachable = False

    async def reset_the_sick(self) -> None:
        """Nobody uses them any more."""
        for index in sorted(self.sick):
            await self.fault(ResetGpu(index))
        self.sick.clear()
        self.troubles.discard("hardware")

    async def close(self) -> None:
        await super(LayoutWorld, self).close()
        await self.slow.close()

    def _learn_devices(self) -> None:
        self.gpu_of |= self.slow.homes


class LayoutTruth(Truth):
    """The laws of every node, and those of layouts."""

    def __init__(self, world: LayoutWorld) -> None:
        super().__init__(world)
        self._node = world

    def check(self) -> None:
        super().check()
        live, taken = live_devices(self._node.hardware.state), self._node.slow.taken
        for one in self._node.held():
            device = _device(one.share)
            assert one.over or device in live or device in taken, f"{one} was destroyed under its holder"
        self._what_is_free_lives(live)

    def _what_is_free_lives(self, live: set[str]) -> None:
        """Of what a fault took the agent has to hear first."""
        node = self._node
        if not node.kubelet_runs:
            return
        held = {one.share for one in node.held()}
        lost = {node.hardware.state.gpus[index].uuid for index in node.hardware.state.lost}
        began_s = node.agent.since_s if node.agent else 0.0
        for share, healthy in node.offered().items():
            if not healthy or share in held:
                continue
            device = _device(share)
            news_s = max(node.slow.taken.get(device, 0.0), began_s)
            is_seen = not node.unreachable and node.loop.time() - news_s > SEEN_WITHIN_S
            if device not in live and (device not in node.slow.taken or is_seen):
                raise AssertionError(f"{share} is offered as healthy, and does not live")
            quiet = node.loop.time() - max(node.quiet_since_s, began_s) > SEEN_WITHIN_S
            assert not (quiet and not node.unreachable and node.gpu(share) in lost), (
                f"{share} is offered, and lost"
            )

    def _complaints_of(
        self, gpu: str, wanted: dict[Share, Terms], held: Sequence[Held], offered: dict[Share, bool]
    ) -> list[str]:
        if any(self._node.hardware.state.gpus[index].uuid == gpu for index in self._node.sick):
            return []
        if NOT_MADE[0] not in wanted:
            return super()._complaints_of(gpu, wanted, held, offered)
        if any(one.gpu == gpu for one in held):
            return []
        agent = self._node.agent
        said = agent.status.report.gpus if agent and agent.status.report else ()
        why = [f"{one.plan}" for one in said if one.uuid == gpu]
        return [f"{gpu} has not its layout, and nobody is in the way: {why}"]

    def _restless(self) -> list[str]:
        """All that was changed is written down as done."""
        complaints = super()._restless()
        agent = self._node.agent
        if agent is not None and agent.status.report is not None:
            complaints += [
                f"unsettled: {one.plan}" for one in agent.status.report.gpus if one.plan and one.plan.reason
            ]
        return complaints + self._unfinished()

    def _unfinished(self) -> list[str]:
        """A journal without an end, unless the policy has nothing to say of one of its GPUs."""
        last, gpus = read_journal(self._node.place.state_dir), self._node.hardware.state.gpus
        planned = {gpus[n].uuid for n, one in enumerate(self._node.plan) if isinstance(one, Layout)}
        is_left = isinstance(last, Unfinished) and not set(last.header.before) <= planned
        return [f"journal: {last}"] if last is not None and not is_left else []


def _device(share: Share) -> str:
    return share[1].partition("::")[0]
