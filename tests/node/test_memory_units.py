"""The laws of a node that is shared by amounts of memory, on cards of different size, in any interleaving."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from partage.model.gpu import Gpu
from partage.model.pod import Container, Pod
from partage.sim.kubelet.behaviour import Behaviour
from partage.sim.node.files.machine_file import read_machine
from tests.agent.harness import Place
from tests.node.loops import SimulatedTimeLoop
from tests.node.sharing import EXCLUSIVE, Share, Sharing, Terms, device_part
from tests.node.test_interleavings import HOW, NUMBERS, PAUSES_S, WAIT_LIMIT_S, Node
from tests.node.truth import Truth
from tests.node.world import Held, World

GIB = 2**30
MEMORY = "aliyun.com/gpu-mem"
KEPT = 2**29
"""512 MiB of each card are promised to nobody."""
CARDS = ("NVIDIA L4", "NVIDIA A40", "Tesla T4")
"""22.5, 45 and 15 GiB."""


@dataclass(frozen=True, slots=True)
class Units(Sharing):
    """A card in units of memory."""

    unit_gib: int = 1

    def shares(self, gpu: Gpu) -> dict[Share, Terms]:
        count = (gpu.memory_bytes - KEPT) // (self.unit_gib * GIB)
        return {
            (self.resources[0], f"{gpu.uuid}-_-{n}"): (self.resources[0], self.strategy, count)
            for n in range(count)
        }


def _units(name: str, strategy: str, unit_gib: int, resource: str = MEMORY) -> Units:
    called = "" if resource == MEMORY else f"name: {resource}, "
    entry = f"{called}{strategy}: {{unit: {unit_gib}Gi}}"
    return Units(name, entry, strategy, (resource,), unit_gib)


PAIRS = "example.com/pairs"
SHARINGS: tuple[Sharing, ...] = (
    _units("mps", "mps", 4),
    _units("mps", "mps", 4),
    _units("sliced", "time-slicing", 4),
    _units("large", "mps", 7, PAIRS),
    EXCLUSIVE,
)


class UnitsTruth(Truth):
    """No card gives more than it has, a container has one card, and its environment says which."""

    def __init__(self, world: World) -> None:
        super().__init__(world, settles_within_s=3 * 7200.0)

    def check(self) -> None:
        super().check()
        held = self._world.held()
        by_container: dict[tuple[str, str, str], list[Held]] = defaultdict(list)
        given: dict[str, int] = defaultdict(int)
        for one in held:
            by_container[one.pod, one.container, one.terms[0]].append(one)
        for share, unit in {one.share: _unit(one) for one in held if "-_-" in one.share[1]}.items():
            given[self._world.gpu(share)] += unit
        for some in by_container.values():
            if "-_-" in some[0].share[1]:
                assert len({one.gpu for one in some}) == 1, f"one container, two cards: {some}"
        memory = {str(gpu.uuid): gpu.memory_bytes for gpu in self._world.hardware.state.gpus.values()}
        for gpu, amount in given.items():
            assert amount <= memory[gpu] - KEPT, f"{gpu} has {memory[gpu]} and gives {amount}"
        self._environments()

    def _environments(self) -> None:
        for status in self._world.live():
            for one in status.containers:
                for resource, ids in one.ids.items():
                    if not ids or "-_-" not in ids[0]:
                        continue
                    uuid = ids[0].partition("-_-")[0]
                    gpu = next(gpu for gpu in self._world.hardware.state.gpus.values() if gpu.uuid == uuid)
                    unit = 7 if resource == PAIRS else 4
                    theirs = {
                        key: one.env[f"ALIYUN_COM_GPU_MEM_{key}"] for key in ("IDX", "CONTAINER", "DEV")
                    }
                    assert theirs == {
                        "IDX": str(gpu.index),
                        "CONTAINER": str(len(ids)),
                        "DEV": str(-(-gpu.memory_bytes // (unit * GIB))),
                    }
                    assert one.env["NVIDIA_VISIBLE_DEVICES"] == uuid
                    assert one.env["PARTAGE_MEMORY_BYTES"] == str(len(ids) * unit * GIB)


def _unit(one: Held) -> int:
    return (7 if one.share[0] == PAIRS else 4) * GIB


class UnitsNode(Node):
    """Pods ask for amounts; policies change units, strategies and names under them."""

    def _world(
        self, somewhere: Place, loop: SimulatedTimeLoop, behaviour: Behaviour, seed: int
    ) -> tuple[World, Truth]:
        rows = ", ".join(f"{{name: {card}}}" for card in CARDS)
        machine = read_machine(f"gpus: [{rows}]".encode(), "machine.yaml")
        world = World.of(somewhere, loop, machine, behaviour, seed)
        return world, UnitsTruth(world)

    plans = st.tuples(*[st.sampled_from(SHARINGS)] * len(CARDS))

    @precondition(lambda self: self.world.kubelet_runs)
    @rule(
        which=NUMBERS,
        amounts=st.lists(st.integers(1, 6), min_size=1, max_size=3),
        init=st.integers(0, 5),
        sidecar=st.booleans(),
        patience_s=WAIT_LIMIT_S,
    )
    def containers_have_amounts_of_their_own(
        self, which: int, amounts: list[int], init: int, sidecar: bool, patience_s: float
    ) -> None:
        resource = self._resource(which)
        inits = (Container("init", {resource: init}, "sidecar" if sidecar else "init"),) if init else ()
        mains = tuple(Container(f"main-{n}", {resource: amount}) for n, amount in enumerate(amounts))
        pod = Pod("default", f"pod-{next(self.names)}", (*inits, *mains))
        self.do(self.world.admit(pod, bound=False, patience_s=patience_s))

    @precondition(lambda self: self.world.kubelet_runs and not self.world.admissions)
    @rule(which=NUMBERS, amount=st.integers(1, 12), then_s=PAUSES_S)
    def a_refusal_is_right(self, which: int, amount: int, then_s: float) -> None:
        """A container is refused for want of one card only if no card has so much: by the kubelet's books."""
        self.do(self._tried(self._resource(which), amount))
        self.do(self.world.passes(then_s))

    async def _tried(self, resource: str, amount: int) -> None:
        world = self.world
        pod = Pod("default", f"pod-{next(self.names)}", (Container("main", {resource: amount}),))
        before = self._most_free(resource)
        await world.admit(pod, bound=False, patience_s=60.0)
        (said,) = [one.message for one in world.kubelet.pods() if one.pod.key == pod.key] or [""]
        if "of GPU memory" in said:
            after = self._most_free(resource)
            assert min(before, after) < amount, self._told(AssertionError(f"{before}, {after}: {said}"))

    def _most_free(self, resource: str) -> int:
        taken = {one.share for one in self.world.held()}
        free: dict[str, int] = defaultdict(int)
        for share, healthy in self.world.offered().items():
            if healthy and share[0] == resource and share not in taken:
                free[device_part(share[1])] += 1
        return max(free.values(), default=0)


TestUnitsNode = UnitsNode.TestCase
TestUnitsNode.settings = HOW
