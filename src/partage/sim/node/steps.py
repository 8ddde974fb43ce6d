"""What a step changes on a simulated node: whole GPUs (MIG mode, reset), GPU instances and compute instances.

State and step in, state out; an error where the driver says no. Sources: NVIDIA's MIG guide and nvml.h. Where
these leave something open, the simulation is the stricter one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of, why_no_geometry
from partage.errors import (
    GpuInUse,
    HardwareError,
    InsufficientResources,
    NotFound,
    StateMismatch,
    Unsupported,
)
from partage.model.geometry import Geometry, MigProfile, Placement, ProfileSpec, instance_memory
from partage.model.gpu import EmptyInstance, Gpu, MigDevice, MigMode
from partage.model.layout import DoesNotFit, LayoutItem, compute_choices, place
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    EndClient,
    EndProcess,
    Reset,
    SetComputeMode,
    SetMemoryLimit,
    SetMigMode,
    SetNamespace,
    SetTimeSlice,
    StartDaemon,
    Step,
    StopDaemon,
    Verify,
)
from partage.plan.reconcile.resets import reset_sets
from partage.sim.node.daemons import end_client, set_namespace, start_daemon, stop_daemon
from partage.sim.node.limits import set_memory_limit
from partage.sim.node.mig import compute_starts, free_compute_start, instance_id, new_device
from partage.sim.node.observation import inventory_of
from partage.sim.node.processes import end_process, set_compute_mode, set_time_slice
from partage.sim.node.resets import mode_change_needs_reset, reset_gpu, without_settings
from partage.sim.node.state import SimulatedNode, answering_gpu, gpu_in_mig_mode, in_use_error, with_gpu

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
    if step.pending and not any(gpu.uuid in step.pending and gpu.mig_pending for gpu in gpus):
        return state
    if state.at_power_on.virtual:
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


def verify(state: SimulatedNode, step: Verify) -> SimulatedNode:
    """The same node. Raises StateMismatch where MIG mode or MIG devices are not those of the step."""
    gpu = answering_gpu(state, step.gpu)
    mode = gpu.mig_mode or MigMode(current=False, pending=False)
    if mode != MigMode(step.enabled, step.enabled):
        raise StateMismatch(
            f"GPU {gpu.index}: MIG mode is {_word(mode)}, not {'on' if step.enabled else 'off'}"
        )
    live = sorted(
        str(LayoutItem(MigProfile.parse(device.profile), device.known_placement.start))
        for device in gpu.mig_devices
    )
    if live != sorted(step.devices):
        raise StateMismatch(f"GPU {gpu.index} has {_listed(live)}, not {_listed(sorted(step.devices))}")
    if gpu.empty_instances:
        names = [f"{instance.profile}@{instance.placement.start}" for instance in gpu.empty_instances]
        raise StateMismatch(f"GPU {gpu.index} has GPU instances without MIG devices: {_listed(names)}")
    return state


def _word(mode: MigMode) -> str:
    now = "on" if mode.current else "off"
    return now if mode.current == mode.pending else f"{now} until a reset"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "no MIG device"


def create_instance(state: SimulatedNode, step: CreateInstance) -> tuple[SimulatedNode, Created]:
    """Raises GpuInUse, InsufficientResources, Unsupported."""
    gpu = gpu_in_mig_mode(state, step.gpu)
    geometry, spec = _spec(gpu, step.profile)
    if spec.profile != _parsed(step.profile):
        raise Unsupported(f"{step.profile} is a MIG device, not a GPU instance")
    if spec.size != step.placement.size or step.placement.start not in spec.starts:
        raise Unsupported(f"{gpu.product} has no place {step.placement} for a {step.profile}")
    others = [(profile, placement) for _, profile, placement in _instances(gpu)]
    if not others and (uses := state.holders(gpu.uuid)):
        raise in_use_error(f"GPU {gpu.index} has to be idle for its first GPU instance", uses)
    wanted = [*others, (spec.profile, step.placement)]
    try:
        place(geometry, [LayoutItem(profile, placement.start) for profile, placement in wanted])
    except DoesNotFit as misfit:
        raise InsufficientResources(f"GPU {gpu.index}: {misfit}") from misfit
    ids = {gi_id for gi_id, _, _ in _instances(gpu)}
    usual = instance_id(step.placement, geometry.memory_slices)
    new = EmptyInstance(_lowest_free(ids) if usual in ids else usual, step.profile, step.placement)
    empty = sorted([*gpu.empty_instances, new], key=lambda instance: instance.gi_id)
    return with_gpu(state, replace(gpu, empty_instances=tuple(empty))), Created(new.gi_id)


def destroy_instance(state: SimulatedNode, step: DestroyInstance) -> SimulatedNode:
    """Raises GpuInUse, NotFound, Unsupported."""
    gpu = gpu_in_mig_mode(state, step.gpu, may_leave=True)
    gi_id = _instance_at(gpu, step.profile, step.placement, step.gi_id)
    if inside := [device.uuid for device in gpu.mig_devices if device.gi_id == gi_id]:
        raise GpuInUse(f"GPU instance {gi_id} of GPU {gpu.index} still has MIG devices: {', '.join(inside)}")
    if uses := [use for use in state.all_uses if use.gpu == gpu.uuid and use.gi_id == gi_id]:
        raise in_use_error(f"GPU instance {gi_id} of GPU {gpu.index} is in use", uses)
    rest = tuple(instance for instance in gpu.empty_instances if instance.gi_id != gi_id)
    return with_gpu(state, replace(gpu, empty_instances=rest))


def _instances(gpu: Gpu) -> list[tuple[int, MigProfile, Placement]]:
    """Id, profile and placement of every GPU instance, by id."""
    rows = {
        instance.gi_id: (MigProfile.parse(instance.profile), instance.placement)
        for instance in gpu.empty_instances
    }
    rows |= {
        device.gi_id: (MigProfile.parse(device.profile).gpu_instance, device.known_placement)
        for device in gpu.mig_devices
    }
    return [(gi_id, *rows[gi_id]) for gi_id in sorted(rows)]


def _instance_at(gpu: Gpu, profile: str, placement: Placement, gi_id: int | None = None) -> int:
    """The id of the GPU instance of that profile and placement. Raises NotFound."""
    wanted = (_parsed(profile), placement)
    for at, *row in _instances(gpu):
        if tuple(row) == wanted and gi_id in (None, at):
            return at
    named = "" if gi_id is None else f" with id {gi_id}"
    raise NotFound(f"GPU {gpu.index} has no GPU instance {profile} at {placement}{named}")


# --- compute instances ---------------------------------------------------------------------------


def create_compute(state: SimulatedNode, step: CreateCompute) -> tuple[SimulatedNode, Created]:
    """Raises InsufficientResources, NotFound, Unsupported."""
    gpu = gpu_in_mig_mode(state, step.gpu)
    gi_id = _instance_at(gpu, step.instance, step.placement)
    geometry, spec = _spec(gpu, step.instance)
    profile = _parsed(step.profile)
    possible = compute_choices(spec.compute_slices)
    if profile.gpu_instance != spec.profile or profile.compute_slices not in possible:
        raise Unsupported(f"a GPU instance {step.instance} has no compute instances {step.profile}")
    inside = [mig for mig in gpu.mig_devices if mig.gi_id == gi_id]
    starts = compute_starts(inside, state.compute_starts)
    start = free_compute_start(inside, starts, profile.compute_slices, spec.compute_slices)
    if start is None:
        raise InsufficientResources(f"GPU instance {gi_id} of GPU {gpu.index} {_room(inside, spec, profile)}")
    ids = (
        _lowest_free(mig.index for mig in gpu.mig_devices),
        gi_id,
        _lowest_free(mig.ci_id for mig in inside),
    )
    seed = f"{state.boots}/{state.created}"
    memory_bytes = instance_memory(spec, geometry, gpu.memory_bytes)
    device = new_device(gpu, profile, step.placement, ids=ids, memory_bytes=memory_bytes, seed=seed)
    changed = replace(
        gpu,
        mig_devices=tuple(sorted([*gpu.mig_devices, device], key=lambda one: one.index)),
        empty_instances=tuple(instance for instance in gpu.empty_instances if instance.gi_id != gi_id),
    )
    starts = {**state.compute_starts, **starts, device.uuid: start}
    node = replace(with_gpu(state, changed), created=state.created + 1, compute_starts=starts)
    return node, Created(gi_id, device.ci_id, device.uuid)


def _room(inside: Iterable[MigDevice], spec: ProfileSpec, profile: MigProfile) -> str:
    left = spec.compute_slices - sum(MigProfile.parse(mig.profile).compute_slices for mig in inside)
    apart = ", and not side by side" if left >= profile.compute_slices else ""
    return f"has {left} compute slices left{apart}"


def destroy_compute(state: SimulatedNode, step: DestroyCompute) -> SimulatedNode:
    """Raises GpuInUse, NotFound, Unsupported."""
    gpu = gpu_in_mig_mode(state, step.gpu, may_leave=True)
    device = _device_at(gpu, step)
    if uses := [use for use in state.all_uses if use.is_of(gpu.uuid, device)]:
        raise in_use_error(f"{device.uuid} is in use", uses)
    rest = tuple(mig for mig in gpu.mig_devices if mig is not device)
    # The other compute instances keep their slices.
    inside = [mig for mig in gpu.mig_devices if mig.gi_id == device.gi_id]
    starts = {**state.compute_starts, **compute_starts(inside, state.compute_starts)}
    empty = gpu.empty_instances
    if not any(mig.gi_id == device.gi_id for mig in rest):
        host = EmptyInstance(device.gi_id, step.instance, device.known_placement)
        empty = tuple(sorted([*empty, host], key=lambda instance: instance.gi_id))
    changed = replace(gpu, mig_devices=rest, empty_instances=empty)
    return replace(with_gpu(state, changed), compute_starts=starts)


def _device_at(gpu: Gpu, step: DestroyCompute) -> MigDevice:
    """The MIG device that the step means. Raises NotFound, also where its ids belong to another one now."""
    gi_id = _instance_at(gpu, step.instance, step.placement, step.gi_id)
    wanted = _parsed(step.profile)
    for device in gpu.mig_devices:
        if (
            (device.gi_id, MigProfile.parse(device.profile)) == (gi_id, wanted)
            and step.ci_id in (None, device.ci_id)
            and step.uuid in ("", device.uuid)
        ):
            return device
    raise NotFound(f"GPU {gpu.index} has no such MIG device {step.profile} at {step.placement}")


def _lowest_free(taken: Iterable[int]) -> int:
    numbers = set(taken)
    return next(number for number in range(len(numbers) + 1) if number not in numbers)


# --- profiles ------------------------------------------------------------------------------------


def _spec(gpu: Gpu, profile: str) -> tuple[Geometry, ProfileSpec]:
    """Raises Unsupported."""
    geometry = geometry_of(gpu)
    if geometry is None:
        raise Unsupported(f"GPU {gpu.index}: {why_no_geometry(gpu)}")
    spec = geometry.spec(_parsed(profile))
    if spec is None:
        raise Unsupported(f"{gpu.product} has no profile {profile}")
    return geometry, spec


def _parsed(profile: str) -> MigProfile:
    """Raises Unsupported."""
    try:
        return MigProfile.parse(profile)
    except ValueError as error:
        raise Unsupported(str(error)) from error


Outcome = tuple[SimulatedNode, Created | HardwareError | None]
"""The node afterwards, and what was created. An error here is one that left something changed."""


def perform_step(state: SimulatedNode, step: Step) -> Outcome:
    """The node after a step. Raises HardwareError where the driver refuses and nothing has changed."""
    match step:
        case SetMigMode():
            return set_mig_mode(state, step)
        case CreateInstance():
            return create_instance(state, step)
        case CreateCompute():
            return create_compute(state, step)
        case _:
            return _CHANGES[type(step)](state, step), None


_CHANGES: Mapping[type[Step], Callable[[SimulatedNode, Any], SimulatedNode]] = {
    Reset: reset_gpus,
    DestroyCompute: destroy_compute,
    DestroyInstance: destroy_instance,
    Verify: verify,
    SetComputeMode: set_compute_mode,
    SetTimeSlice: set_time_slice,
    EndProcess: end_process,
    StartDaemon: start_daemon,
    StopDaemon: stop_daemon,
    EndClient: end_client,
    SetNamespace: set_namespace,
    SetMemoryLimit: set_memory_limit,
}
"""The other steps, which create nothing."""
