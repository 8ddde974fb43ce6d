"""The machine that is measured, and which part of it. Nothing is changed."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from partage.errors import Unsatisfiable
from partage.lab.bench.model import BenchMachine, BenchSettings
from partage.lab.gpus import guard_directory, is_workload, mode_name
from partage.lab.place import TenantPlace
from partage.model.gpu import ComputeMode, Driver, Gpu, Inventory
from partage.model.gpu_use import GpuUse
from partage.model.ids import DeviceUuid
from partage.text import count_of

_ASSUMED_REPLICAS = 2
"""A share is half the device where nothing says otherwise, as in the articles whose experiment this is."""


def cpu_machine() -> BenchMachine:
    """This computer, without a GPU."""
    return BenchMachine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        processors=len(os.sched_getaffinity(0)),
    )


def gpu_machine(inventory: Inventory, gpu: Gpu, uses: Sequence[GpuUse]) -> BenchMachine:
    """This computer and the GPU that is measured."""
    driver = inventory.driver
    assert isinstance(driver, Driver), "a caller checks that there is a driver"
    return replace(
        cpu_machine(),
        gpu=gpu.product,
        uuid=gpu.uuid,
        memory_bytes=gpu.memory_bytes,
        compute_mode=mode_name(gpu),
        mig_devices=tuple(device.profile for device in gpu.mig_devices),
        driver=driver.version,
        cuda=driver.cuda,
        others=sum(use.gpu == gpu.uuid and is_workload(use) for use in uses),
    )


def gpu_place(gpu: Gpu, settings: BenchSettings, pipe: Path | None) -> TenantPlace:
    """The places to measure on a GPU: under MIG on its devices, the first standing for "a GPU".

    Raises Unsatisfiable where the GPU is in MIG mode and has no MIG device.
    """
    device: DeviceUuid = gpu.uuid
    memory_bytes = gpu.memory_bytes
    if gpu.mig_enabled:
        if not gpu.mig_devices:
            raise Unsatisfiable(
                f"GPU {gpu.index} is in MIG mode and has no MIG device", "partage apply makes some"
            )
        device, memory_bytes = gpu.mig_devices[0].uuid, gpu.mig_devices[0].memory_bytes
    return TenantPlace(
        device=device,
        mig=tuple(mig.uuid for mig in gpu.mig_devices),
        pipe=pipe,
        guard=guard_directory() if settings.guard else None,
        memory_bytes=memory_bytes,
        share_bytes=settings.memory_bytes or memory_bytes // _ASSUMED_REPLICAS,
        exclusive=gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS,
    )


def cpu_place(settings: BenchSettings) -> TenantPlace:
    """The CPU, to try the tool."""
    share = settings.memory_bytes or 0
    return TenantPlace(
        guard=guard_directory() if settings.guard else None, memory_bytes=share, share_bytes=share
    )


def remarks_on(machine: BenchMachine, place: TenantPlace, settings: BenchSettings) -> list[str]:
    """What to know before relying on the figures."""
    found: list[str] = []
    if not place.on_gpu:
        found.append("Measured on the CPU: this tries the tool and says nothing about any GPU.")
        return found
    if settings.engine != "torch":
        found.append("Measured without PyTorch.")
    if machine.others:
        found.append(
            f"{count_of(machine.others, 'other process', 'other processes')} had the GPU open at the start."
        )
    if place.pipe is None:
        found.append("No MPS control daemon was there for this GPU: MPS was not measured.")
    elif place.exclusive:
        found.append("The GPU was in exclusive-process mode: processes beside the MPS daemon are refused.")
    if place.mig and max(settings.processes) > len(place.mig):
        found.append(f"The GPU has {count_of(len(place.mig), 'MIG device')}: no more processes had one each.")
    if settings.guard and place.guard is None:
        found.append("The guard is not part of this installation: its cost was not measured.")
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
