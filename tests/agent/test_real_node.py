"""The agent on a node that is no simulation: the real helper, a stand-in for the driver's library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.harness import REAL, Place, healthy, native, place, registered, run_to_end, running, spawn
from tests.edges.hardware.conftest import stub_library as stub_library  # noqa: PLC0414 - a fixture
from tests.edges.hardware.stub import StubNode
from tests.kubelet_script import ScriptedKubelet, scripted_kubelet

GPU = "nvidia.com/gpu"


@pytest.fixture
def node() -> Iterator[Place]:
    with place() as somewhere:
        yield somewhere


@pytest.fixture
def driver(node: Place, stub_library: Path) -> StubNode:
    return StubNode(node.root / "driver", stub_library).add_h100s(4)


@pytest.fixture
def kubelet(node: Place) -> Iterator[ScriptedKubelet]:
    with scripted_kubelet(node.kubelet_dir, node.pod_resources) as one:
        yield one


def test_a_real_nodes_gpus_are_offered_through_the_helper(
    node: Place, driver: StubNode, kubelet: ScriptedKubelet
) -> None:
    with running(spawn(node, f"--driver-root={driver.root}", machine=REAL)) as agent:
        calls = registered(kubelet, GPU).calls
        assert healthy(kubelet, GPU) == [driver.uuid(index) for index in range(4)]
        assert calls is not None
        assert calls.allocate([driver.uuid(2)]).envs["NVIDIA_VISIBLE_DEVICES"] == driver.uuid(2)
        agent.wait(lambda: agent.health() == (200, []), "well")
        assert agent.report()["node"]["simulated"] is False


def test_the_agents_own_process_never_loads_the_driver(
    node: Place, driver: StubNode, kubelet: ScriptedKubelet
) -> None:
    with running(spawn(node, f"--driver-root={driver.root}", machine=REAL)) as agent:
        registered(kubelet, GPU)
        helper = agent.wait(agent.helper_pid)
        library = str(driver.library)
        assert library in Path(f"/proc/{helper}/maps").read_text(encoding="utf-8")
        assert library not in Path(f"/proc/{agent.pid}/maps").read_text(encoding="utf-8")


def test_a_lost_gpu_is_unhealthy_and_the_others_go_on(
    node: Place, driver: StubNode, kubelet: ScriptedKubelet
) -> None:
    with running(spawn(node, f"--driver-root={driver.root}", machine=REAL)) as agent:
        registered(kubelet, GPU)
        driver.lose(1)
        agent.wait(
            lambda: healthy(kubelet, GPU) == [driver.uuid(index) for index in (0, 2, 3)], "one GPU lost", 20
        )
        agent.wait(lambda: agent.gpu(1).get("health", {}).get("state") == "unhealthy", "told")


def test_mps_is_refused_until_there_are_daemons(
    node: Place, driver: StubNode, kubelet: ScriptedKubelet
) -> None:
    policy = native("{select: {index: [0, 1]}, mps: {replicas: 4}}")
    code, log = run_to_end(node, f"--driver-root={driver.root}", machine=REAL, policy=policy)
    assert code == 3
    assert "control daemons" in log
    assert kubelet.registered == []
