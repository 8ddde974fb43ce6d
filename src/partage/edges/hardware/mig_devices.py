"""The MIG devices of one GPU: names, placements, device files."""

from __future__ import annotations

from partage.edges.hardware.host import CapabilityMinors
from partage.edges.hardware.readings import GiProfile, Handle, MigAttributes, Nvml
from partage.errors import HardwareError
from partage.model.gpu import MigDevice
from partage.model.profile import MigProfile
from partage.units import GIB


def read_mig_devices(
    nvml: Nvml, gpu: Handle, *, gpu_minor: int, gpu_memory_bytes: int, minors: CapabilityMinors
) -> tuple[MigDevice, ...]:
    """All compute instances of a GPU in MIG mode, by NVML's index. Raises HardwareError."""
    handles = nvml.mig_handles(gpu)
    profiles = nvml.gi_profiles(gpu) if handles else {}
    devices = []
    for index, mig in handles.items():
        attributes = nvml.mig_attributes(mig)
        profile_id, placement = nvml.gpu_instance(gpu, attributes.gi_id)
        profile = _profile(attributes, profiles.get(profile_id), gpu_memory_bytes)
        device = MigDevice(
            uuid=attributes.uuid,
            index=index,
            gi_id=attributes.gi_id,
            ci_id=attributes.ci_id,
            profile=str(profile),
            placement=placement,
            memory_bytes=attributes.memory_bytes,
            gi_minor=minors.get((gpu_minor, attributes.gi_id, None)),
            ci_minor=minors.get((gpu_minor, attributes.gi_id, attributes.ci_id)),
        )
        devices.append(device)
    return tuple(devices)


def _profile(attributes: MigAttributes, kind: GiProfile | None, gpu_memory_bytes: int) -> MigProfile:
    if kind is None:
        raise HardwareError(f"the GPU instance profile of MIG device {attributes.uuid} is not known")
    gigabytes = named_gigabytes(attributes.memory_bytes, gpu_memory_bytes)
    try:
        return named(attributes.compute_slices, kind, gigabytes)
    except ValueError as error:
        raise HardwareError(f"MIG device {attributes.uuid} cannot be named: {error}") from error


def named(compute_slices: int, kind: GiProfile, gigabytes: int) -> MigProfile:
    """The profile of a compute instance in a GPU instance. Raises ValueError if there is no such name."""
    return MigProfile.parse(f"{compute_slices}c.{kind.slices}g.{gigabytes}gb{kind.attribute}")


def named_gigabytes(gi_memory_bytes: int, gpu_memory_bytes: int) -> int:
    """The ``40`` of 3g.40gb: eighths of the GPU's memory, not the real size (1g.12gb can have 10.75 GiB).

    0 if the GPU shares its CPU's memory. Half is rounded up, as in NVIDIA's tools: 1g of a B200 is 22.5, so
    23.
    """
    if gpu_memory_bytes == 0:
        return 0
    eighths = -(-gi_memory_bytes * 8 // gpu_memory_bytes)
    gib = -(-gpu_memory_bytes // GIB)
    return (eighths * gib + 4) // 8
