"""The machine that is measured on, and which part of it: the driver's word, read and left as it is."""

from __future__ import annotations

import importlib.resources
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from partage.errors import InputError, Unsatisfiable
from partage.faces.bench.model import Machine, Settings
from partage.faces.bench.places import Place
from partage.faces.words import count_of
from partage.model.gpu import ComputeMode, Driver, Gpu, Inventory
from partage.model.mps import CONTROL_PROGRAM
from partage.model.step import GpuUse, UseKind

_ASSUMED_REPLICAS = 2
"""A share is half the device where nothing says otherwise, as in the articles whose experiment this is."""


def guard_directory() -> Path | None:
    """The guard as it lies in this package, found without importing it."""
    path = Path(str(importlib.resources.files("partage"))) / "guard" / "site"
    return path if (path / "sitecustomize.py").is_file() else None


def cpu_machine() -> Machine:
    """This computer, no GPU."""
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        processors=len(os.sched_getaffinity(0)),
    )


def gpu_machine(inventory: Inventory, gpu: Gpu, uses: Sequence[GpuUse]) -> Machine:
    """This computer and the GPU that is measured on."""
    driver = inventory.driver
    assert isinstance(driver, Driver), "need_driver has seen to it"
    cpu = cpu_machine()
    return Machine(
        system=cpu.system,
        processor=cpu.processor,
        processors=cpu.processors,
        gpu=gpu.product,
        uuid=gpu.uuid,
        memory_bytes=gpu.memory_bytes,
        compute_mode=gpu.compute_mode.word,
        mig_devices=tuple(device.profile for device in gpu.mig_devices),
        driver=driver.version,
        cuda=driver.cuda,
        others=sum(use.gpu == gpu.uuid and computes(use) for use in uses),
    )


def computes(use: GpuUse) -> bool:
    """Neither a monitor nor the MPS daemon's server, which only does what its clients do."""
    return use.kind is not UseKind.MONITOR and "nvidia-cuda-mps" not in use.name


def chosen(inventory: Inventory, wanted: str | None) -> Gpu:
    """The GPU of that index or UUID, or the first. Raises InputError, Unsatisfiable."""
    if not inventory.gpus:
        raise Unsatisfiable("no GPU answers on this node")
    if wanted is None:
        return inventory.gpus[0]
    for gpu in inventory.gpus:
        if wanted in (str(gpu.index), gpu.uuid):
            return gpu
    known = ", ".join(str(gpu.index) for gpu in inventory.gpus)
    raise InputError(f"no GPU {wanted!r} answers on this node", f"there are {known}")


def gpu_place(gpu: Gpu, settings: Settings, pipe: Path | None) -> Place:
    """Where to measure on a GPU: under MIG on its devices, the first standing for "a GPU".

    Raises Unsatisfiable where the GPU is in MIG mode and has no MIG device.
    """
    device, memory_bytes = gpu.uuid, gpu.memory_bytes
    if gpu.mig_mode is not None and gpu.mig_mode.current:
        if not gpu.mig_devices:
            raise Unsatisfiable(
                f"GPU {gpu.index} is in MIG mode and has no MIG device", "partage apply makes some"
            )
        device, memory_bytes = gpu.mig_devices[0].uuid, gpu.mig_devices[0].memory_bytes
    return Place(
        device=device,
        mig=tuple(one.uuid for one in gpu.mig_devices),
        pipe=pipe,
        guard=guard_directory() if settings.guard else None,
        memory_bytes=memory_bytes,
        share_bytes=settings.memory_bytes or memory_bytes // _ASSUMED_REPLICAS,
        exclusive=gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS,
    )


def cpu_place(settings: Settings) -> Place:
    """The CPU, for trying the tool."""
    share = settings.memory_bytes or 0
    return Place(guard=guard_directory() if settings.guard else None, memory_bytes=share, share_bytes=share)


def _has_daemon(pipe: Path) -> bool:
    return any((pipe / name).exists() for name in ("control", f"{CONTROL_PROGRAM}.pid"))


def pipe_of(gpu: Gpu, run_dir: str, named: str | None) -> Path | None:
    """The pipe directory of the MPS daemon for a GPU: the named one, our agent's, or this container's own.

    Raises InputError for a named one that does not exist.
    """
    if named is not None:
        if not Path(named).is_dir():
            raise InputError(
                f"{named} is no directory", "--mps-pipe names the daemon's CUDA_MPS_PIPE_DIRECTORY"
            )
        return Path(named)
    devices = [one.uuid for one in gpu.mig_devices] or [gpu.uuid]
    places = [Path(run_dir) / "mps" / devices[0] / "pipe"]
    if own := os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        places.append(Path(own))
    return next((path for path in places if _has_daemon(path)), None)


def remarks_on(machine: Machine, place: Place, settings: Settings) -> list[str]:
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
