"""The driver is exchanged under a running agent, as the GPU Operator does it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from partage.agent.driver_gate import DriverGate
from partage.edges.hardware.driver_pause import NOTE, read_pause
from partage.edges.mps.keeper import MpsKeeper
from partage.model.mps import DaemonSpec
from partage.model.step import StartDaemon
from partage.plan.gpu_operator import not_validated, paused_by
from partage.sim.mps.node import MpsNode
from partage.sim.node.faults import Occupy, Vacate
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.units import GIB
from tests.agent.harness import REAL, AgentProcess, Place, healthy, native, place, running, spawn
from tests.agent.test_cluster import NodeServer, _kubeconfig
from tests.edges.hardware.conftest import stub_library as stub_library  # noqa: PLC0414 - a fixture
from tests.edges.hardware.stub import StubNode
from tests.edges.kube.scripted import api_server
from tests.kubelet_script import ScriptedKubelet, scripted_kubelet, until
from tests.sim.mps.programs import install_programs

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
DEPLOY = "nvidia.com/gpu.deploy.device-plugin"
LONG_S = 30.0


@pytest.mark.parametrize(
    ("labels", "paused"),
    [
        ({}, False),
        ({DEPLOY: "true", "nvidia.com/gpu.deploy.dcgm": "false"}, False),
        ({DEPLOY: "paused-for-driver-upgrade"}, True),
        ({DEPLOY: "false", "nvidia.com/gpu.deploy.dcgm": "paused-for-mig-change"}, True),
        ({"other.com/gpu.deploy.dcgm": "paused-for-mig-change"}, False),
    ],
)
def test_labels_of_the_operator_pause(labels: dict[str, str], paused: bool) -> None:
    assert bool(paused_by(labels)) is paused


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (None, ""),
        (set(), "has not written /v/driver-ready"),
        ({"driver-ready"}, "has not written /v/toolkit-ready"),
        ({"driver-ready", "toolkit-ready", ".driver-ctr-ready"}, ""),
    ],
)
def test_validations_come_in_order(files: set[str] | None, said: str) -> None:
    found = not_validated("/v", files)
    assert said in found if said else not found


def maps(agent: AgentProcess) -> str:
    """What the helper has mapped."""
    helper = agent.helper_pid()
    return Path(f"/proc/{helper}/maps").read_text(encoding="utf-8") if helper else ""


def upgraded(driver: StubNode, version: str) -> None:
    """Another file under the same name, as in a driver container's file system."""
    content = driver.library.read_bytes()
    driver.library.unlink()
    driver.library.write_bytes(content)
    driver.write(driver=version, nvml=f"12.{version}")


def test_the_agent_waits_for_the_operators_validations_before_it_opens_the_driver(stub_library: Path) -> None:
    with place() as node, scripted_kubelet(node.kubelet_dir, node.pod_resources) as kubelet:
        driver = StubNode(node.root / "driver", stub_library).add_h100s(2)
        validations = node.root / "validations"
        validations.mkdir()
        options = [f"--driver-root={driver.root}", f"--validations={validations}"]
        with running(spawn(node, *options, machine=REAL)) as agent:
            agent.wait(lambda: agent.health() == (503, ["paused"]), "paused")
            assert str(driver.library) not in maps(agent)
            (validations / "driver-ready").touch()
            (validations / "toolkit-ready").touch()
            agent.wait(lambda: len(healthy(kubelet, GPU)) == 2, "offered", LONG_S)
            for name in ("driver-ready", "toolkit-ready"):  # the validator is restarted
                (validations / name).unlink()
            agent.wait(lambda: agent.health() == (200, []), "well")
            os.kill(agent.helper_pid() or 0, 9)
            agent.wait(
                lambda: len(healthy(kubelet, GPU)) == 2 and agent.health() == (200, []), "goes on", LONG_S
            )
            agent.stop()
        assert not (node.run_dir / "driver-paused").exists()


