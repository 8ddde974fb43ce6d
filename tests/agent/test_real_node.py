"""The agent on a node that is no simulation: the real helper, a stand-in for the driver's library."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from partage.edges.mps.keeper import MpsKeeper
from partage.model.mps import DaemonPhase, DaemonState
from partage.sim.mps.node import MpsNode
from partage.units import GIB
from tests.agent.harness import REAL, AgentProcess, Place, healthy, native, registered, running, spawn
from tests.edges.hardware.conftest import stub_library as stub_library  # noqa: PLC0414 - a fixture
from tests.edges.hardware.stub import StubNode
from tests.kubelet_script import ScriptedKubelet
from tests.sim.mps.programs import install_programs

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
LONG_S = 30.0


@pytest.fixture
def driver(node: Place, stub_library: Path) -> StubNode:
    return StubNode(node.root / "driver", stub_library).add_h100s(4)


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


def test_shares_that_go_out_by_cdi_are_healthy_once_a_spec_has_the_drivers_libraries(
    node: Place, driver: StubNode, kubelet: ScriptedKubelet
) -> None:
    """As in the chart's pod: no nvidia-ctk. The node's own toolkit writes its spec later."""
    ways = "{device-list-strategy: cdi-cri, nvidia-ctk-path: /nowhere/nvidia-ctk}"
    cdi = node.root / "cdi"
    cdi.mkdir()
    flags = (f"--driver-root={driver.root}", f"--cdi-dir={cdi}")
    policy = f"version: partage/v1\nresources: {ways}\n"
    with running(spawn(node, *flags, machine=REAL, policy=policy)) as agent:
        calls = registered(kubelet, GPU).calls
        agent.wait(lambda: "cdi-incomplete" in agent.degraded(), "the agent says so")
        assert healthy(kubelet, GPU) == []
        library = "/usr/lib64/libcuda.so.550.163.01"
        spec = {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
            "containerEdits": {"mounts": [{"hostPath": library, "containerPath": library}]},
        }
        (cdi / "nvidia.json").write_text(json.dumps(spec))
        agent.wait(lambda: len(healthy(kubelet, GPU)) == 4, "all are healthy", limit_s=LONG_S)
        assert calls is not None
        (given,) = calls.allocate([driver.uuid(2)]).cdi_devices
        ours = json.loads((cdi / "k8s.device-plugin.nvidia.com-gpu.json").read_text())
        assert given.name in {f"{ours['kind']}={device['name']}" for device in ours["devices"]}
        assert ours["containerEdits"]["mounts"][0]["hostPath"] == library


ENV = "accept-nvidia-visible-devices-envvar-when-unprivileged"


def test_the_guarantee_follows_what_the_toolkit_accepts(
    node: Place, driver: StubNode, kubelet: ScriptedKubelet
) -> None:
    """An admin edits the toolkit's file: what is said changes, and nothing else."""
    config = "etc/nvidia-container-runtime/config.toml"
    said = []
    for text in (f"{ENV} = false\n", f"{ENV} = true\n"):
        driver.file(config, text)
        with running(spawn(node, f"--driver-root={driver.root}", machine=REAL)) as agent:
            calls = registered(kubelet, GPU).calls
            assert calls is not None
            said.append(calls.allocate([driver.uuid(0)]).envs["PARTAGE_GUARANTEE"])
            (row,) = agent.report()["resources"]
            assert row["guarantee"] == said[-1]
            agent.wait(
                lambda: {gpu["phase"] for gpu in agent.report()["gpus"]} == {"settled"}, "no GPU drains"
            )
            agent.stop()
        kubelet.registered.clear()
    assert said == ["hard", "advisory"]


