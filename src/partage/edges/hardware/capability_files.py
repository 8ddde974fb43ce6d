"""The device files of MIG instances, ``/dev/nvidia-caps/nvidia-capN``.

Creating an instance does not make them: ``nvidia-smi`` and ``nvidia-modprobe`` do, and so does this module.
Without them no container can use a MIG device.

Source: the files that the kernel module writes, ``/proc/driver/nvidia/capabilities/.../access`` and
``/proc/devices``.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from partage.edges.hardware.host import Host
from partage.model.gpu import MigDevice, capability_file

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
        found = _path(host, minor).stat()
    except OSError:
        return False
    return not stat.S_ISCHR(found.st_mode) or found.st_rdev == number


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
