"""What the agent does while nothing happens, which is nearly always: on every node, for ever."""

from __future__ import annotations

import pytest

from bench.processes import at_rest
from tests.agent.harness import Place, native, registered, running, spawn
from tests.kubelet_script import ScriptedKubelet

WATCH_S = 11.0
MOST_WAKE_UPS = 1.5
"""A second, of agent and helper together: 0.6 were measured, and 2 before all was looked at in the same
moment. Processor time depends on the machine, and is left to ``make bench``."""


@pytest.mark.real
def test_agent_and_helper_sleep_while_nothing_happens(node: Place, kubelet: ScriptedKubelet) -> None:
    half = native("{select: all, time-slicing: {replicas: 48}}")
    with running(spawn(node, policy=half)) as agent:
        registered(kubelet, "nvidia.com/gpu.shared")
        agent.wait(lambda: agent.health() == (200, []), "well")
        node.in_report_file('"registered":true')
        helper = agent.helper_pid()
        assert helper is not None
        for _ in range(3):  # a busy machine adds wake-ups of what came before, and takes none away
            (found,) = at_rest([[agent.pid, helper]], WATCH_S)
            if found.wake_ups <= MOST_WAKE_UPS:
                break
        assert found.wake_ups <= MOST_WAKE_UPS
        assert agent.health() == (200, []), "it is awake all the same"
