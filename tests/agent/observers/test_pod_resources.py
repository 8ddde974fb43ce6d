"""When PodResources is asked: soon after an Allocate, seldom at rest, less when it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from partage.agent.observers.former_holders import FormerHolders
from partage.agent.observers.pod_resources import NodeNames, PodResourcesPoller
from partage.agent.options import Intervals
from partage.edges.files.node_notes import LeftHolds
from partage.edges.kubelet.checkpoint import CheckpointIdentity
from partage.errors import Unreachable
from partage.model.gpu_use import Left, LeftProcess
from partage.model.ids import ContainerId, GpuUuid, PodUid, ResourceName, ShareId
from partage.model.share import CheckpointHolds, ContainerHold
from partage.plan.serve.ledger import ADMISSION_S, Ledger
from partage.plan.serve.ledger_entry import Certainty
from tests.kubelet_script import until

GPU_A = ShareId("GPU-a")

GPU = ResourceName("nvidia.com/gpu")
QUICK = Intervals(holders_first_s=0.01, holders_s=0.2, holders_longest_s=3.0, check_longest_s=0.2)


class Kubelet:
    """PodResources and a checkpoint that say what they are told; a list makes it write the checkpoint.

    watches: whether it watches any list. writes: whether it writes the checkpoint. has: None: no file.
    """

    def __init__(self, **checkpoint: str) -> None:
        """checkpoint: ids, and the pods that hold them."""
        self.says: tuple[ContainerHold, ...] | Unreachable = ()
        self.has: CheckpointHolds | Unreachable | None = holds(**checkpoint)
        self.accepted = False
        self.may_know = True
        self.life = 0
        self.watches = self.writes = True
        self.asked = self.written = self.lists = self.looks = 0
        self.left = Left()
        self.run_dir = Path("/no/such/directory")

    async def held(self) -> tuple[ContainerHold, ...]:
        self.asked += 1
        said = self.says
        await asyncio.sleep(0)
        if isinstance(said, Unreachable):
            raise said
        return said

    async def left_of(self, pods: Collection[PodUid]) -> Left:
        """The helper's answer."""
        self.looks += 1
        return Left(tuple(one for one in self.left.processes if one.pod in pods), self.left.unseen)

    def resend(self) -> bool:
        self.lists += 1
        self.written += self.writes
        return self.watches

    def checkpoint(self) -> CheckpointHolds | None:
        if isinstance(self.has, Unreachable):
            raise self.has
        return self.has