@pytest.mark.parametrize("text", [f"{ENV} = false\n", "# nothing\n"])
def test_check_looks_at_the_toolkit_of_this_node(node: Place, driver: StubNode, text: str) -> None:
    driver.file("etc/nvidia-container-runtime/config.toml", text)
    command = [sys.executable, "-m", "partage", "check", "--this-node", "-o", "json"]
    done = subprocess.run(
        [*command, f"--driver-root={driver.root}"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    said = [one["message"] for one in json.loads(done.stdout)["problems"] if ENV in one["message"]]
    assert len(said) == 1
    assert ("no GPU: /etc/" if "false" in text else "is not set, which means true") in said[0]


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


def test_an_xid_that_names_instance_0_of_a_gpu_without_mig_mode_takes_the_gpu_away(
    node: Place, driver: StubNode, kubelet: ScriptedKubelet
) -> None:
    with running(spawn(node, f"--driver-root={driver.root}", machine=REAL)) as agent:
        registered(kubelet, GPU)
        agent.wait(lambda: agent.health() == (200, []), "well")
        driver.raise_xid(1, 95, gi=0, ci=0)
        others = [driver.uuid(index) for index in (0, 2, 3)]
        agent.wait(lambda: healthy(kubelet, GPU) == others, "unhealthy", LONG_S)


def test_mig_devices_are_offered_although_their_gpu_never_joins_the_fabric(
    node: Place, driver: StubNode, kubelet: ScriptedKubelet
) -> None:
    driver.with_live_mig(0)
    policy = native("{select: {index: [0]}, mig: {layout: [3g.40gb, 3g.40gb]}}")
    with running(spawn(node, f"--driver-root={driver.root}", machine=REAL, policy=policy)) as agent:
        agent.wait(lambda: len(healthy(kubelet, "nvidia.com/mig-3g.40gb")) == 2, "MIG devices", LONG_S)
        driver.write(**{"gpu.1.field.230": 1})
        agent.wait(lambda: len(healthy(kubelet, GPU)) == 2, "conditions of all GPUs were asked for", LONG_S)
        assert len(healthy(kubelet, "nvidia.com/mig-3g.40gb")) == 2


@pytest.fixture
def keeper(node: Place, driver: StubNode) -> Iterator[MpsKeeper]:
    """Whose daemons outlive every agent, and end with the test."""
    driver.write(**{f"gpu.{index}.live": "direct" for index in range(4)})
    install_programs(
        driver.root / "usr" / "bin", MpsNode({driver.uuid(index): 80 * GIB for index in range(4)})
    )
    keeper = MpsKeeper(node.run_dir, driver.root)

    async def stop_all() -> None:
        for one in await keeper.states():
            await keeper.stop(one.device, force=True)

    try:
        yield keeper
    finally:
        asyncio.run(stop_all())


def states(keeper: MpsKeeper) -> dict[str, DaemonState]:
    return {one.device: one for one in asyncio.run(keeper.states())}


def pids(keeper: MpsKeeper) -> dict[str, int | None]:
    return {device: daemon.pid for device, daemon in states(keeper).items()}


def test_mps_on_a_real_node_has_daemons_that_outlive_the_agent_and_end_with_the_policy(
    node: Place, driver: StubNode, kubelet: ScriptedKubelet, keeper: MpsKeeper
) -> None:
    """The stand-ins are NVML's library and NVIDIA's control program; all between them is ours and real."""
    policy = native("{select: {index: [0, 1]}, mps: {replicas: 4}}")
    root = f"--driver-root={driver.root}"
    with running(spawn(node, root, machine=REAL, policy=policy)) as agent:
        agent.wait(lambda: len(healthy(kubelet, SHARED)) == 8, "shares with their daemons", LONG_S)
        standing = states(keeper)
        assert standing.keys() == {driver.uuid(0), driver.uuid(1)}
        assert all(one.phase is DaemonPhase.SERVING for one in standing.values())
        calls = registered(kubelet, SHARED).calls
        assert calls is not None
        share = f"{driver.uuid(0)}::0"
        answer = calls.allocate([share])
        assert {mount.host_path for mount in answer.mounts} == {
            str(node.run_dir / "mps" / driver.uuid(0) / part) for part in ("pipe", "shm")
        }
        for mount in answer.mounts:
            assert Path(mount.host_path).is_dir()
        agent.kill()
    assert states(keeper) == standing, "a daemon did not outlive the agent"
    with running(spawn(node, root, machine=REAL, policy=policy)) as agent:
        agent.wait(lambda: len(healthy(kubelet, SHARED)) == 8, "the same shares", LONG_S)
        os.kill(standing[driver.uuid(1)].pid or 0, signal.SIGKILL)
        agent.wait(
            lambda: len(healthy(kubelet, SHARED)) == 4, "the shares of the dead daemon unhealthy", LONG_S
        )
        agent.wait(lambda: len(healthy(kubelet, SHARED)) == 8, "and well again", LONG_S)
        assert states(keeper)[driver.uuid(0)].pid == standing[driver.uuid(0)].pid
        node.write_policy(native())
        agent.wait(lambda: len(healthy(kubelet, GPU)) == 4, "whole GPUs again", LONG_S)
    assert not states(keeper)


@pytest.mark.real
def test_whatever_is_killed_compute_modes_and_directories_end_as_the_policy_says(
    node: Place, driver: StubNode, kubelet: ScriptedKubelet, keeper: MpsKeeper
) -> None:
    """The helper first, then the agent, the helper and a daemon at once."""
    policy, root = native("{select: {index: [0, 1]}, mps: {replicas: 4}}"), f"--driver-root={driver.root}"
    with running(spawn(node, root, machine=REAL, policy=policy)) as agent:
        agent.wait(lambda: len(healthy(kubelet, SHARED)) == 8, "shares with their daemons", LONG_S)
        standing = pids(keeper)
        helper = agent.wait(agent.helper_pid)
        os.kill(helper, signal.SIGKILL)
        agent.wait(lambda: agent.helper_pid() not in (None, helper), "another helper", LONG_S)
        agent.wait(lambda: agent.health()[0] == 200 and len(healthy(kubelet, SHARED)) == 8, "well", LONG_S)
        assert pids(keeper) == standing, "a daemon went with the helper"
        for pid in (agent.helper_pid(), standing[driver.uuid(0)], agent.pid):
            os.kill(pid or 0, signal.SIGKILL)
        agent.finish()
    with running(spawn(node, root, machine=REAL, policy=native())) as agent:
        agent.wait(lambda: len(healthy(kubelet, GPU)) == 4, "whole GPUs", LONG_S)
        agent.wait(lambda: not states(keeper), "no daemon left", LONG_S)
        agent.wait(lambda: compute_modes(agent) == ["DEFAULT"] * 4, "compute modes given back", LONG_S)
    assert not [path for path in (node.run_dir / "mps").iterdir() if path.is_dir()]


def compute_modes(agent: AgentProcess) -> list[str]:
    return [gpu["computeMode"].upper() for gpu in agent.report()["node"]["gpus"]]
