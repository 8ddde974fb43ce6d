"""Sets a GPU as it was, whatever state a change has left it in. ``python -m tools.on_gpu.put_back`` is a
child.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from partage.codec.values import decode
from partage.edges.hardware.nvml import NvmlHardware
from partage.edges.hardware.port import Hardware
from partage.edges.mps.keeper import MpsKeeper
from partage.errors import GpuLost, PartageError, StateMismatch
from partage.model.geometry import MigProfile
from partage.model.gpu import Gpu
from partage.model.ids import GpuUuid
from partage.model.step import DestroyCompute, DestroyInstance, SetComputeMode, SetMigMode, SetTimeSlice
from tools.on_gpu.journal import OriginalGpu, Unfinished


@asynccontextmanager
async def opened(driver_root: Path, run_dir: Path) -> AsyncIterator[Hardware]:
    """The node by its driver in this process, with the daemons below ``run_dir``."""
    hardware = NvmlHardware(driver_root, keeper=MpsKeeper(run_dir, driver_root))
    try:
        yield hardware
    finally:
        await hardware.close()


async def found(hardware: Hardware, uuid: GpuUuid) -> Gpu:
    """The GPU as it is now. Raises GpuLost."""
    gpu = (await hardware.observe()).gpu(uuid)
    if gpu is None:
        raise GpuLost(f"GPU {uuid} does not answer")
    return gpu


async def original_of(hardware: Hardware, gpu: Gpu) -> OriginalGpu:
    """What is to be put back later."""
    slices = {one.gpu: one.interval for one in await hardware.time_slices()}
    mig = None if gpu.mig_mode is None else gpu.mig_mode.pending
    return OriginalGpu(gpu.uuid, gpu.compute_mode, slices.get(gpu.uuid), mig)


async def put_back(hardware: Hardware, original: OriginalGpu) -> None:
    """Instances first, then MIG mode, compute mode and time slice; then all is read again.

    Raises HardwareError where it is not as it was.
    """
    uuid = original.gpu
    gpu = await found(hardware, uuid)
    if original.mig is False and gpu.mig_mode is not None and (gpu.mig_enabled or gpu.mig_mode.pending):
        await _without_instances(hardware, gpu)
        await hardware.perform(SetMigMode(uuid, False))
    gpu = await found(hardware, uuid)
    if gpu.compute_mode != original.mode:
        await hardware.perform(SetComputeMode(uuid, original.mode, gpu.compute_mode))
    slices = {one.gpu: one.interval for one in await hardware.time_slices()}
    now = slices.get(uuid)
    if original.interval is not None and now is not None and now != original.interval:
        await hardware.perform(SetTimeSlice(uuid, original.interval, now))
    after = await original_of(hardware, await found(hardware, uuid))
    if after != original:
        raise StateMismatch(f"GPU {uuid} is not as it was: {after}, and it was {original}")


async def _without_instances(hardware: Hardware, gpu: Gpu) -> None:
    """It was not in MIG mode before, so that all of them are ours."""
    for device in gpu.mig_devices:
        instance = str(MigProfile.parse(device.profile).gpu_instance)
        await hardware.perform(
            DestroyCompute(
                gpu.uuid, instance, device.known_placement, device.profile, device.gi_id, device.ci_id
            )
        )
    for empty in (await found(hardware, gpu.uuid)).empty_instances:
        await hardware.perform(DestroyInstance(gpu.uuid, empty.profile, empty.placement, empty.gi_id))


async def end_daemons(run_dir: Path, driver_root: Path) -> None:
    """Stop every MPS daemon below a directory, with its clients."""
    keeper = MpsKeeper(run_dir, driver_root)
    for device in keeper.pipes():
        await keeper.stop(device, force=True)


async def _main(text: str) -> None:
    unfinished = decode(Unfinished, text.encode())
    root, work = Path(unfinished.driver_root), Path(unfinished.work)
    for run_dir in (work / "run", work / "step/run"):
        if run_dir.is_dir():
            await end_daemons(run_dir, root)
    if unfinished.original is not None:
        async with opened(root, work / "run") as hardware:
            await put_back(hardware, unfinished.original)


def main(request: str) -> int:
    """request: an ``Unfinished`` in JSON. Exit code of an error."""
    try:
        asyncio.run(_main(request))
    except PartageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    # A thread may hang in the driver: the interpreter would wait for it.
    code = main(sys.argv[1])
    sys.stderr.flush()
    os._exit(code)
