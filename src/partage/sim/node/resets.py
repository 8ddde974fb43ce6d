"""What a simulated node forgets: by a reset of a GPU, a reboot, or another driver."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from partage.edges.files.catalogue import load_catalogue
from partage.model.gpu import ComputeMode, Driver, Gpu, LostGpu, MigMode, RecoveryAction
from partage.model.health import GpuCondition
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.mps import DaemonPhase
from partage.plan.reconcile.resets import needs_reset
from partage.sim.node.state import SimulatedDaemon, SimulatedNode, with_gpu


def reset_gpu(state: SimulatedNode, gpu: Gpu) -> SimulatedNode:
    """The node after a reset of this GPU: without its instances, uses and settings.

    A pending MIG mode is in force.
    """
    mode = MigMode(gpu.mig_mode.pending, gpu.mig_mode.pending) if gpu.mig_mode else None
    state = with_gpu(state, replace(gpu, mig_mode=mode, mig_devices=(), empty_instances=()))
    state = reset_condition(without_settings(state, gpu.index), gpu.index)
    uses = tuple(use for use in state.uses if use.gpu != gpu.uuid or use.gives_way)
    daemons = daemons_in_phase(state, gpu.uuid, DaemonPhase.DEAD)
    return replace(state, lost=without_lost(state.lost, gpu.index), uses=uses, daemons=daemons)


def reset_condition(state: SimulatedNode, index: int) -> SimulatedNode:
    """The node with the condition that a GPU has after a reset.

    Memory rows whose remapping failed stay failed: the memory is worn out.
    """
    before = state.conditions[index]
    after = GpuCondition(
        before.gpu,
        recovery=None if before.recovery is None else RecoveryAction.NONE,
        rows_failed=before.rows_failed,
        fabric_ok=None if before.fabric_ok is None else True,
        resets=(before.resets or 0) + 1,
    )
    return replace(state, conditions={**state.conditions, index: after})


def reboot(state: SimulatedNode) -> SimulatedNode:
    """The node after a reboot: all GPUs are reset, no daemon runs, reset counts begin at 0 again."""
    for gpu in state.gpus.values():
        state = reset_gpu(state, gpu)
    state = _without_mig(state)
    conditions = {index: replace(condition, resets=0) for index, condition in state.conditions.items()}
    return replace(state, conditions=conditions, boots=state.boots + 1, driver=state.last_driver, daemons={})


def load_driver(state: SimulatedNode, driver: Driver) -> SimulatedNode:
    """The node after the driver was replaced. The GPUs are not reset."""
    for index in state.gpus:
        state = without_settings(state, index)
    return replace(_without_mig(state), driver=driver, last_driver=driver, uses=())


def without_clients(state: SimulatedNode, gpu: Gpu) -> SimulatedNode:
    """The node after Partage has closed a GPU for a moment: a GPU that nobody has open is not initialised any
    more, unless it is in persistence mode.
    """
    if gpu.persistence is not False or any(use.gpu == gpu.uuid for use in state.all_uses):
        return state
    return without_settings(state, gpu.index)


def mode_change_needs_reset(gpu: Gpu) -> bool:
    """Whether a change of MIG mode is pending until a reset: as the catalogue says, else by architecture."""
    model = load_catalogue().by_gpu(gpu)
    return model.mig_needs_reset if model else needs_reset(gpu)


def daemons_in_phase(
    state: SimulatedNode, gpu: GpuUuid | None, phase: DaemonPhase
) -> dict[DeviceUuid, SimulatedDaemon]:
    """All daemons; those of one GPU (None: of all GPUs) are in that phase."""
    return {
        device: replace(daemon, phase=phase) if gpu in (None, daemon.spec.gpu) else daemon
        for device, daemon in state.daemons.items()
    }


def without_lost(lost: Mapping[int, LostGpu], index: int) -> dict[int, LostGpu]:
    """The lost GPUs without this one."""
    return {at: row for at, row in lost.items() if at != index}


def without_settings(state: SimulatedNode, index: int) -> SimulatedNode:
    """Compute mode and time slice are kept by the driver and nowhere else."""
    slices = {at: interval for at, interval in state.time_slices.items() if at != index or interval is None}
    gpu = replace(state.gpus[index], compute_mode=ComputeMode.DEFAULT)
    return replace(with_gpu(state, gpu), time_slices=slices)


def _without_mig(state: SimulatedNode) -> SimulatedNode:
    """No instance survives a reboot or another driver. On Ampere the mode does: the board keeps it."""
    return replace(state, gpus={index: _without_instances(gpu) for index, gpu in state.gpus.items()})


def _without_instances(gpu: Gpu) -> Gpu:
    if gpu.mig_mode is None:
        return gpu
    model = load_catalogue().by_gpu(gpu)
    survives = model.mig_survives_reboot if model else gpu.architecture == "ampere"
    mode = MigMode(gpu.mig_mode.pending, gpu.mig_mode.pending) if survives else MigMode(False, False)
    return replace(gpu, mig_mode=mode, mig_devices=(), empty_instances=())
