"""Taints of the own Node, against an API server on real sockets."""

import asyncio

from partage.model.node_labels import NodeTaint
from partage.sim.node.faults import LoseGpu, RaiseXid
from tests.agent.test_cluster import NodeServer, _agent, _until

STARTUP = {"key": "partage.dev/not-ready", "effect": "NoSchedule", "value": ""}
SICK = {"key": "partage.dev/gpu-unhealthy", "effect": "NoSchedule", "value": ""}
THEIRS = [
    {"key": "pool", "effect": "NoExecute", "value": "a", "timeAdded": "2026-01-01T00:00:00Z"},
    {"key": "partage.dev/not-ready", "effect": "NoExecute", "value": ""},
]


def registered_with_taints(api: NodeServer) -> None:
    """As a kubelet with --register-with-taints does."""
    api.taints = [THEIRS[0], STARTUP, THEIRS[1]]


async def test_a_node_is_tainted_while_it_is_asked_for_and_true_and_not_afterwards():
    taints = frozenset(NodeTaint)
    async with _agent(None, taints=taints, prepare=registered_with_taints, machine=None) as (
        _,
        api,
        agent,
        helper,
    ):
        await _until(lambda: api.taints == THEIRS, "the agent is ready", agent)
        await _until(lambda: api.watched, "a watch", agent)
        helper.inject(RaiseXid(1, 79), LoseGpu(1, "GPU has fallen off the bus"))
        await _until(lambda: api.taints == [*THEIRS, SICK], "a GPU is ill", agent)
        await api.taint(*THEIRS)
        await _until(lambda: api.taints == [*THEIRS, SICK], "someone else took it away", agent)
        code = await asyncio.to_thread(agent.stop)
        assert code == 0
        assert api.taints == THEIRS, "a Node without an agent is not tainted"


async def test_taints_that_are_not_asked_for_are_taken_away():
    """As after an upgrade that asks for them no more, where the agent of before was killed."""
    async with _agent(prepare=registered_with_taints) as (_, api, agent):
        await _until(lambda: api.taints == THEIRS, "taken away", agent)
