"""When PodResources is asked: soon after an Allocate, seldom at rest, less when it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from partage.agent.observers.pod_resources import NodeNames, PodResourcesPoller
from partage.agent.options import Intervals
from partage.errors import Unreachable
from partage.model.allocation import ContainerHold
from partage.model.ids import GpuUuid, ResourceName, ShareId
from partage.plan.serve.ledger import Certainty, Ledger
from tests.kubelet_script import until

GPU_A = ShareId("GPU-a")

GPU = ResourceName("nvidia.com/gpu")
QUICK = Intervals(holders_first_s=0.01, holders_s=0.2, holders_longest_s=3.0)


class Kubelet:
    """PodResources that answers as it is told."""

    def __init__(self) -> None:
        self.says: tuple[ContainerHold, ...] | Unreachable = ()
        self.asked = 0

    async def held(self) -> tuple[ContainerHold, ...]:
        self.asked += 1
        await asyncio.sleep(0)
        if isinstance(self.says, Unreachable):
            raise self.says
        return self.says


def questions(
    kubelet: Kubelet, *, there: bool = True, checkpoint: dict[ResourceName, frozenset[ShareId]] | None = None
) -> PodResourcesPoller:
    return PodResourcesPoller(
        pod_resources=kubelet,
        ledger=Ledger(),
        clock=lambda: asyncio.get_running_loop().time(),
        ask=lambda: None,
        intervals=QUICK,
        names=lambda: NodeNames({GPU}, {GpuUuid("GPU-a")}),
        checkpoint=lambda: checkpoint,
        there=lambda: there,
    )


@asynccontextmanager
async def asking(one: PodResourcesPoller) -> AsyncIterator[None]:
    task = asyncio.create_task(one.run())
    try:
        await one.asked_once.wait()
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_an_allocate_is_followed_by_questions_until_its_pod_is_named() -> None:
    kubelet = Kubelet()
    one = questions(kubelet)
    async with asking(one):
        one.ledger.allocated(GPU, [GPU_A], one.clock())
        one.soon()
        await until(lambda: kubelet.asked >= 3)
        kubelet.says = (ContainerHold("default", "pod", "main", GPU, (GPU_A,)),)
        await until(lambda: [entry.certainty for entry in one.ledger.entries()] == [Certainty.OBSERVED])


async def test_many_allocates_ask_one_question() -> None:
    kubelet = Kubelet()
    one = questions(kubelet)
    async with asking(one):
        before = kubelet.asked
        for _ in range(50):
            one.soon()
        await until(lambda: kubelet.asked > before)
        assert kubelet.asked == before + 1


async def test_a_kubelet_that_refuses_is_asked_ever_less() -> None:
    kubelet = Kubelet()
    kubelet.says = Unreachable("rate limited")
    one = questions(kubelet)
    async with asking(one):
        for _ in range(100):
            one.soon()
            await asyncio.sleep(0)
        assert kubelet.asked == 1
        assert one.trouble == "rate limited"
        assert not one.known
        kubelet.says = ()
        await until(lambda: one.known)
        assert not one.trouble


async def test_other_vendors_devices_are_none_of_our_business() -> None:
    kubelet = Kubelet()
    foreign = ContainerHold("default", "a", "main", ResourceName("rdma/hca"), (ShareId("mlx5_0"),))
    older = ContainerHold("default", "b", "main", ResourceName("nvidia.com/old"), (ShareId("GPU-a::3"),))
    kubelet.says = (foreign, older)
    one = questions(kubelet)
    async with asking(one):
        assert [entry.id for entry in one.ledger.entries()] == ["GPU-a::3"]


async def test_the_checkpoint_stands_in_for_a_first_answer() -> None:
    kubelet = Kubelet()
    kubelet.says = Unreachable("not there")
    one = questions(
        kubelet,
        checkpoint={
            GPU: frozenset({ShareId("GPU-a")}),
            ResourceName("rdma/hca"): frozenset({ShareId("mlx5_0")}),
        },
    )
    async with asking(one):
        assert one.known
        assert [(entry.id, entry.certainty) for entry in one.ledger.entries()] == [
            ("GPU-a", Certainty.TENTATIVE)
        ]


async def test_what_the_checkpoint_has_and_nobody_names_yet_is_held_from_the_start() -> None:
    """An agent that was away while a pod was admitted: an init container, or one not yet named."""
    kubelet = Kubelet()
    one = questions(kubelet, checkpoint={GPU: frozenset({ShareId("GPU-a"), ShareId("GPU-b")})})
    async with asking(one):
        assert {entry.id: entry.certainty for entry in one.ledger.entries()} == dict.fromkeys(
            ("GPU-a", "GPU-b"), Certainty.TENTATIVE
        )
        asked = kubelet.asked
        kubelet.says = (ContainerHold("default", "pod", "main", GPU, (GPU_A,)),)
        await until(lambda: one.ledger.entries()[0].certainty is Certainty.OBSERVED)
        assert kubelet.asked - asked < 5, "PodResources is rate limited"


async def test_without_socket_and_checkpoint_the_node_goes_on() -> None:
    kubelet = Kubelet()
    kubelet.says = Unreachable("not there")
    one = questions(kubelet, there=False)
    async with asking(one):
        assert one.known


async def test_a_gpu_that_waits_has_the_question_asked_at_once() -> None:
    kubelet = Kubelet()
    one = questions(kubelet)
    async with asking(one):
        before = kubelet.asked
        one.waited_for(waited=True)
        await until(lambda: kubelet.asked > before, 0.15)
