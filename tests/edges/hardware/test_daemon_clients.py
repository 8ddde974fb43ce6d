"""Before an MPS daemon is ended that cannot name its clients, the driver is asked who works on the GPU."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from partage.agent.reconciler.apply_once import ApplyRun
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.edges.hardware.nvml import NvmlHardware
from partage.edges.host import procfs
from partage.edges.mps.access import DaemonDeadlines
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.keeper import MpsKeeper
from partage.errors import GpuInUse, Unsupported
from partage.model.mps import DaemonPhase, DaemonSpec, DaemonState
from partage.model.step import StartDaemon, StopDaemon
from partage.plan.offer.desired import resolve
from partage.sim.mps.node import MpsNode
from partage.units import GIB
from tests.edges.hardware.stub import StubNode
from tests.sim.mps.programs import install_programs

GPU = StubNode.uuid(0)
STOP = StopDaemon(GPU, GPU)


@pytest.fixture
async def silent(node: StubNode, short_dir: Path) -> AsyncIterator[tuple[NvmlHardware, DaemonState]]:
    """A node with a daemon that does not answer any more."""
    node.add_h100s(1)
    node.see_all()
    install_programs(short_dir / "usr/bin", MpsNode({GPU: 80 * GIB}))
    host, deadlines = DaemonHost(own_mounts=False), DaemonDeadlines(answer_s=0.5)
    keeper = MpsKeeper(short_dir / "run", short_dir, host=host, deadlines=deadlines)
    hardware = NvmlHardware(host=node.host, keeper=keeper)
    await hardware.perform(StartDaemon(GPU, DaemonSpec(GPU, GPU, 2 * GIB, 25)))
    (state,) = await hardware.daemons()
    assert state.pid is not None
    os.kill(state.pid, signal.SIGSTOP)
    try:
        yield hardware, state
    finally:
        await keeper.stop(GPU, force=True)
        await hardware.close()


def runs(state: DaemonState) -> bool:
    return state.pid is not None and procfs.runs(Path("/proc"), state.pid)


async def test_who_computes_on_the_gpu_may_be_a_client_and_is_named(
    silent: tuple[NvmlHardware, DaemonState], node: StubNode
) -> None:
    hardware, state = silent
    assert [one.phase for one in await hardware.daemons()] == [DaemonPhase.SILENT]
    for server in state.servers:
        node.works(server.pid, "nvidia-cuda-mps", kinds="C")
    node.works(4711, "python", kinds="M")
    with pytest.raises(GpuInUse, match=r"process python \(pid 4711\) may be one") as caught:
        await hardware.perform(STOP)
    assert caught.value.uses == ("process python (pid 4711)",), "the server is ended with its daemon"
    assert runs(state)


async def test_a_name_makes_no_server(silent: tuple[NvmlHardware, DaemonState], node: StubNode) -> None:
    hardware, state = silent
    node.works(4711, "nvidia-cuda-mps", kinds="C")
    with pytest.raises(GpuInUse, match="pid 4711"):
        await hardware.perform(STOP)
    assert runs(state)


async def test_what_draws_is_no_client(silent: tuple[NvmlHardware, DaemonState], node: StubNode) -> None:
    hardware, state = silent
    node.works(4711, "Xorg", kinds="G")
    await hardware.perform(STOP)
    assert not runs(state)
    assert await hardware.daemons() == ()


async def test_where_processes_may_be_hidden_it_is_not_ended(
    silent: tuple[NvmlHardware, DaemonState], node: StubNode
) -> None:
    hardware, state = silent
    (node.host.proc / "self/ns/pid").unlink()
    with pytest.raises(Unsupported, match=r"nobody can see whether GPU-.* has clients of MPS: .*hostPID"):
        await hardware.perform(STOP)
    assert runs(state)


EXCLUSIVE = "version: partage/v1\ngpus: []\n"


async def test_apply_without_an_agent_and_without_a_kubelet_ends_no_daemon_with_clients(
    silent: tuple[NvmlHardware, DaemonState], node: StubNode
) -> None:
    """It knows no pods: all that it can see are processes."""
    hardware, state = silent
    node.works(4711, "python", kinds="M")
    policy = parse_policy(EXCLUSIVE, "policy.yaml").policy
    run = ApplyRun(
        hardware,
        lambda inventory: resolve(policy, inventory, geometry_of),
        geometry_of,
        lambda _: lambda step, status, reason: None,
    )
    result = await run.run()
    assert [str(one.error) for one in result.failed if "pid 4711" in str(one.error)]
    assert runs(state)