class File:
    """The checkpoint of a kubelet."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.identity = lambda: CheckpointIdentity(1, kubelet.written)
        self.held = kubelet.checkpoint
        self.listed = dict


def holds(**pods: str) -> CheckpointHolds:
    """Ids of GPUs a, b, c, and the UIDs of their pods."""
    return {GPU: {ShareId(f"GPU-{gpu}"): frozenset(map(PodUid, uids.split())) for gpu, uids in pods.items()}}


def hold(pod: str, *ids: str, resource: ResourceName = GPU) -> ContainerHold:
    return ContainerHold("default", pod, "main", resource, tuple(map(ShareId, ids)))


def questions(kubelet: Kubelet, gpus: Callable[[], Iterable[str]] = lambda: ["GPU-a"]) -> PodResourcesPoller:
    ledger = Ledger()
    return PodResourcesPoller(
        pod_resources=kubelet,
        checkpoint=File(kubelet),
        ledger=ledger,
        clock=lambda: asyncio.get_running_loop().time(),
        ask=lambda: None,
        intervals=QUICK,
        names=lambda: NodeNames({GPU}, frozenset(map(GpuUuid, gpus())), frozenset(map(GpuUuid, gpus()))),
        kubelet=lambda: kubelet.life,
        resend=kubelet.resend,
        former=FormerHolders(
            ledger=ledger,
            clock=lambda: asyncio.get_running_loop().time(),
            ask=lambda: None,
            left=kubelet.left_of,
            files=LeftHolds(kubelet.run_dir),
        ),
        claims_seen=lambda: None,
        accepted=lambda: kubelet.accepted,
        may_know=lambda: kubelet.may_know,
    )


def certainties(one: PodResourcesPoller) -> dict[str, Certainty]:
    return {entry.id: entry.certainty for entry in one.ledger.entries()}


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
        kubelet.says = (hold("pod", "GPU-a"),)
        await until(lambda: certainties(one) == {"GPU-a": Certainty.OBSERVED})


@pytest.mark.parametrize("written_since", [True, False])
async def test_a_pod_that_ended_unnamed_is_over_when_the_checkpoint_that_had_it_has_it_no_more(
    written_since: bool,
) -> None:
    """If the file was not written since its Allocate, its id in it may be of the pod before."""
    kubelet = Kubelet()
    one, passed_s = questions(kubelet), [0.0]
    one.clock = lambda: asyncio.get_running_loop().time() + passed_s[0]
    async with asking(one):
        one.ledger.allocated(GPU, [GPU_A], one.clock())
        one.allocated()
        await asyncio.sleep(0)
        kubelet.has, kubelet.written = holds(a="u1"), kubelet.written + written_since
        await until(lambda: one.ledger.former_pods(GPU, [GPU_A]) == {"u1"})
        kubelet.has = holds()
        passed_s[0] = ADMISSION_S + 1
        asked = kubelet.asked
        await until(lambda: kubelet.asked > asked + 3)
        if written_since:
            await until(lambda: not one.ledger.entries())
        else:
            assert (certainties(one), kubelet.lists) == ({"GPU-a": Certainty.TENTATIVE}, 0)
            passed_s[0] = 121
            await until(lambda: not one.ledger.entries())


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
        kubelet.says = ()
        await until(lambda: not one.trouble)


async def test_other_vendors_devices_are_left_alone() -> None:
    kubelet = Kubelet()
    foreign = hold("a", "mlx5_0", resource=ResourceName("rdma/hca"))
    older = hold("b", "GPU-a::3", resource=ResourceName("nvidia.com/old"))
    kubelet.says = (foreign, older)
    kubelet.has = {ResourceName("rdma/hca"): {ShareId("mlx5_1"): frozenset({PodUid("uid")})}}
    one = questions(kubelet)
    async with asking(one):
        assert [entry.id for entry in one.ledger.entries()] == ["GPU-a::3"]


async def test_the_checkpoint_stands_in_for_a_first_answer() -> None:
    kubelet = Kubelet(a="uid")
    kubelet.says = Unreachable("not there")
    one = questions(kubelet)
    async with asking(one):
        assert one.known == {"GPU-a"}
        assert certainties(one) == {"GPU-a": Certainty.UNCONFIRMED}


async def test_a_new_checkpoint_ends_a_hold_also_while_podresources_does_not_answer() -> None:
    kubelet = Kubelet(a="uid")
    kubelet.says = Unreachable("not there")
    one = questions(kubelet)
    async with asking(one):
        assert certainties(one) == {"GPU-a": Certainty.UNCONFIRMED}
        kubelet.has = {}
        await until(lambda: certainties(one) == {}, 5.0)


async def test_without_checkpoint_and_answer_nothing_is_known() -> None:
    kubelet = Kubelet()
    kubelet.says, kubelet.has = Unreachable("not there"), Unreachable("its format is not known")
    one = questions(kubelet)
    async with asking(one):
        assert not one.known
        kubelet.has = holds(a="uid")
        await until(lambda: one.known == {"GPU-a"})
        assert not one.unreadable


async def test_a_checkpoint_that_is_not_there_is_no_empty_one() -> None:
    kubelet = Kubelet()
    kubelet.says, kubelet.has = Unreachable("no answer"), None
    one = questions(kubelet)
    async with asking(one):
        assert not one.known
        kubelet.says = (hold("pod", "GPU-a"),)
        await until(lambda: one.known == {"GPU-a"})
        assert certainties(one) == {"GPU-a": Certainty.OBSERVED}
        assert not one.unreadable


async def test_where_no_kubelet_is_nothing_was_given() -> None:
    kubelet = Kubelet()
    kubelet.says, kubelet.has, kubelet.may_know = Unreachable("not there"), None, False
    one = questions(kubelet)
    async with asking(one):
        assert one.known == {"GPU-a"}


async def test_a_kubelet_that_has_accepted_a_registration_has_a_checkpoint() -> None:
    kubelet = Kubelet()
    kubelet.has, kubelet.accepted = None, True
    one = questions(kubelet)
    async with asking(one):
        assert "has no checkpoint" in one.unreadable
        kubelet.has = holds(a="uid")
        await until(lambda: not one.unreadable)
        assert certainties(one) == {"GPU-a": Certainty.UNCONFIRMED}


async def test_an_unreadable_checkpoint_is_said() -> None:
    kubelet = Kubelet()
    kubelet.has = Unreachable("its format is not known")
    one = questions(kubelet)
    async with asking(one):
        assert one.unreadable == "its format is not known"
        assert one.known == {"GPU-a"}


async def test_what_the_checkpoint_has_and_podresources_does_not_name_is_held_from_the_start() -> None:
    """An agent that was away while a pod was admitted: an init container, or one not yet named."""
    kubelet = Kubelet(a="uid-1", b="uid-2")
    one = questions(kubelet)
    async with asking(one):
        assert certainties(one) == dict.fromkeys(("GPU-a", "GPU-b"), Certainty.UNCONFIRMED)
        asked = kubelet.asked
        kubelet.says = (hold("pod", "GPU-a"),)
        await until(lambda: certainties(one)["GPU-a"] is Certainty.OBSERVED)
        assert kubelet.asked - asked < 5, "PodResources is rate limited"
        assert "GPU-b" in certainties(one)
        kubelet.has = holds(a="uid-1")
        await until(lambda: "GPU-b" not in certainties(one))


async def test_gpus_that_appear_later_are_looked_up_in_answer_and_checkpoint() -> None:
    """The state is lost and the first look at the node takes long: nothing is thrown away meanwhile."""
    kubelet = Kubelet(b="uid-2")
    kubelet.says = (hold("pod", "GPU-a", resource=ResourceName("nvidia.com/old")),)
    gpus: list[str] = []
    one = questions(kubelet, lambda: gpus)
    async with asking(one):
        assert not one.known
        gpus[:] = ["GPU-a", "GPU-b"]
        one.now()
        await until(lambda: one.known == {"GPU-a", "GPU-b"})
        assert certainties(one) == {"GPU-a": Certainty.OBSERVED, "GPU-b": Certainty.UNCONFIRMED}


async def test_a_kubelet_that_has_just_started_and_names_nothing_proves_nothing() -> None:
    kubelet = Kubelet(a="uid")
    kubelet.says = (hold("pod", "GPU-a"),)
    one = questions(kubelet)
    async with asking(one):
        await until(lambda: certainties(one) == {"GPU-a": Certainty.OBSERVED})
        kubelet.says, kubelet.life = (), 1
        await until(lambda: kubelet.lists >= 2)
        assert certainties(one) == {"GPU-a": Certainty.UNCONFIRMED}
        kubelet.has = {}
        await until(lambda: certainties(one) == {})
        assert not one.unproven


@pytest.mark.parametrize("way", ["not written", "unreadable", "no list is watched"])
async def test_without_a_new_checkpoint_nothing_ends(way: str) -> None:
    kubelet = Kubelet(a="uid")
    kubelet.says = (hold("pod", "GPU-a"),)
    one = questions(kubelet)
    async with asking(one):
        await until(lambda: certainties(one) == {"GPU-a": Certainty.OBSERVED})
        kubelet.writes = way == "unreadable"
        kubelet.watches = way != "no list is watched"
        kubelet.has = Unreachable("permission denied") if way == "unreadable" else {}
        kubelet.says, kubelet.life = (), 1
        before = kubelet.lists
        await until(lambda: kubelet.lists > before and (bool(one.unproven) or not kubelet.watches))
        assert certainties(one) == {"GPU-a": Certainty.UNCONFIRMED}
        assert (
            one.unproven
            == {
                "not written": "the kubelet has not written its checkpoint for 1 s",
                "unreadable": "permission denied",
                "no list is watched": "",
            }[way]
        )


async def test_an_answer_during_which_the_kubelet_started_again_counts_for_nothing() -> None:
    kubelet = Kubelet()
    kubelet.says = (hold("pod", "GPU-a"),)
    one = questions(kubelet)
    async with asking(one):
        await until(lambda: certainties(one) == {"GPU-a": Certainty.OBSERVED})

        async def held() -> tuple[ContainerHold, ...]:
            kubelet.life += 1
            return ()

        kubelet.held = held  # type: ignore[method-assign]
        with pytest.raises(Unreachable, match="started again"):
            await one.ask_holders()
        assert certainties(one) == {"GPU-a": Certainty.OBSERVED}


async def test_a_gpu_that_waits_has_the_question_asked_at_once() -> None:
    kubelet = Kubelet()
    one = questions(kubelet)
    async with asking(one):
        before = kubelet.asked
        one.waited_for(waited=True)
        await until(lambda: kubelet.asked > before, 0.15)


# --- what is left of former holders ---------------------------------------------------------------


def left(*pods: str) -> Left:
    return Left(tuple(LeftProcess(PodUid(pod), ContainerId("c"), 7, "python", "D") for pod in pods))


async def test_a_share_is_free_when_nothing_of_its_former_pod_runs() -> None:
    kubelet = Kubelet(a="u1")
    kubelet.says, kubelet.left = (hold("pod", "GPU-a"),), left("u1")
    one = questions(kubelet)
    async with asking(one):
        await until(lambda: certainties(one) == {"GPU-a": Certainty.OBSERVED})
        looks = kubelet.looks
        assert looks == 1, "at first, to know whether somebody can look"
        kubelet.says = ()
        await until(lambda: certainties(one) == {"GPU-a": Certainty.ENDING})
        await until(lambda: kubelet.looks > looks + 2)
        assert one.ledger.held().left == {GPU: {"GPU-a"}}
        kubelet.left = Left()
        await until(lambda: not one.ledger.entries())
        looks, asked = kubelet.looks, kubelet.asked
        await until(lambda: kubelet.asked > asked + 1)
        assert kubelet.looks == looks, "nothing is asked at rest"


async def test_a_person_may_free_a_share_that_a_process_keeps(tmp_path: Path) -> None:
    kubelet = Kubelet(a="u1")
    kubelet.run_dir = tmp_path
    kubelet.says, kubelet.left = (hold("pod", "GPU-a"),), left("u1")
    one = questions(kubelet)
    async with asking(one):
        await until(lambda: certainties(one) == {"GPU-a": Certainty.OBSERVED})
        kubelet.says = ()
        await until(lambda: bool(one.ledger.held().left))
        LeftHolds(tmp_path).free([PodUid("u1")])
        await until(lambda: not one.ledger.entries())


async def test_the_next_agent_waits_for_what_the_one_before_waited_for(tmp_path: Path) -> None:
    kubelet = Kubelet(a="u1")
    kubelet.run_dir = tmp_path
    kubelet.says, kubelet.left = (hold("pod", "GPU-a"),), left("u1")
    one = questions(kubelet)
    async with asking(one):
        await until(lambda: certainties(one) == {"GPU-a": Certainty.OBSERVED})
        kubelet.says = ()
        await until(lambda: bool(one.ledger.held().left))
    kubelet.has = holds()
    two = questions(kubelet)
    async with asking(two):
        await until(lambda: two.ledger.held().left == {GPU: {"GPU-a"}})
        assert two.ledger.entries() == one.ledger.entries()
        kubelet.left = Left()
        await until(lambda: not two.ledger.entries())
    assert not list(tmp_path.iterdir())


async def test_where_nobody_can_look_the_kubelets_word_decides_and_it_is_said() -> None:
    kubelet = Kubelet(a="u1")
    kubelet.says, kubelet.left = (hold("pod", "GPU-a"),), Left(unseen="no hostPID")
    one = questions(kubelet)
    async with asking(one):
        await until(lambda: certainties(one) == {"GPU-a": Certainty.OBSERVED})
        await until(lambda: one.former.unseen == "no hostPID")
        kubelet.says = ()
        await until(lambda: not one.ledger.entries())
        kubelet.left = Left()
        await until(lambda: not one.former.unseen)


async def test_a_helper_that_does_not_answer_is_asked_again_and_allocate_does_not_wait_for_it() -> None:
    kubelet = Kubelet(a="u1")
    kubelet.says = (hold("pod", "GPU-a"),)
    one = questions(kubelet)
    answers = asyncio.Event()
    look = kubelet.left_of

    async def slow(pods: Collection[PodUid]) -> Left:
        await answers.wait()
        return await look(pods)

    one.former.left = slow
    async with asking(one):
        await until(lambda: certainties(one) == {"GPU-a": Certainty.OBSERVED})
        assert await one.left_at_once(frozenset({PodUid("u1")})) is None
        kubelet.says = ()
        await until(lambda: certainties(one) == {"GPU-a": Certainty.ENDING})
        assert not one.ledger.held().left, "nothing is known of it"
        answers.set()
        await until(lambda: not one.ledger.entries())


async def test_the_pods_of_shares_are_known_also_where_pod_resources_does_not_answer() -> None:
    kubelet = Kubelet()
    kubelet.says, kubelet.left = Unreachable("no socket"), left("u1")
    one = questions(kubelet)
    async with asking(one):
        one.ledger.allocated(GPU, [GPU_A], one.clock())
        kubelet.has, kubelet.written = holds(a="u1"), 1
        await until(lambda: one.ledger.former_pods(GPU, [GPU_A]) == {"u1"})
        one.ledger.offered_as_free(GPU, [GPU_A], one.clock())
        await until(lambda: one.ledger.held().left == {GPU: {"GPU-a"}})


async def test_the_checkpoint_is_read_for_pods_only_when_something_is_new() -> None:
    kubelet = Kubelet(a="u1")
    kubelet.says = (hold("pod", "GPU-a"),)
    one = questions(kubelet)
    async with asking(one):
        await until(lambda: one.ledger.former_pods(GPU, [GPU_A]) == {"u1"})
        kubelet.has = Unreachable("must not be read")
        asked = kubelet.asked
        await until(lambda: kubelet.asked > asked + 2)
        assert not one.unreadable
