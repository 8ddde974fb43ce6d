"""What every simulated hardware promises of MPS daemons; the real ones are kept by ``edges.mps``."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.edges.hardware.daemon_steps import perform_daemon_step
from partage.edges.hardware.port import Hardware
from partage.errors import GpuInUse, NotFound, Unsupported
from partage.model.ids import GpuUuid
from partage.model.mps import DaemonPhase, DaemonSpec, DaemonState, MpsNamespace, closed_slot
from partage.model.step import EndClient, SetMigMode, SetNamespace, StartDaemon, StopDaemon
from partage.sim.node.faults import DriverLoaded, Occupy, SetDaemonPhase
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.units import GIB

GPU_NONE = GpuUuid("GPU-none")


@pytest.fixture
def hardware() -> SimulatedHardware:
    return SimulatedHardware(load_machine("2xh100-sxm5-80gb"))


async def started(hardware: Hardware, **more: object) -> StartDaemon:
    gpu = (await hardware.observe()).gpus[0].uuid
    step = StartDaemon(gpu, DaemonSpec(gpu, gpu, 2 * GIB, 25, **more))  # type: ignore[arg-type]
    await hardware.perform(step)
    return step


async def only(hardware: Hardware) -> DaemonState:
    (state,) = await hardware.daemons()
    return state


async def test_a_daemon_that_was_started_serves_with_the_limits_that_were_asked_for(
    hardware: SimulatedHardware,
) -> None:
    step = await started(hardware)
    state = await only(hardware)
    assert (state.phase, state.gpu, state.device) == (DaemonPhase.SERVING, step.gpu, step.gpu)
    assert (state.limits.memory_bytes, state.limits.threads_percent) == (2 * GIB, 25)


async def test_a_matching_daemon_is_left_alone_and_a_dead_one_is_replaced(
    hardware: SimulatedHardware,
) -> None:
    step = await started(hardware)
    first = await only(hardware)
    await hardware.perform(step)
    assert replace(await only(hardware), set_ns=first.set_ns) == first, "its limits were set again"
    await hardware.inject(SetDaemonPhase(0, DaemonPhase.DEAD))
    assert (await only(hardware)).phase is DaemonPhase.DEAD
    await hardware.perform(step)
    again = await only(hardware)
    assert again.phase is DaemonPhase.SERVING
    assert again.pid != first.pid


async def test_clients_keep_a_daemon_until_their_work_is_ended(hardware: SimulatedHardware) -> None:
    step = await started(hardware)
    await hardware.inject(Occupy(0, "python3", pid=4711, mps=True))
    with pytest.raises(GpuInUse, match="4711"):
        await hardware.perform(StopDaemon(step.gpu, step.gpu))
    (server,) = (await only(hardware)).servers
    assert [client.pid for client in server.clients] == [4711]
    await hardware.perform(EndClient(step.gpu, step.gpu, server.pid, 4711))
    with pytest.raises(NotFound):
        await hardware.perform(EndClient(step.gpu, step.gpu, server.pid, 4711))
    await hardware.perform(StopDaemon(step.gpu, step.gpu))
    assert await hardware.daemons() == ()


async def test_a_slot_is_open_until_it_is_closed_or_the_daemon_is_started_again(
    hardware: SimulatedHardware,
) -> None:
    await hardware.inject(DriverLoaded("615.71.09"))
    step = await started(hardware, slots=2)
    mine = SetNamespace(step.gpu, step.gpu, MpsNamespace("slot1", 4 * GIB, 50))
    for end in (SetNamespace(step.gpu, step.gpu, closed_slot("slot1")), None):
        await hardware.perform(mine)
        state = await only(hardware)
        assert (state.open_slots, state.limits.slots, state.phase) == (("slot1",), 2, DaemonPhase.SERVING)
        if end is not None:
            await hardware.perform(end)
        else:
            await hardware.inject(SetDaemonPhase(0, DaemonPhase.DEAD))
            with pytest.raises(NotFound):
                await hardware.perform(mine)
            await hardware.perform(step)
        assert (await only(hardware)).open_slots == ()
    with pytest.raises(NotFound):
        await hardware.perform(SetNamespace(step.gpu, step.gpu, MpsNamespace("slot2", GIB, 50)))


async def test_a_gpu_with_a_daemon_does_not_change_its_mig_mode(hardware: SimulatedHardware) -> None:
    step = await started(hardware)
    with pytest.raises(GpuInUse, match="nvidia-cuda-mps-server"):
        await hardware.perform(SetMigMode(step.gpu, enabled=True))


async def test_there_is_no_daemon_for_a_gpu_that_is_not_there(hardware: SimulatedHardware) -> None:
    spec = DaemonSpec(GPU_NONE, GPU_NONE)
    with pytest.raises(NotFound):
        await hardware.perform(StartDaemon(GPU_NONE, spec))


async def test_without_a_keeper_the_error_says_so() -> None:
    with pytest.raises(Unsupported, match="does not manage MPS daemons"):
        await perform_daemon_step(None, StopDaemon(GpuUuid("GPU-1"), GpuUuid("GPU-1")))
