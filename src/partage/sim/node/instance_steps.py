"""Steps on GPU instances and compute instances of a simulated GPU. As strict as a driver."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of, why_no_geometry
from partage.errors import GpuInUse, InsufficientResources, NotFound, Unsupported
from partage.model.geometry import Geometry, ProfileSpec, instance_memory
from partage.model.gpu import EmptyInstance, Gpu, MigDevice
from partage.model.layout import DoesNotFit, LayoutItem, compute_choices, place
from partage.model.placement import Placement
from partage.model.profile import MigProfile
from partage.model.step import CreateCompute, Created, CreateInstance, DestroyCompute, DestroyInstance
from partage.sim.node.mig import compute_starts, free_compute_start, instance_id, new_device
from partage.sim.node.preconditions import gpu_in_mig_mode, in_use_error
from partage.sim.node.state import SimulatedNode, with_gpu

# --- GPU instances -------------------------------------------------------------------------------


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
    empty = sorted([*gpu.empty_instances, new], key=lambda one: one.gi_id)
    return with_gpu(state, replace(gpu, empty_instances=tuple(empty))), Created(new.gi_id)


def destroy_instance(state: SimulatedNode, step: DestroyInstance) -> SimulatedNode:
    """Raises GpuInUse, NotFound, Unsupported."""
    gpu = gpu_in_mig_mode(state, step.gpu, may_leave=True)
    gi_id = _instance_at(gpu, step.profile, step.placement, step.gi_id)
    if inside := [one.uuid for one in gpu.mig_devices if one.gi_id == gi_id]:
        raise GpuInUse(f"GPU instance {gi_id} of GPU {gpu.index} still has MIG devices: {', '.join(inside)}")
    if uses := [use for use in state.all_uses if use.gpu == gpu.uuid and use.gi_id == gi_id]:
        raise in_use_error(f"GPU instance {gi_id} of GPU {gpu.index} is in use", uses)
    rest = tuple(one for one in gpu.empty_instances if one.gi_id != gi_id)
    return with_gpu(state, replace(gpu, empty_instances=rest))


def _instances(gpu: Gpu) -> list[tuple[int, MigProfile, Placement]]:
    """Id, profile and placement of every GPU instance, by id."""
    rows = {one.gi_id: (MigProfile.parse(one.profile), one.placement) for one in gpu.empty_instances}
    rows |= {
        one.gi_id: (MigProfile.parse(one.profile).gpu_instance, one.known_placement)
        for one in gpu.mig_devices
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
    inside = [one for one in gpu.mig_devices if one.gi_id == gi_id]
    starts = compute_starts(inside, state.compute_starts)
    start = free_compute_start(inside, starts, profile.compute_slices, spec.compute_slices)
    if start is None:
        raise InsufficientResources(f"GPU instance {gi_id} of GPU {gpu.index} {_room(inside, spec, profile)}")
    ids = (
        _lowest_free(one.index for one in gpu.mig_devices),
        gi_id,
        _lowest_free(one.ci_id for one in inside),
    )
    seed = f"{state.boots}/{state.created}"
    memory_bytes = instance_memory(spec, geometry, gpu.memory_bytes)
    device = new_device(gpu, profile, step.placement, ids=ids, memory_bytes=memory_bytes, seed=seed)
    changed = replace(
        gpu,
        mig_devices=tuple(sorted([*gpu.mig_devices, device], key=lambda one: one.index)),
        empty_instances=tuple(one for one in gpu.empty_instances if one.gi_id != gi_id),
    )
    starts = {**state.compute_starts, **starts, device.uuid: start}
    node = replace(with_gpu(state, changed), created=state.created + 1, compute_starts=starts)
    return node, Created(gi_id, device.ci_id, device.uuid)


def _room(inside: Iterable[MigDevice], spec: ProfileSpec, profile: MigProfile) -> str:
    left = spec.compute_slices - sum(MigProfile.parse(one.profile).compute_slices for one in inside)
    apart = ", and not side by side" if left >= profile.compute_slices else ""
    return f"has {left} compute slices left{apart}"


def destroy_compute(state: SimulatedNode, step: DestroyCompute) -> SimulatedNode:
    """Raises GpuInUse, NotFound, Unsupported."""
    gpu = gpu_in_mig_mode(state, step.gpu, may_leave=True)
    device = _device_at(gpu, step)
    if uses := [use for use in state.all_uses if use.is_of(gpu.uuid, device)]:
        raise in_use_error(f"{device.uuid} is in use", uses)
    rest = tuple(one for one in gpu.mig_devices if one is not device)
    # The other compute instances keep their slices.
    inside = [one for one in gpu.mig_devices if one.gi_id == device.gi_id]
    starts = {**state.compute_starts, **compute_starts(inside, state.compute_starts)}
    empty = gpu.empty_instances
    if not any(one.gi_id == device.gi_id for one in rest):
        host = EmptyInstance(device.gi_id, step.instance, device.known_placement)
        empty = tuple(sorted([*empty, host], key=lambda one: one.gi_id))
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
