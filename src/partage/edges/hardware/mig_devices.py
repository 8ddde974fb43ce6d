"""The MIG devices of one GPU: which there are now, their names, placements, device files.

The driver is asked for the UUID of each; for the rest only if it is new. NVML gives the handle of a device
that is gone to the next one (nvml.h, nvmlDeviceGetMigDeviceHandleByIndex). So a handle from before is used
only after its UUID was read again.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from partage.edges.hardware.gpu_queries import Handle, KnownMig, MigInstance
from partage.edges.hardware.host import CapabilityMinors, Host
from partage.edges.hardware.nvml_queries import GiProfile, Nvml
from partage.errors import DriverUnavailable, HardwareError, NotPermitted
from partage.model.geometry import MigProfile, named_gigabytes
from partage.model.gpu import MigDevice, capability_file
from partage.model.ids import MigUuid


def known_migs(nvml: Nvml, gpu: Handle) -> tuple[KnownMig, ...]:
    """The MIG devices of a GPU, by index. Raises HardwareError, also if one vanishes meanwhile."""
    memory, address = nvml.memory.migs, nvml.address(gpu)
    before = memory.pop(address, {})
    now: dict[MigUuid, KnownMig] = {}
    for index, handle in nvml.mig_handles(gpu).items():
        uuid = MigUuid(nvml.uuid(handle))
        same = before.get(uuid) if _is_unique(uuid) else None
        now[uuid] = (
            _read(nvml, gpu, index, handle, uuid)
            if same is None
            else KnownMig(index, handle, same.attributes, same.instance, same.name)
        )
    memory[address] = now
    return tuple(now.values())


def mig_uuid(nvml: Nvml, gpu: Handle, gi_id: int, ci_id: int) -> MigUuid | None:
    """The UUID of the MIG device that is this compute instance now; None if there is none."""
    remembered = nvml.memory.migs.get(nvml.address(gpu), {})
    for mig in (*remembered.values(),):
        if _is(mig, gi_id, ci_id) and _is_listed(nvml, mig):
            return mig.attributes.uuid
    return next(
        (known_mig.attributes.uuid for known_mig in known_migs(nvml, gpu) if _is(known_mig, gi_id, ci_id)),
        None,
    )


def _read(nvml: Nvml, gpu: Handle, index: int, handle: Handle, uuid: MigUuid) -> KnownMig:
    attributes = nvml.mig_attributes(handle, uuid)
    instance: MigInstance | None = None
    try:
        instance = nvml.gpu_instance(gpu, attributes.gi_id)
    except NotPermitted:
        return KnownMig(
            index, handle, attributes, None, str(nvml.optional("nvmlDeviceGetName", handle) or "")
        )
    return KnownMig(index, handle, attributes, instance)


def _is_unique(uuid: MigUuid) -> bool:
    """Before driver 470 the UUID was made of GPU and ids, which the next device can have again."""
    return "/" not in uuid


def _is(mig: KnownMig, gi_id: int, ci_id: int) -> bool:
    return (mig.attributes.gi_id, mig.attributes.ci_id) == (gi_id, ci_id)


def _is_listed(nvml: Nvml, mig: KnownMig) -> bool:
    try:
        return nvml.uuid(mig.handle) == mig.attributes.uuid
    except DriverUnavailable:
        raise
    except HardwareError:
        return False


_READABLE = 0o444
"""Mode of the file where the kernel module does not say which."""


def with_files(host: Host, gpu_minor: int, devices: Iterable[MigDevice]) -> tuple[MigDevice, ...]:
    """The devices, after those of their files were made that did not exist. A file that cannot be made is the
    device's ``missing_file``.

    Nothing is done where the kernel module has no such files.
    """
    major = host.capability_major()
    return tuple(
        device if major is None else replace(device, missing_file=_missing(host, gpu_minor, major, device))
        for device in devices
    )


def _missing(host: Host, gpu_minor: int, major: int, device: MigDevice) -> str:
    instance = f"gpu{gpu_minor}/mig/gi{device.gi_id}"
    files = ((device.gi_minor, instance), (device.ci_minor, f"{instance}/ci{device.ci_id}"))
    for minor, capability in files:
        if minor is not None and not _is_there(host, os.makedev(major, minor), minor):
            _make(host, os.makedev(major, minor), minor, capability)
            if not _is_there(host, os.makedev(major, minor), minor):
                return capability_file(minor)
    return ""


def _path(host: Host, minor: int) -> Path:
    return host.dev / "nvidia-caps" / f"nvidia-cap{minor}"


def _is_there(host: Host, number: int, minor: int) -> bool:
    """Whether the file is there, and leads to this kernel module, whose number changes when it is loaded."""
    try:
        status = _path(host, minor).stat()
    except OSError:
        return False
    return not stat.S_ISCHR(status.st_mode) or status.st_rdev == number


def _make(host: Host, number: int, minor: int, capability: str) -> None:
    """Make the file, unless the node's administrator keeps that to themselves (``DeviceFileModify``)."""
    says = host.capability_rules(capability)
    if says.get("DeviceFileModify", 1) == 0:
        return
    path, mode = _path(host, minor), says.get("DeviceFileMode", _READABLE)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | mode, number)
        path.chmod(mode)  # not by mknod, which applies the umask


_NAME = re.compile(r"MIG \S+$", re.ASCII)
"""The ``1g.10gb`` of ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``."""


def read_mig_devices(
    nvml: Nvml, gpu: Handle, *, gpu_minor: int, gpu_memory_bytes: int, minors: CapabilityMinors
) -> tuple[MigDevice, ...]:
    """All compute instances of a GPU in MIG mode, by NVML's index. Raises HardwareError.

    Where only root may ask for GPU instances (``nvmlDeviceGetGpuInstanceById``), they have no placement, and
    those without a name that has a profile are left out.
    """
    return tuple(
        MigDevice(
            uuid=known.attributes.uuid,
            index=known.index,
            gi_id=known.attributes.gi_id,
            ci_id=known.attributes.ci_id,
            profile=str(_profile(nvml, gpu, known, gpu_memory_bytes)),
            placement=None if known.instance is None else known.instance.placement,
            memory_bytes=known.attributes.memory_bytes,
            gi_minor=minors.get((gpu_minor, known.attributes.gi_id, None)),
            ci_minor=minors.get((gpu_minor, known.attributes.gi_id, known.attributes.ci_id)),
            multiprocessors=known.attributes.multiprocessors or None,
        )
        for known in known_migs(nvml, gpu)
        if known.instance is not None or _NAME.search(known.name)
    )


def _profile(nvml: Nvml, gpu: Handle, known: KnownMig, gpu_memory_bytes: int) -> MigProfile:
    attributes = known.attributes
    try:
        if known.instance is None:
            return MigProfile.parse(known.name.split()[-1])
        kind = nvml.gi_profiles(gpu).get(known.instance.profile_id)
        if kind is None:
            raise HardwareError(f"the GPU instance profile of MIG device {attributes.uuid} is not known")
        gigabytes = named_gigabytes(attributes.memory_bytes, gpu_memory_bytes)
        return profile_of(attributes.compute_slices, kind, gigabytes)
    except ValueError as error:
        raise HardwareError(f"MIG device {attributes.uuid} cannot be named: {error}") from error


def profile_of(compute_slices: int, kind: GiProfile, gigabytes: int) -> MigProfile:
    """The profile of a compute instance in a GPU instance. Raises ValueError if there is no such name."""
    return MigProfile.parse(f"{compute_slices}c.{kind.slices}g.{gigabytes}gb{kind.attribute}")
