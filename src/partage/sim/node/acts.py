"""What an act on MIG makes of a simulated node. As strict as hardware: whatever a driver refuses is refused.

State in, act, state out; an error where the driver says no. How far it follows real ones: NVIDIA's MIG guide
and nvml.h. Where those leave it open, the simulation takes the stricter way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from partage.edges.files.catalogue import geometry_of, load, why_no_geometry
from partage.errors import (
    GpuInUse,
    GpuLost,
    HardwareError,
    InsufficientResources,
    NotFound,
    StateMismatch,
    Unsupported,
)
from partage.model.geometry import Geometry, ProfileSpec
from partage.model.gpu import EmptyInstance, Gpu, MigDevice, MigMode
from partage.model.layout import DoesNotFit, LayoutItem, compute_choices, place
from partage.model.placement import Placement
from partage.model.profile import MigProfile
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    EndClient,
    EndProcess,
    GpuUse,
    Reset,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    StartDaemon,
    Step,
    StopDaemon,
    Verify,
)
from partage.plan.reconcile.resets import reset_sets
from partage.sim.node.effects import after_reset
from partage.sim.node.machine import derived_uuid
from partage.sim.node.mig import ci_minor, compute_seats, free_seat, gi_minor, instance_id, instance_memory
from partage.sim.node.settings import ended, set_up
from partage.sim.node.state import SimulatedNode, observed, with_gpu

_IN_A_VM = "turn its MIG mode on or off with nvidia-smi -mig, reboot the virtual machine, and try again"

Outcome = tuple[SimulatedNode, Created | HardwareError | None]
"""The node afterwards, and what the act brought. An error here is one that left something changed."""


def performed(state: SimulatedNode, step: Step) -> Outcome:
    """The node after an act. Raises HardwareError where the driver refuses and nothing has changed."""
    match step:
        case SetMigMode():
            return _set_mode(state, step)
        case Reset():
            return _reset(state, step), None
        case DestroyCompute():
            return _destroy_compute(state, step), None
        case DestroyInstance():
            return _destroy_instance(state, step), None
        case CreateInstance():
            return _create_instance(state, step)
        case CreateCompute():
            return _create_compute(state, step)
        case Verify():
            _verify(state, step)
            return state, None
        case SetComputeMode() | SetTimeSlice() | StartDaemon():
            return set_up(state, _answering(state, step.gpu), step), None
        case EndProcess() | StopDaemon() | EndClient():
            return ended(state, step), None
        case _:
            assert_never(step)


# --- the GPU as a whole --------------------------------------------------------------------------


def _set_mode(state: SimulatedNode, step: SetMigMode) -> Outcome:
    """Ampere: pending until a reset. Later ones: at once, if nobody has the GPU open; else pending, too."""
    gpu = _answering(state, step.gpu)
    if gpu.mig_mode is None:
        raise Unsupported(f"{gpu.product} has no MIG")
    pending = replace(gpu, mig_mode=MigMode(gpu.mig_mode.current, step.enabled))
    if gpu.mig_mode.current == step.enabled:
        return with_gpu(state, pending), None
    if live := [*gpu.mig_devices, *gpu.empty_instances]:
        raise GpuInUse(f"GPU {gpu.index}: {len(live)} MIG instances live on it")
    uses = [use for use in state.busy if use.gpu == gpu.uuid]
    if uses:
        return with_gpu(state, pending), _in_use(f"GPU {gpu.index} is in use; its MIG mode is pending", uses)
    if _needs_reset(gpu):
        return with_gpu(state, pending), None
    return with_gpu(state, replace(gpu, mig_mode=MigMode(step.enabled, step.enabled))), None


def _needs_reset(gpu: Gpu) -> bool:
    model = load().by_gpu(gpu)
    return model.mig_needs_reset if model else gpu.architecture == "ampere"


def _reset(state: SimulatedNode, step: Reset) -> SimulatedNode:
    gpus = [_answering(state, uuid) for uuid in step.gpus]
    if state.virtual:
        raise Unsupported("a virtual machine may not reset its GPUs", _IN_A_VM)
    groups = reset_sets(observed(state))
    missing = {peer for gpu in gpus for peer in groups[gpu.uuid]} - set(step.gpus)
    if missing:
        left_out = ", ".join(str(gpu.index) for _, gpu in sorted(state.gpus.items()) if gpu.uuid in missing)
        raise Unsupported(f"NVLinks join GPU {left_out} with those to be reset: they are reset together")
    if uses := [use for use in state.busy if use.gpu in step.gpus]:
        raise _in_use("a GPU that is in use cannot be reset", uses)
    for gpu in gpus:
        state = after_reset(state, gpu)
    return state


def _verify(state: SimulatedNode, step: Verify) -> None:
    gpu = _answering(state, step.gpu)
    on = gpu.mig_mode or MigMode(current=False, pending=False)
    if (on.current, on.pending) != (step.enabled, step.enabled):
        raise StateMismatch(
            f"GPU {gpu.index}: MIG mode is {_mode(on)}, not {'on' if step.enabled else 'off'}"
        )
    live = sorted(
        str(LayoutItem(MigProfile.parse(one.profile), one.placement.start)) for one in gpu.mig_devices
    )
    if live != sorted(step.devices):
        raise StateMismatch(f"GPU {gpu.index} has {_listed(live)}, not {_listed(sorted(step.devices))}")
    if gpu.empty_instances:
        names = [f"{one.profile}@{one.placement.start}" for one in gpu.empty_instances]
        raise StateMismatch(f"GPU {gpu.index} has GPU instances without MIG devices: {_listed(names)}")


def _mode(mode: MigMode) -> str:
    now = "on" if mode.current else "off"
    return now if mode.current == mode.pending else f"{now} until a reset"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "no MIG device"


# --- GPU instances -------------------------------------------------------------------------------


def _create_instance(state: SimulatedNode, step: CreateInstance) -> Outcome:
    gpu = _in_mig_mode(state, step.gpu)
    geometry, spec = _spec(gpu, step.profile)
    if spec.profile != _parsed(step.profile):
        raise Unsupported(f"{step.profile} is a MIG device, not a GPU instance")
    if spec.size != step.placement.size or step.placement.start not in spec.starts:
        raise Unsupported(f"{gpu.product} has no place {step.placement} for a {step.profile}")
    others = _instances(gpu)
    if not others and (uses := [use for use in state.busy if use.gpu == gpu.uuid]):
        raise _in_use(f"GPU {gpu.index} has to be idle for its first GPU instance", uses)
    wanted = [*others, (spec.profile, step.placement)]
    try:
        place(geometry, [LayoutItem(profile, placement.start) for profile, placement in wanted])
    except DoesNotFit as misfit:
        raise InsufficientResources(f"GPU {gpu.index}: {misfit}") from misfit
    made = EmptyInstance(instance_id(step.placement, geometry.memory_slices), step.profile, step.placement)
    empty = sorted([*gpu.empty_instances, made], key=lambda one: one.gi_id)
    return with_gpu(state, replace(gpu, empty_instances=tuple(empty))), Created(made.gi_id)


def _destroy_instance(state: SimulatedNode, step: DestroyInstance) -> SimulatedNode:
    gpu = _in_mig_mode(state, step.gpu, also_pending=True)
    gi_id = _instance_at(gpu, step.profile, step.placement, step.gi_id)
    if inside := [one.uuid for one in gpu.mig_devices if one.gi_id == gi_id]:
        raise GpuInUse(f"GPU instance {gi_id} of GPU {gpu.index} has MIG devices left: {', '.join(inside)}")
    if uses := [use for use in state.busy if use.gpu == gpu.uuid and use.gi_id == gi_id]:
        raise _in_use(f"GPU instance {gi_id} of GPU {gpu.index} is in use", uses)
    rest = tuple(one for one in gpu.empty_instances if one.gi_id != gi_id)
    return with_gpu(state, replace(gpu, empty_instances=rest))


def _instances(gpu: Gpu) -> list[tuple[MigProfile, Placement]]:
    """Profile and place of every GPU instance."""
    hosts = {
        one.gi_id: (MigProfile.parse(one.profile).gpu_instance, one.placement) for one in gpu.mig_devices
    }
    empty = {one.gi_id: (MigProfile.parse(one.profile), one.placement) for one in gpu.empty_instances}
    return [hosts.get(gi_id) or empty[gi_id] for gi_id in sorted(hosts.keys() | empty.keys())]


def _instance_at(gpu: Gpu, profile: str, placement: Placement, gi_id: int | None = None) -> int:
    """The id of the GPU instance of that profile at that place. Raises NotFound."""
    wanted = (_parsed(profile), placement)
    rows = [
        (one.gi_id, (MigProfile.parse(one.profile).gpu_instance, one.placement)) for one in gpu.mig_devices
    ]
    rows += [(one.gi_id, (MigProfile.parse(one.profile), one.placement)) for one in gpu.empty_instances]
    for at, row in rows:
        if row == wanted and gi_id in (None, at):
            return at
    named = "" if gi_id is None else f" with id {gi_id}"
    raise NotFound(f"GPU {gpu.index} has no GPU instance {profile} at {placement}{named}")


# --- compute instances ---------------------------------------------------------------------------


def _create_compute(state: SimulatedNode, step: CreateCompute) -> Outcome:
    gpu = _in_mig_mode(state, step.gpu)
    gi_id = _instance_at(gpu, step.instance, step.placement)
    geometry, spec = _spec(gpu, step.instance)
    profile = _parsed(step.profile)
    possible = compute_choices(spec.compute_slices)
    if profile.gpu_instance != spec.profile or profile.compute_slices not in possible:
        raise Unsupported(f"a GPU instance {step.instance} has no compute instances {step.profile}")
    inside = [one for one in gpu.mig_devices if one.gi_id == gi_id]
    seats = compute_seats(inside, state.seats)
    seat = free_seat(inside, seats, profile.compute_slices, spec.compute_slices)
    if seat is None:
        used = sum(MigProfile.parse(one.profile).compute_slices for one in inside)
        left = spec.compute_slices - used
        apart = ", and not side by side" if left >= profile.compute_slices else ""
        raise InsufficientResources(
            f"GPU instance {gi_id} of GPU {gpu.index} has {left} compute slices left{apart}"
        )
    ci_id = _least_free(one.ci_id for one in inside)
    device = MigDevice(
        uuid=derived_uuid("MIG", gpu.uuid, f"{state.boots}/{state.births}", gi_id, ci_id),
        index=_least_free(one.index for one in gpu.mig_devices),
        gi_id=gi_id,
        ci_id=ci_id,
        profile=str(profile),
        placement=step.placement,
        memory_bytes=instance_memory(spec, geometry, gpu.memory_bytes),
        gi_minor=gi_minor(gpu.minor, gi_id),
        ci_minor=ci_minor(gpu.minor, gi_id, ci_id),
    )
    changed = replace(
        gpu,
        mig_devices=tuple(sorted([*gpu.mig_devices, device], key=lambda one: one.index)),
        empty_instances=tuple(one for one in gpu.empty_instances if one.gi_id != gi_id),
    )
    made = Created(gi_id, ci_id, device.uuid)
    seats = {**state.seats, **seats, device.uuid: seat}
    return replace(with_gpu(state, changed), births=state.births + 1, seats=seats), made


def _destroy_compute(state: SimulatedNode, step: DestroyCompute) -> SimulatedNode:
    gpu = _in_mig_mode(state, step.gpu, also_pending=True)
    device = _device_at(gpu, step)
    if uses := [use for use in state.busy if _concerns(use, gpu, device)]:
        raise _in_use(f"{device.uuid} is in use", uses)
    rest = tuple(one for one in gpu.mig_devices if one is not device)
    # Nothing moves: the others stay where they are, whoever of them goes.
    beside = [one for one in gpu.mig_devices if one.gi_id == device.gi_id]
    state = replace(state, seats={**state.seats, **compute_seats(beside, state.seats)})
    empty = gpu.empty_instances
    if not any(one.gi_id == device.gi_id for one in rest):
        host = EmptyInstance(device.gi_id, step.instance, device.placement)
        empty = tuple(sorted([*empty, host], key=lambda one: one.gi_id))
    return with_gpu(state, replace(gpu, mig_devices=rest, empty_instances=empty))


def _device_at(gpu: Gpu, step: DestroyCompute) -> MigDevice:
    """Raises NotFound also where something else lives under these ids by now."""
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


def _concerns(use: GpuUse, gpu: Gpu, device: MigDevice) -> bool:
    if use.gpu != gpu.uuid:
        return False
    return use.device == device.uuid or (use.gi_id == device.gi_id and use.ci_id in (None, device.ci_id))


def _least_free(taken: Iterable[int]) -> int:
    numbers = set(taken)
    return next(number for number in range(len(numbers) + 1) if number not in numbers)


# --- what all of them ask first ------------------------------------------------------------------


def _answering(state: SimulatedNode, uuid: str) -> Gpu:
    for index, lost in state.lost.items():
        if uuid == lost.uuid or (index in state.gpus and uuid == state.gpus[index].uuid):
            raise GpuLost(f"GPU {index}: {lost.reason}")
    found = next((gpu for gpu in state.gpus.values() if gpu.uuid == uuid), None)
    if found is None:
        raise NotFound(f"this node has no GPU {uuid}")
    return found


def _in_mig_mode(state: SimulatedNode, uuid: str, *, also_pending: bool = False) -> Gpu:
    """also_pending: what is allowed while a change of mode waits for a reset."""
    gpu = _answering(state, uuid)
    if not gpu.mig_enabled:
        raise Unsupported(f"GPU {gpu.index} is not in MIG mode")
    if not also_pending and gpu.mig_mode != MigMode(current=True, pending=True):
        raise Unsupported(f"GPU {gpu.index} leaves MIG mode at its next reset")
    return gpu


def _spec(gpu: Gpu, profile: str) -> tuple[Geometry, ProfileSpec]:
    geometry = geometry_of(gpu)
    if geometry is None:
        raise Unsupported(f"GPU {gpu.index}: {why_no_geometry(gpu)}")
    spec = geometry.spec(_parsed(profile))
    if spec is None:
        raise Unsupported(f"{gpu.product} has no profile {profile}")
    return geometry, spec


def _parsed(profile: str) -> MigProfile:
    try:
        return MigProfile.parse(profile)
    except ValueError as error:
        raise Unsupported(str(error)) from error


def _in_use(message: str, uses: Iterable[GpuUse]) -> GpuInUse:
    names = tuple(str(use) for use in uses)
    return GpuInUse(f"{message}: {', '.join(names)}", uses=names)
