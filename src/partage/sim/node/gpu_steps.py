"""Steps on a whole simulated GPU: MIG mode, reset, verification. As strict as a driver."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from partage.errors import GpuInUse, HardwareError, StateMismatch, Unsupported
from partage.model.gpu import Gpu, MigMode
from partage.model.layout import LayoutItem
from partage.model.profile import MigProfile
from partage.model.step import Reset, SetMigMode, Verify
from partage.plan.reconcile.resets import reset_sets
from partage.sim.node.observation import inventory_of
from partage.sim.node.preconditions import answering_gpu, in_use_error
from partage.sim.node.resets import mode_change_needs_reset, reset_gpu, without_settings
from partage.sim.node.state import SimulatedNode, with_gpu

_IN_A_VM = "turn its MIG mode on or off with nvidia-smi -mig, reboot the virtual machine, and try again"


def set_mig_mode(state: SimulatedNode, step: SetMigMode) -> tuple[SimulatedNode, HardwareError | None]:
    """The node after the step; an error where the mode is pending because the GPU is in use.

    Ampere: the mode is pending until a reset. Later GPUs: at once if nothing has the GPU open, else pending.
    A change at once ends compute mode and time slice as a reset does: the call "may unbind or reset the
    device" (nvml.h, nvmlDeviceSetMigMode).
    Raises GpuInUse while MIG instances exist, Unsupported.
    """
    gpu = answering_gpu(state, step.gpu)
    if gpu.mig_mode is None:
        raise Unsupported(f"{gpu.product} has no MIG")
    pending = replace(gpu, mig_mode=MigMode(gpu.mig_mode.current, step.enabled))
    if gpu.mig_mode.current == step.enabled:
        return with_gpu(state, pending), None
    if live := [*gpu.mig_devices, *gpu.empty_instances]:
        raise GpuInUse(f"GPU {gpu.index} still has {len(live)} MIG instances")
    if uses := state.holders(gpu.uuid):
        return with_gpu(state, pending), in_use_error(
            f"GPU {gpu.index} is in use; its MIG mode is pending", uses
        )
    if mode_change_needs_reset(gpu):
        return with_gpu(state, pending), None
    changed = with_gpu(state, replace(gpu, mig_mode=MigMode(step.enabled, step.enabled)))
    return without_settings(changed, gpu.index), None


def reset_gpus(state: SimulatedNode, step: Reset) -> SimulatedNode:
    """Nothing if all modes that it is for are in force.

    Raises GpuInUse; Unsupported in a virtual machine, or if a GPU that shares the reset is missing.
    """
    gpus = [answering_gpu(state, uuid) for uuid in step.gpus]
    if step.pending and not any(gpu.uuid in step.pending and _is_pending(gpu) for gpu in gpus):
        return state
    if state.virtual:
        raise Unsupported("a virtual machine may not reset its GPUs", _IN_A_VM)
    groups = reset_sets(inventory_of(state))
    missing = {peer for gpu in gpus for peer in groups[gpu.uuid]} - set(step.gpus)
    if missing:
        left_out = ", ".join(str(gpu.index) for _, gpu in sorted(state.gpus.items()) if gpu.uuid in missing)
        raise Unsupported(f"NVLinks join GPU {left_out} with those to be reset: they are reset together")
    if uses := [use for uuid in step.gpus for use in state.holders(uuid)]:
        raise in_use_error("a GPU that is in use cannot be reset", uses)
    for gpu in gpus:
        state = reset_gpu(state, gpu)
    return state


def _is_pending(gpu: Gpu) -> bool:
    return gpu.mig_mode is not None and gpu.mig_mode.current != gpu.mig_mode.pending


def verify(state: SimulatedNode, step: Verify) -> SimulatedNode:
    """The same node. Raises StateMismatch where MIG mode or MIG devices are not those of the step."""
    gpu = answering_gpu(state, step.gpu)
    mode = gpu.mig_mode or MigMode(current=False, pending=False)
    if mode != MigMode(step.enabled, step.enabled):
        raise StateMismatch(
            f"GPU {gpu.index}: MIG mode is {_word(mode)}, not {'on' if step.enabled else 'off'}"
        )
    live = sorted(
        str(LayoutItem(MigProfile.parse(one.profile), one.known_placement.start)) for one in gpu.mig_devices
    )
    if live != sorted(step.devices):
        raise StateMismatch(f"GPU {gpu.index} has {_listed(live)}, not {_listed(sorted(step.devices))}")
    if gpu.empty_instances:
        names = [f"{one.profile}@{one.placement.start}" for one in gpu.empty_instances]
        raise StateMismatch(f"GPU {gpu.index} has GPU instances without MIG devices: {_listed(names)}")
    return state


def _word(mode: MigMode) -> str:
    now = "on" if mode.current else "off"
    return now if mode.current == mode.pending else f"{now} until a reset"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "no MIG device"
