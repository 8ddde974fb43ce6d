"""The MIG devices of one GPU: names, placements, device files."""

from __future__ import annotations

from partage.edges.hardware.host import CapabilityMinors
from partage.edges.hardware.nvml_queries import GiProfile, Handle, MigAttributes, Nvml
from partage.errors import HardwareError
from partage.model.gpu import MigDevice
from partage.model.profile import MigProfile, named_gigabytes


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
            multiprocessors=attributes.multiprocessors or None,
        )
        devices.append(device)
    return tuple(devices)


def _profile(attributes: MigAttributes, kind: GiProfile | None, gpu_memory_bytes: int) -> MigProfile:
    if kind is None:
        raise HardwareError(f"the GPU instance profile of MIG device {attributes.uuid} is not known")
    gigabytes = named_gigabytes(attributes.memory_bytes, gpu_memory_bytes)
    try:
        return profile_of(attributes.compute_slices, kind, gigabytes)
    except ValueError as error:
        raise HardwareError(f"MIG device {attributes.uuid} cannot be named: {error}") from error


def profile_of(compute_slices: int, kind: GiProfile, gigabytes: int) -> MigProfile:
    """The profile of a compute instance in a GPU instance. Raises ValueError if there is no such name."""
    return MigProfile.parse(f"{compute_slices}c.{kind.slices}g.{gigabytes}gb{kind.attribute}")