async def test_a_daemon_whose_clients_leave_during_the_pause_is_stopped_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hardware = SimulatedHardware(load_machine("1xh100-sxm5-80gb"))
    (uuid,) = [gpu.uuid for gpu in await hardware.observe()]
    await hardware.perform(StartDaemon(uuid, DaemonSpec(uuid, uuid)))
    await hardware.inject(Occupy(0, pid=4711, mps=True))
    gate = DriverGate(tmp_path, None, hardware, hardware.observe)
    task = asyncio.create_task(gate.watch(0.01))
    try:
        gate.know_labels({DEPLOY: "paused-for-driver-upgrade"})
        await until(lambda: read_pause(tmp_path) and "MPS daemon stays" in caplog.text)
        assert len(await hardware.daemons()) == 1, "its client keeps it"
        await hardware.inject(Vacate(0))
        await until(lambda: not hardware.state.daemons)
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def _cluster(
    stub_library: Path, policy: str
) -> AsyncIterator[tuple[Place, StubNode, ScriptedKubelet, NodeServer, AgentProcess]]:
    async with api_server() as server:
        api = NodeServer(server)
        with place() as node, scripted_kubelet(node.kubelet_dir, node.pod_resources) as kubelet:
            driver = StubNode(node.root / "driver", stub_library).add_h100s(2)
            driver.write(**{f"gpu.{index}.live": "direct" for index in range(2)})
            install_programs(
                driver.root / "usr" / "bin", MpsNode({driver.uuid(index): 80 * GIB for index in range(2)})
            )
            options = [f"--cluster={_kubeconfig(node.root, server.url)}", "--node-name=n1"]
            options += [f"--driver-root={driver.root}", "--validations=off"]
            with running(spawn(node, *options, machine=REAL, policy=policy)) as agent:
                try:
                    yield node, driver, kubelet, api, agent
                finally:
                    keeper = MpsKeeper(node.run_dir, driver.root)
                    for one in await keeper.states():
                        await keeper.stop(one.device, force=True)


async def _wait(agent: AgentProcess, condition: Any, what: str) -> None:
    await asyncio.to_thread(agent.wait, condition, what, LONG_S)


async def test_a_label_of_the_operator_frees_the_driver_and_the_agent_comes_back_on_the_new_one(
    stub_library: Path,
) -> None:
    policy = native("{select: {index: 0}, mps: {replicas: 4}}")
    async with _cluster(stub_library, policy) as (node, driver, kubelet, api, agent):
        await _wait(agent, lambda: len(healthy(kubelet, SHARED)) == 4, "MPS shares")
        await _wait(agent, lambda: api.applied, "labels: the Node is watched")
        keeper = MpsKeeper(node.run_dir, driver.root)
        assert len(await keeper.states()) == 1
        assert str(driver.library) in maps(agent)
        pid = agent.pid

        await api.edit(**{DEPLOY: "paused-for-driver-upgrade"})
        await _wait(agent, lambda: agent.health()[1] == ["paused"], "paused")
        await _wait(agent, lambda: str(driver.library) not in maps(agent), "the library is closed")
        await _wait(agent, lambda: any("MPS daemon stopped" in line for line in agent.log), "no daemon")
        assert [one.pid for one in await keeper.states() if one.pid] == []
        await _wait(agent, lambda: not healthy(kubelet, GPU) and not healthy(kubelet, SHARED), "not offered")

        upgraded(driver, "580.95.05")
        assert str(driver.library) not in maps(agent)
        await api.edit(**{DEPLOY: "true"})
        await _wait(agent, lambda: len(healthy(kubelet, SHARED)) == 4, "the shares with new daemons")
        await _wait(agent, lambda: len(healthy(kubelet, GPU)) == 1, "and the whole GPU")
        assert agent.pid == pid
        report = await asyncio.to_thread(agent.report)
        assert report["node"]["driver"]["version"] == "580.95.05"
        await _wait(agent, lambda: agent.health() == (200, []), "well")


def test_a_note_that_cannot_be_read_is_no_driver_that_may_be_used(tmp_path: Path) -> None:
    assert not read_pause(tmp_path)
    (tmp_path / NOTE).mkdir()
    assert "cannot be read: Is a directory" in read_pause(tmp_path)
