"""The driver's device files: are they there, are they devices, are they of this driver?"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from partage.doctor.decide.observation import DeviceFile
from partage.doctor.host.root import NodeRoot

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
        found = here.stat()
    except OSError:
        return DeviceFile(path, "absent", wanted_major=major)
    if not stat.S_ISCHR(found.st_mode):
        return DeviceFile(path, "other", wanted_major=major)
    return DeviceFile(path, "device", os.major(found.st_rdev), major)
