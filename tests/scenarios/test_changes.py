"""Scenarios 13 and 21: what fails or is exchanged while pods run."""

from __future__ import annotations

import asyncio
import json

import pytest

from partage.model.mps import DaemonPhase, DaemonState
from partage.sim.node.faults import SetDaemonPhase, Vacate
from partage.units import GIB
from tests.agent.harness import (
    Place,
    SimulatedHelper,
    ids,
    native,
    offered,
    registered,
)
from tests.agent.hosted import hosted
from tests.agent.tenants import HOLDERS, works, write_logs
from tests.kubelet_script import LIMIT_S, ScriptedKubelet, held, wait_for

SHARED = "nvidia.com/gpu.shared"
MPS = "{{select: {{index: [0, 1]}}, mps: {{replicas: {}}}}}"


def daemons(helper: SimulatedHelper) -> list[DaemonState]:
    """Those of GPU 0 and 1, in this order."""
    assert helper.hardware is not None
    asked = asyncio.run_coroutine_threadsafe(_daemons(helper), helper._loop)
    return asked.result(LIMIT_S)


async def _daemons(helper: SimulatedHelper) -> list[DaemonState]:
    assert helper.hardware is not None
    index = {gpu.uuid: gpu.index for gpu in (await helper.hardware.observe()).gpus}
    found = [one for one in await helper.hardware.daemons() if one.gpu is not None]
    return sorted(found, key=lambda one: index[one.gpu] if one.gpu else -1)


def test_scenario_13_an_mps_daemon_with_three_clients_dies_and_then_its_limits_change(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper
) -> None:
    write_logs(node.container_logs)
    with hosted(node, machine=None, policy=native(MPS.format(3))) as agent:
        offered(kubelet, SHARED, 6)
        calls = registered(kubelet, SHARED).calls
        assert calls is not None
        mine = [share for share in ids(kubelet, SHARED) if agent.gpu(0)["uuid"] in share]
        names = [holder.pod for holder in HOLDERS.values()]
        for share in mine:
            calls.allocate([share])
        kubelet.pod_resources = held(
            {f"team/{name}": {"main": {SHARED: [share]}} for name, share in zip(names, mine, strict=True)}
        )
        for pid, container in enumerate(HOLDERS, 11):
            helper.inject(works(pid, GIB, container, mps=True))
        agent.wait(lambda: agent.gpu(0)["held"] == 3, "three pods")
        first, neighbour = daemons(helper)

        helper.inject(SetDaemonPhase(0, DaemonPhase.DEAD))
        wait_for(lambda: [one.phase for one in daemons(helper)] == [DaemonPhase.SERVING] * 2, what="served")
        again, _ = daemons(helper)
        assert again.limits == first.limits
        assert daemons(helper)[1].pid == neighbour.pid, "the daemon of the other GPU was touched"
        offered(kubelet, SHARED, 6)
        assert not any(len(message.devices) < 6 for message in _watch(kubelet).lists), (
            "a share was withdrawn under its pod"
        )

        node.write_policy(native(MPS.format(2)))
        wait_for(
            lambda: len(now := daemons(helper)) == 2 and now[1].limits != neighbour.limits,
            what="the free GPU changes at once",
        )
        agent.wait(lambda: agent.gpu(0)["phase"] == "waiting", "the held one waits")
        assert sorted(one["holders"][0]["pod"] for one in agent.gpu(0)["waitingFor"]) == sorted(names)
        assert (daemons(helper)[0].pid, daemons(helper)[0].limits) == (again.pid, again.limits)
        kubelet.pod_resources = held({})
        helper.inject(Vacate(0))
        offered(kubelet, SHARED, 4)
        first, neighbour = daemons(helper)
        assert first.limits == neighbour.limits


def _watch(kubelet: ScriptedKubelet):
    watch = registered(kubelet, SHARED).watch
    assert watch is not None
    return watch


@pytest.mark.parametrize("other", ["partage-state/1", "partage-state/3"], ids=["an older", "a newer"])
def test_scenario_21_a_state_file_of_another_version_costs_no_pod_its_share(
    node: Place, kubelet: ScriptedKubelet, helper: SimulatedHelper, other: str
) -> None:
    """Upgraded, and back again. What the kubelet knows is not in the file; MPS daemons are no children."""
    policy = native(MPS.format(3))
    with hosted(node, machine=None, policy=policy) as agent:
        offered(kubelet, SHARED, 6)
        before = ids(kubelet, SHARED)
        calls = registered(kubelet, SHARED).calls
        assert calls is not None
        calls.allocate(before[:1])
        kubelet.pod_resources = held({"team/train": {"main": {SHARED: before[:1]}}})
        agent.wait(lambda: agent.gpu(0)["held"] == 1, "the share held")
        agent.wait((node.state_dir / "state.json").exists, "the state saved")
        pids = [one.pid for one in daemons(helper)]
        assert agent.stop() == 0
    file = node.state_dir / "state.json"
    written = json.loads(file.read_text()) | {"version": other, "notKnownYet": {"a": 1}}
    file.write_text(json.dumps(written))
    kubelet.registered.clear()
    with hosted(node, machine=None, policy=policy) as agent:
        offered(kubelet, SHARED, 6)
        assert ids(kubelet, SHARED) == before
        agent.wait(lambda: agent.gpu(0).get("held") == 1, "still held")
        agent.wait(lambda: agent.gpu(0)["phase"] == "settled", "nothing to change")
        assert agent.report()["held"][0]["holders"][0]["pod"] == "train"
        assert [one.pid for one in daemons(helper)] == pids
        assert json.loads((node.state_dir / "state.json.corrupt-1").read_text()) == written
        assert agent.health()[0] == 200
