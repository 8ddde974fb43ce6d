"""What a plugin tells the kubelet between two turns, while some of its GPUs have to change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.agent.endpoints.plugin_set import AllocateContext, PluginSet
from partage.agent.endpoints.resource_plugin import PluginHooks, ResourcePlugin
from partage.model.gpu_use import Left, LeftProcess
from partage.model.ids import ContainerId, PodUid, ShareId, share_id
from partage.model.policy import Options
from partage.model.share import AllocationRefused, ContainerHold
from partage.plan.serve.kubelet_view import given_to_nobody_else
from tests.plan.test_turn import GPU, SHARED_ONES, Turning, desired


class ChangingNode(Turning):
    """Four exclusive GPUs. The first two are held by pods and have to change; the others are free."""

    def __init__(self) -> None:
        super().__init__()
        self.left = Left()
        hooks = PluginHooks(
            self.ledger,
            lambda: self.now_s,
            _nobody,
            self.left_of,
            allocated=lambda: None,
            limited=lambda answer, _: answer,
            registering=lambda: None,
            refused=lambda *_: None,
        )
        self.plugins = PluginSet(hooks)
        self.first, self.second, self.third, self.fourth = (share_id(gpu.uuid) for gpu in self.inventory)
        self.publish()
        self.ledger.allocated(GPU, [self.first, self.second], self.now_s)
        self.named(self.first, self.second)
        self.desired = desired(SHARED_ONES, self.inventory)
        self.publish()

    @property
    def plugin(self) -> ResourcePlugin:
        return self.plugins.by_name[GPU]

    def publish(self) -> None:
        self.turn()
        self.plugins.publish(self.view, AllocateContext(self.inventory, Options(), "/run/partage"))

    def named(self, *shares: ShareId) -> None:
        self.now_s += 1
        holds = [ContainerHold("default", share, "main", GPU, (share,)) for share in shares]
        self.ledger.observed(holds, self.now_s)

    async def left_of(self, pods: frozenset[PodUid]) -> Left:
        self.asked = pods
        return self.left

    def unhealthy(self) -> set[ShareId]:
        return {row.id for row in self.plugin.devices().rows if not row.healthy}


async def _nobody() -> Sequence[ContainerHold]:
    return ()


@pytest.fixture
def node() -> ChangingNode:
    return ChangingNode()


def test_a_share_that_was_just_given_back_is_the_last_choice(node: ChangingNode):
    """Its holder has ended, and the agent does not know it yet."""
    assert not node.unhealthy()
    assert node.plugin.preferred([node.first, node.third, node.fourth], [], 1) != [node.first]
    assert sorted(node.plugin.preferred([node.first, node.third, node.fourth], [], 2)) == sorted(
        [node.third, node.fourth]
    )


def test_where_nothing_else_is_left_the_kubelet_gets_what_it_has(node: ChangingNode):
    assert node.plugin.preferred([node.first], [], 1) == [node.first]


async def test_with_the_last_free_share_the_held_ones_become_unhealthy_at_once(node: ChangingNode):
    await node.plugin.allocate([node.third])
    assert not node.unhealthy(), "one is left"
    await node.plugin.allocate([node.fourth])
    assert node.unhealthy() == {node.first, node.second}


async def test_what_the_kubelet_calls_free_and_did_not_take_becomes_unhealthy_with_them(node: ChangingNode):
    await node.plugin.allocate([node.third])
    assert node.plugin.preferred([node.first, node.fourth], [], 1) == [node.fourth]
    await node.plugin.allocate([node.fourth])
    assert node.unhealthy() == {node.first, node.second}


def test_a_kubelet_that_may_be_a_new_one_gets_held_shares_as_healthy(node: ChangingNode):
    node.ledger.allocated(GPU, [node.third, node.fourth], node.now_s)
    node.publish()
    assert node.unhealthy() == {node.first, node.second}
    node.plugin.registering()
    assert not node.unhealthy()
    node.publish()
    assert not node.unhealthy(), "no turn may change that before their holders are named"
    node.named(node.first, node.second)
    node.publish()
    assert node.unhealthy() == {node.first, node.second}


async def test_a_withdrawn_id_is_answered_as_long_as_it_is_listed(node: ChangingNode):
    node.named(node.second)
    node.publish()
    assert node.first in node.unhealthy()
    await node.plugin.allocate([node.first])
    assert (GPU, node.first) in {entry.hold for entry in node.ledger.entries()}


async def test_a_share_with_a_process_left_is_refused_and_listed_as_unhealthy_before(node: ChangingNode):
    former, ended = PodUid("u1"), PodUid("u2")
    node.ledger.know_pods({GPU: {node.first: frozenset({former}), node.second: frozenset({ended})}})
    node.left = Left((LeftProcess(former, ContainerId("c"), 7, "train", "D"),))
    with pytest.raises(AllocationRefused, match=r"process train \(pid 7\) of its former pod u1 still runs"):
        await node.plugin.allocate([node.first, node.second])
    assert node.asked == {former, ended}
    assert node.unhealthy() == {node.first}
    node.publish()
    assert node.unhealthy() == {node.first}, "the next turn says the same"
    assert node.plugin.asked.refusals == 1
    await node.plugin.allocate([node.third])
    assert node.asked == {former, ended}, "for a share whose holders have all ended nobody is asked"


@given(
    st.lists(
        st.sampled_from(
            ["allocate 2", "allocate 3", "allocate 0", "free 0", "free 2", "name 2", "turn", "register"]
        ),
        max_size=12,
    )
)
def test_what_is_prepared_for_an_allocate_says_what_the_ledger_says(story: list[str]):
    """The list between two turns, by the rule of a turn on the ledger as it is then."""
    node = ChangingNode()
    ids = [node.first, node.second, node.third, node.fourth]
    for step in story:
        what, _, number = step.partition(" ")
        share = ids[int(number or 0)]
        if what == "turn":
            node.publish()
        elif what == "register":
            node.plugin.registering()
        elif what == "name":
            node.named(node.first, node.second, share)
        elif what == "free":
            node.ledger.offered_as_free(GPU, [share], node.now_s)
        else:
            rows = node.plugin.devices().rows
            asyncio.run(node.plugin.allocate([share]))
            held = node.ledger.held()
            mine, admitted = (by.get(GPU, frozenset()) for by in (held.ids, held.admitted))
            awaited = node.plugin.served.awaited - (mine - admitted)
            expected = given_to_nobody_else(rows, awaited, mine, held.largest.get(GPU, 1))
            assert node.plugin.devices().rows == expected, story
