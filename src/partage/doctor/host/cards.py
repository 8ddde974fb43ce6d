"""The GPUs that the kernel sees on the PCI bus, with or without a driver."""

from __future__ import annotations

from pathlib import Path

from partage.doctor.decide.observation import Card, Unseen
from partage.doctor.host.root import NodeRoot

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""PCI class of display and 3D controllers."""


def nvidia_cards(root: NodeRoot) -> tuple[Card, ...] | Unseen:
    """All of them, by address. A machine without a PCI bus has none."""
    devices = root.sys / "bus/pci/devices"
    try:
        if not devices.exists():
            there = (root.sys / "bus").is_dir()
            return () if there else Unseen(f"{root.sys}/bus cannot be read")
        found = sorted(devices.iterdir())
    except OSError as error:
        return Unseen(f"{devices} cannot be read: {error.strerror}")
    return tuple(Card(one.name, _driver(one)) for one in found if _is_gpu(one))


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
