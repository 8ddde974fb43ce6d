"""What the kernel of a machine says: its GPUs on the PCI bus with or without a driver, the driver's device
files, its clock, its disks.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from partage.doctor.decide.observation import Clock, DeviceFile, Disk, PciGpu, Unseen
from partage.doctor.host.root import NodeRoot

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""PCI class of display and 3D controllers."""


def nvidia_gpus(root: NodeRoot) -> tuple[PciGpu, ...] | Unseen:
    """All of them, by address. A machine without a PCI bus has none."""
    devices = root.sys / "bus/pci/devices"
    try:
        if not devices.exists():
            there = (root.sys / "bus").is_dir()
            return () if there else Unseen(f"{root.sys}/bus cannot be read")
        paths = sorted(devices.iterdir())
    except OSError as error:
        return Unseen(f"{devices} cannot be read: {error.strerror}")
    return tuple(PciGpu(path.name, _driver(path)) for path in paths if _is_gpu(path))


def _is_gpu(device: Path) -> bool:
    """Not one of the virtual functions that a hypervisor gives to its machines."""
    if (device / "physfn").is_symlink():
        return False
    return _text(device / "vendor") == _NVIDIA and _text(device / "class").startswith(_DISPLAY)


def _driver(device: Path) -> str:
    try:
        return (device / "driver").readlink().name
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


_MAJOR = re.compile(r"^\s*(\d+) (nvidia\S*)$", re.MULTILINE | re.ASCII)
_CONTROL = "nvidiactl"
_UVM = "nvidia-uvm"
_CONTROL_MINOR = 255


def device_files(root: NodeRoot, driver_root: Path, minors: Iterable[int]) -> tuple[DeviceFile, ...]:
    """What every container with a GPU needs. minors: of the node's GPUs. driver_root: a driver in a container
    may have its device files there.
    """
    inside = driver_root / "dev"
    dev = inside if not (root.dev / _CONTROL).exists() and (inside / _CONTROL).exists() else root.dev
    majors = _majors(root)
    own = majors.get("nvidia", majors.get("nvidia-frontend"))
    wanted = {
        _CONTROL: majors.get(_CONTROL, own),
        _UVM: majors.get(_UVM),
        **{f"nvidia{minor}": own for minor in sorted(minors)},
    }
    return tuple(_file(dev / name, name, major) for name, major in wanted.items())


def char_links(root: NodeRoot) -> bool | None:
    """Whether /dev/char has a link to nvidiactl; None: its number is not known."""
    majors = _majors(root)
    major = majors.get(_CONTROL, majors.get("nvidia", majors.get("nvidia-frontend")))
    return None if major is None else (root.dev / f"char/{major}:{_CONTROL_MINOR}").exists()


def _majors(root: NodeRoot) -> Mapping[str, int]:
    try:
        text = (root.proc / "devices").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    return {name: int(major) for major, name in _MAJOR.findall(text)}


def _file(here: Path, name: str, major: int | None) -> DeviceFile:
    path = f"/dev/{name}"
    try:
        status = here.stat()
    except OSError:
        return DeviceFile(path, "absent", wanted_major=major)
    if not stat.S_ISCHR(status.st_mode):
        return DeviceFile(path, "other", wanted_major=major)
    return DeviceFile(path, "device", os.major(status.st_rdev), major)


_SYNCHRONISED_US = 16_000_000
"""Up to this error, in microseconds, the kernel counts the clock as synchronised, and timedatectl too."""


class _Timex(ctypes.Structure):
    """The beginning of ``struct timex`` (adjtimex(2)), and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("rest", ctypes.c_byte * 256),
    )


def clock_seen() -> Clock | Unseen:
    """What the kernel says of its clock. It is only asked, not changed."""
    state = _Timex()
    library = ctypes.CDLL(None, use_errno=True)
    if library.adjtimex(ctypes.byref(state)) < 0:
        return Unseen(f"the kernel does not say how right its clock is: {os.strerror(ctypes.get_errno())}")
    return Clock(state.maxerror < _SYNCHRONISED_US, state.maxerror / 1e6)


def disks_seen(root: NodeRoot, directories: Iterable[str]) -> tuple[Disk, ...]:
    """The file systems of directories; of one that does not exist, that of the next one above it."""
    disks = []
    for directory in directories:
        path = root.at(directory)
        while not os.access(path, os.F_OK) and path != path.parent:
            path = path.parent
        try:
            told = os.statvfs(path)
        except OSError:
            continue
        disks.append(
            Disk(
                directory,
                told.f_bavail * told.f_frsize,
                told.f_favail if told.f_files else None,
                bool(told.f_flag & os.ST_RDONLY),
            )
        )
    return tuple(disks)
