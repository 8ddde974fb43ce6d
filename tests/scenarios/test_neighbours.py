"""Scenarios 16 and 17: who else is on the node, in a container and beside the agent."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

from partage.agent.kubelet_service import run
from partage.agent.options import AgentOptions, Intervals
from partage.agent.status.status import AgentStatus
from partage.edges.hardware.nvml import NvmlHardware
from partage.units import GIB
from tests.agent.harness import Place, native, registered
from tests.agent.hosted import hosted
from tests.agent.tenants import HOLDERS, NOTEBOOK, TRAIN, UIDS, write_logs
from tests.edges.hardware.conftest import stub_library as stub_library  # noqa: PLC0414 - a fixture
from tests.edges.hardware.stub import StubNode
from tests.edges.kubelet.shelf import listening_child
from tests.kubelet_script import ScriptedKubelet, held, until

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
SLICE = f"/kubepods.slice/kubepods-pod{UIDS[TRAIN].replace('-', '_')}.slice/cri-containerd-{TRAIN}.scope"
WITHIN = {
    "its main program": SLICE,
    "a shell over SSH": f"{SLICE}/user.slice/user-0.slice/session-3.scope",
    "a container in a Docker of its own": f"{SLICE}/docker/{NOTEBOOK}",
    "a static program on musl": SLICE,
}
"""What works in the container, and its cgroup. None of them has loaded a library of Partage's."""


async def test_scenario_16_whatever_works_in_a_container_counts_as_the_container(
    node: Place, kubelet: ScriptedKubelet, stub_library: Path
) -> None:
    """The driver's list and the cgroup say who it is, and not a library that a program may not load."""
    driver = StubNode(node.root / "driver", stub_library).add_h100s(1)
    driver.see_all()
    for pid, (name, cgroup) in enumerate(WITHIN.items(), 4_000_000):
        driver.works(pid, name[:15], used=6 * GIB, cgroup=f"0::{cgroup}")
    node.write_policy(native("{select: all, time-slicing: {replicas: 4}}"))
    write_logs(node.container_logs)
    options = AgentOptions(
        kubelet_dir=node.kubelet_dir,
        pod_resources=node.pod_resources,
        state_dir=node.state_dir,
        run_dir=node.run_dir,
        container_logs=node.container_logs,
        policy=node.policy,
        intervals=Intervals(watch_s=0.1, holders_s=0.1),
    )
    hardware, stop, status = NvmlHardware(host=driver.host), asyncio.Event(), AgentStatus(time.monotonic)
    agent = asyncio.create_task(run(options, hardware, stop=stop, status=status))
    try:
        await asyncio.to_thread(registered, kubelet, SHARED)
        kubelet.pod_resources = held({"team/train": {"main": {SHARED: [f"{driver.uuid(0)}::0"]}}})
        await until(lambda: (seen := status.watch_observation()) and seen.watched.violations)
        observation = status.watch_observation()
        assert observation is not None
        (usage,) = observation.watched.usages
        assert (usage.holder, usage.used_bytes) == (HOLDERS[TRAIN], 24 * GIB)
        assert len(usage.processes) == len(WITHIN)
        (violation,) = observation.watched.violations
        assert violation.usage.holder == HOLDERS[TRAIN]
    finally:
        stop.set()
        await agent
        await hardware.close()


def test_scenario_17_what_another_plugin_serves_is_refused_until_that_plugin_has_ended(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    """NVIDIA's plugin listens at the same path; the agent leaves its socket and its registration alone."""
    path = node.kubelet_dir / "nvidia-gpu.sock"
    with ExitStack() as until_it_ends:
        until_it_ends.enter_context(listening_child(path))
        socket = path.stat()
        with hosted(node) as agent:
            agent.wait(lambda: "other-plugin" in agent.health()[1], "told")
            (row,) = agent.report()["resources"]
            assert f"another process serves {path}" in row["lastError"]
            assert kubelet.registered == []
            assert path.stat().st_ino == socket.st_ino
            until_it_ends.close()
            registered(kubelet, GPU)
            agent.wait(lambda: agent.health() == (200, []), "healthy")
