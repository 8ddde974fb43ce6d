"""Drivers whose library lacks functions that Partage calls: what is lost, and that nothing else is.

A function is taken away from the stand-in by renaming it in the table of symbols, so that the loader does
not find it, as in a library that was built before it was written.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from partage.edges.hardware.binding import find_library
from partage.edges.hardware.nvml import NvmlHardware
from partage.model.driver_limit import LimitObstacle, LimitSupport
from partage.model.gpu import Driver, NoDriver
from partage.model.nvml_functions import USES
from tests.edges.hardware.stub import StubNode
from tests.nvidia.packages import BRANCHES, nvml_library

NEEDED = {
    "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetName",
    "nvmlDeviceGetCudaComputeCapability",
}
"""Without these no GPU is seen, and the reason names them."""

NOT_HERE = "nvmlDeviceGetCurrentClocksEventReasons"
"""The stand-in has the older one of a pair of which one is enough."""

_MODE = "nvmlDeviceGetAddressingMode"
_LIMITS = ("nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1")
LACKS = {
    "535": ("nvmlDeviceGetGpuFabricInfoV", _MODE, *_LIMITS),
    "550": (_MODE, *_LIMITS),
    "555": (_MODE, *_LIMITS),
}
"""By branch: 535.261.03, 550.163.01, 555.58.02."""


def _functions(library: Path) -> list[str]:
    """The functions that the stand-in exports: those that Partage calls."""
    words = library.read_bytes().split(b"\0")
    names = {word.decode() for word in words if word.startswith(b"nvml") and word.isascii()}
    loaded = ctypes.CDLL(str(library))
    return sorted(name for name in names if name.isalnum() or "_v" in name if hasattr(loaded, name))


async def _seen(node: StubNode) -> dict[str, Any]:
    node.add_h100s(2).with_live_mig(0).works(42, gpu=1, used=100)
    hardware = NvmlHardware(node.root, host=node.host)
    try:
        inventory = await hardware.observe()
        if isinstance(inventory.driver, NoDriver) or inventory.lost:
            return {"inventory": inventory}
        return {
            "inventory": inventory,
            "conditions": await hardware.conditions(),
            "uses": await hardware.uses(),
            "processes": await hardware.processes(),
            "gpus sampled": len((await hardware.samples()).gpus),
        }
    finally:
        await hardware.close()


async def test_every_function_is_missed_by_itself(stub_library: Path, short_dir: Path) -> None:
    """The agent sees its GPUs all the same, or says which function it needs."""
    whole = await _seen(StubNode(short_dir / "whole", stub_library))
    first_of = {name: names for names in USES for name in names}
    for position, name in enumerate(_functions(stub_library)):
        node = StubNode(short_dir / str(position), stub_library)
        node.lacks(name)
        seen = await _seen(node)
        inventory = seen["inventory"]
        if name in NEEDED:
            reasons = [one.reason for one in inventory.lost] or [inventory.driver.reason]
            assert all("the driver's library is too old" in reason for reason in reasons)
            assert name == "nvmlInitWithFlags" or all(name.partition("_v")[0] in one for one in reasons)
            continue
        assert [gpu.uuid for gpu in inventory] == [gpu.uuid for gpu in whole["inventory"]], name
        assert seen.keys() == whole.keys(), name
        group = first_of.get(name, ())
        gone = (group[0],) if group and not {*group} - {name, NOT_HERE} else ()
        assert isinstance(inventory.driver, Driver)
        assert inventory.driver.lacks == gone, name


def test_the_table_names_functions_that_are_called() -> None:
    source = "\n".join(
        path.read_text() for path in Path(find_library.__code__.co_filename).parent.glob("*.py")
    )
    for names in USES:
        for name in names:
            assert name in source or name.rpartition("_v")[0] in source


@pytest.mark.parametrize("branch", BRANCHES)
async def test_a_branch_loses_only_what_it_lacks(branch: str, stub_library: Path, short_dir: Path) -> None:
    """The symbols of NVIDIA's own library of that branch."""
    real = ctypes.CDLL(str(nvml_library(branch)))
    lacking = [name for name in _functions(stub_library) if not hasattr(real, name)]
    assert set(lacking) == set(LACKS[branch])
    node = StubNode(short_dir / "old", stub_library)
    node.lacks(*lacking)
    old, whole = await _seen(node), await _seen(StubNode(short_dir / "whole", stub_library))
    assert old["inventory"].driver.lacks == LACKS[branch]
    unlimited = LimitSupport(obstacle=LimitObstacle.DRIVER)
    assert old["inventory"].gpus == tuple(
        replace(gpu, addressing_mode=None, limits=unlimited) for gpu in whole["inventory"].gpus
    )
    assert {key: old[key] for key in ("uses", "processes", "gpus sampled")} == {
        key: whole[key] for key in ("uses", "processes", "gpus sampled")
    }


async def test_the_real_library_without_a_driver_says_so(short_dir: Path) -> None:
    """NVIDIA's own libraries of three branches, each loaded after the other in one process."""
    for branch in BRANCHES:
        library = nvml_library(branch)
        root = short_dir / branch
        target = root / "usr/lib64/libnvidia-ml.so.1"
        target.parent.mkdir(parents=True)
        target.symlink_to(library.resolve())
        hardware = NvmlHardware(root)
        inventory = await hardware.observe()
        await hardware.close()
        assert isinstance(inventory.driver, NoDriver)
        assert inventory.driver.kind == "driver-missing", branch
