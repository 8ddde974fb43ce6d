"""A driver without a GPU: NVIDIA's own libraries, and the stand-in in place of NVML's."""

from __future__ import annotations

from pathlib import Path

from tests.edges.hardware.stub import StubNode
from tests.nvidia.packages import unpacked

CUDA = "/usr/lib64/libcuda.so.550.163.01"
"""The library that CUDA programs load, below the driver's root and in containers."""
DEVICE_FILES = {
    "nvidia0": (195, 0),
    "nvidia1": (195, 1),
    "nvidiactl": (195, 255),
    "nvidia-uvm": (511, 0),
}
"""Name below ``/dev`` to major and minor number. No driver is behind them."""
OWN_FILE: dict[str, str] = {StubNode.uuid(index): f"/dev/nvidia{1 - index}" for index in range(2)}
"""GPU to its device file: the minor numbers of the stand-in's GPUs are not their indexes."""


def driver_550(root: Path, stub: Path) -> StubNode:
    """Branch 550 and two H100 below ``root``, which is made. stub: the stand-in, compiled.

    Skips the test where NVIDIA's packages are not there.
    """
    packages = unpacked("550") / "usr/lib/x86_64-linux-gnu"
    made = StubNode(root, stub)
    for library in packages.rglob("libcuda.so*"):
        target = made.root / "usr/lib64" / library.name
        if library.is_symlink():
            target.symlink_to(library.readlink())
        else:
            target.write_bytes(library.read_bytes())
    return made.add_h100s(2)
