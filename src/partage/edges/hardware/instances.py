"""The GPU instances and compute instances that NVML lists, with the handles that steps need.

A list call takes nvidia-smi's profile id; query calls take NVML's constants. The same id means other
profiles on other models, so the names are computed for each GPU, as for MIG devices.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterable, Mapping

from partage.edges.hardware.binding import INVALID_ARGUMENT, NOT_FOUND
from partage.edges.hardware.gpu_queries import NOT_HERE, Handle
from partage.edges.hardware.mig_devices import mig_uuid, profile_of
from partage.edges.hardware.nvml_queries import MOST_PROFILES, GiProfile, Nvml, placement_of
from partage.errors import NotPermitted, Unsupported
from partage.model.geometry import Placement, named_gigabytes
from partage.model.gpu import EmptyInstance, MigDevice
from partage.model.ids import MigUuid
from partage.values import Frozen

_MOST = 32
"""More instances than any GPU can have. NVML writes all instances, whatever the size of the buffer."""

_GONE = NOT_HERE | {NOT_FOUND}


class GpuInstance(Frozen):
    """profile: ``3g.40gb``. slices: compute slices for its compute instances."""

    handle: Handle
    gi_id: int
    profile: str
    placement: Placement
    kind: GiProfile
    gigabytes: int

    @property
    def slices(self) -> int:
        return self.kind.slices

    def __str__(self) -> str:
        return f"{self.profile} at {self.placement} (GPU instance {self.gi_id})"


class ComputeInstance(Frozen):
    """profile: ``1c.3g.40gb``, the name of its MIG device. slices: the ``1``."""

    handle: Handle
    ci_id: int
    profile: str
    slices: int
    uuid: MigUuid


def profile_names(profiles: Mapping[int, GiProfile], gpu_memory_bytes: int) -> dict[int, tuple[str, int]]:
    """Profile id to name and the ``40`` in it. Profiles that have no valid name are left out."""
    names: dict[int, tuple[str, int]] = {}
    for profile_id, kind in profiles.items():
        gigabytes = named_gigabytes(kind.memory_bytes, gpu_memory_bytes)
        try:
            names[profile_id] = str(profile_of(kind.slices, kind, gigabytes)), gigabytes
        except ValueError:
            continue
    return names


def gpu_instances(nvml: Nvml, gpu: Handle, gpu_memory_bytes: int) -> tuple[GpuInstance, ...]:
    """All GPU instances of a GPU, by placement. Raises HardwareError."""
    kinds = nvml.gi_profiles(gpu)
    instances = []
    for profile_id, (name, gigabytes) in profile_names(kinds, gpu_memory_bytes).items():
        for handle in _listed(nvml, "nvmlDeviceGetGpuInstances", "c_nvmlGpuInstance_t", gpu, profile_id):
            info = nvml.optional("nvmlGpuInstanceGetInfo", handle, absent=_GONE)
            if info is not None:
                gi_id = int(info.id)
                place = placement_of(gi_id, info)
                instances.append(GpuInstance(handle, gi_id, name, place, kinds[profile_id], gigabytes))
    return tuple(sorted(instances, key=lambda instance: instance.placement))


def compute_profiles(nvml: Nvml, instance: GpuInstance) -> dict[int, int]:
    """nvidia-smi's id of a compute profile to its compute slices, for the profiles that fit this GPU
    instance.

    Of two profiles with as many slices the one with the lower constant counts, which has no attributes.
    """
    found: dict[int, int] = {}
    name, end = "nvmlGpuInstanceGetComputeInstanceProfileInfo", frozenset({INVALID_ARGUMENT})
    for constant in range(MOST_PROFILES):
        try:
            info = nvml.optional(name, instance.handle, constant, 0, 1, absent=end)
        except Unsupported:
            continue  # it does not fit this GPU instance
        if info is None:
            break
        found.setdefault(int(info.id), int(info.sliceCount))
    return found


def compute_instances(nvml: Nvml, gpu: Handle, instance: GpuInstance) -> tuple[ComputeInstance, ...]:
    """All compute instances of a GPU instance, by id. Raises HardwareError."""
    instances = []
    for profile_id, slices in compute_profiles(nvml, instance).items():
        for handle in _listed(
            nvml,
            "nvmlGpuInstanceGetComputeInstances",
            "c_nvmlComputeInstance_t",
            instance.handle,
            profile_id,
        ):
            info = nvml.optional("nvmlComputeInstanceGetInfo", handle, absent=_GONE)
            if info is not None:
                ci_id = int(info.id)
                name = str(profile_of(slices, instance.kind, instance.gigabytes))
                uuid = _uuid(nvml, gpu, Handle(info.device), instance.gi_id, ci_id)
                instances.append(ComputeInstance(handle, ci_id, name, slices, uuid))
    return tuple(sorted(instances, key=lambda compute_instance: compute_instance.ci_id))


def empty_instances(
    nvml: Nvml, gpu: Handle, gpu_memory_bytes: int, devices: Iterable[MigDevice]
) -> tuple[EmptyInstance, ...] | None:
    """GPU instances without compute instances; None: only root may list them. devices: the GPU's MIG devices.

    Not asked for if the MIG devices leave no place for one. Raises HardwareError.
    """
    used = {device.gi_id: device.placement for device in devices}
    try:
        if not _has_room(nvml, gpu, tuple(used.values())):
            return ()
        listed = gpu_instances(nvml, gpu, gpu_memory_bytes)
    except NotPermitted:
        return None
    return tuple(
        EmptyInstance(instance.gi_id, instance.profile, instance.placement)
        for instance in listed
        if instance.gi_id not in used
    )


def _has_room(nvml: Nvml, gpu: Handle, taken: Collection[Placement | None]) -> bool:
    """Whether an instance of any profile has a place beside those that are taken. True if it is not known."""
    memory, address = nvml.memory.places, nvml.address(gpu)
    if address not in memory:
        memory[address] = _all_places(nvml, gpu)
    places = memory[address]
    return places is None or any(
        all(placement is None or not place.overlaps(placement) for placement in taken) for place in places
    )


def _all_places(nvml: Nvml, gpu: Handle) -> tuple[Placement, ...] | None:
    """The placements of all profiles on an empty GPU; None if the driver does not report those of one."""
    found: set[Placement] = set()
    for profile_id in nvml.gi_profiles(gpu):
        places = possible_starts(nvml, gpu, profile_id)
        if places is None:
            return None
        found.update(places)
    return tuple(sorted(found)) or None


def possible_starts(nvml: Nvml, gpu: Handle, profile_id: int) -> tuple[Placement, ...] | None:
    """The placements of a profile on an empty GPU; None if the driver does not report them."""
    name = "nvmlDeviceGetGpuInstancePossiblePlacements"
    count = ctypes.c_uint(0)
    if nvml.optional(name, gpu, profile_id, None, ctypes.byref(count), absent=NOT_HERE) is None:
        return None
    places = (type(nvml.structure("c_nvmlGpuInstancePlacement_t")) * max(count.value, 1))()
    if nvml.optional(name, gpu, profile_id, places, ctypes.byref(count), absent=NOT_HERE) is None:
        return None
    return tuple(Placement(int(place.start), int(place.size)) for place in places[: count.value])


def _listed(nvml: Nvml, call: str, kind: str, of: Handle, profile_id: int) -> list[Handle]:
    handles = (type(nvml.structure(kind)) * _MOST)()
    count = ctypes.c_uint(_MOST)
    if nvml.optional(call, of, profile_id, handles, ctypes.byref(count), absent=_GONE) is None:
        return []
    return [Handle(handle) for handle in handles[: count.value]]


def _uuid(nvml: Nvml, gpu: Handle, device: Handle, gi_id: int, ci_id: int) -> MigUuid:
    """The UUID of the MIG device. Some drivers return its handle where the header promises that of its
    GPU.
    """
    uuid = nvml.uuid(device)
    if uuid.startswith("MIG-"):
        return MigUuid(uuid)
    return mig_uuid(nvml, gpu, gi_id, ci_id) or MigUuid("")
