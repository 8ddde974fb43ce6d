"""MPS daemons whose record is lost are still found on their GPU, and stopped when nothing needs them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from partage.agent.reconciler.apply_once import ApplyRun
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.edges.hardware.daemon_steps import DaemonStep, observe_daemons, perform_daemon_step
from partage.edges.mps.keeper import MpsKeeper
from partage.model.mps import DaemonPhase, DaemonState
from partage.model.step import Created, Step
from partage.plan.offer.desired import resolve
from partage.sim.mps.node import MpsNode
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.units import GIB
from tests.agent.harness import native
from tests.sim.mps.programs import install_programs

MIG = "{{select: {{index: [0]}}, mig: {{layout: [3g.40gb, 3g.40gb]{}}}}}"
PLAIN, SHARED = native(MIG.format("")), native(MIG.format(", mps: {replicas: 2}"))


class RealDaemons(SimulatedHardware):
    """A simulated node whose MPS daemons are processes, as the helper starts and finds them."""

    keeper: MpsKeeper
    keeper_dir: Path

    async def daemons(self) -> tuple[DaemonState, ...]:
        return await observe_daemons(self.keeper)

    async def perform(self, step: Step) -> Created | None:
        if isinstance(step, DaemonStep):
            await perform_daemon_step(self.keeper, step)
            return None
        return await super().perform(step)


async def apply(hardware: RealDaemons, policy: str) -> None:
    parsed = parse_policy(policy, "policy.yaml").policy
    run = ApplyRun(
        hardware,
        lambda inventory: resolve(parsed, inventory, geometry_of),
        geometry_of,
        lambda _: lambda step, status, reason: None,
    )
    assert (await run.run()).last.settled


@pytest.fixture
async def hardware() -> AsyncIterator[RealDaemons]:
    """Two MIG devices on GPU 0, each with a daemon."""
    with tempfile.TemporaryDirectory(prefix="partage-", dir="/tmp") as directory:
        hardware = RealDaemons(load_machine("h100-sxm5-80gb"))
        hardware.keeper_dir = Path(directory, "run")
        hardware.keeper = MpsKeeper(hardware.keeper_dir, Path(directory))
        await apply(hardware, PLAIN)
        devices = (await hardware.observe()).gpus[0].mig_devices
        install_programs(Path(directory, "usr/bin"), MpsNode({one.uuid: 40 * GIB for one in devices}))
        try:
            await apply(hardware, SHARED)
            yield hardware
        finally:
            for device in devices:
                await hardware.keeper.stop(device.uuid, force=True)


def lose_records(hardware: RealDaemons) -> None:
    for record in hardware.keeper_dir.glob("mps/*/daemon.json"):
        record.unlink()


async def test_daemons_without_records_are_started_again_and_stopped_when_nothing_needs_them(
    hardware: RealDaemons,
) -> None:
    lose_records(hardware)
    before = {one.pid for one in await hardware.daemons()}
    await apply(hardware, SHARED)
    after = await hardware.daemons()
    assert [one.phase for one in after] == [DaemonPhase.SERVING] * 2
    assert before.isdisjoint({one.pid for one in after})
    lose_records(hardware)
    await apply(hardware, PLAIN)
    assert await hardware.daemons() == ()
