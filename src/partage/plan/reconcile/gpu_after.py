"""GPUs as they will be once the steps of a plan are carried out. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from msgspec.structs import replace

from partage.model.geometry import Geometry, instance_memory
from partage.model.gpu import ComputeMode, Gpu, MigDevice, MigMode
from partage.model.profile import MigProfile
from partage.model.step import CreateCompute, DestroyCompute, Reset, SetComputeMode, SetMigMode, Step


def gpu_after(gpu: Gpu, steps: Iterable[Step], geometry: Geometry | None) -> Gpu:
    """The GPU after ``steps``, those of other GPUs among them.

    A new MIG device has the lowest free index and a UUID of no meaning. geometry: of the GPU's model.
    """
    for step in steps:
        if isinstance(step, Reset) and gpu.uuid in step.gpus:
            gpu = _reset(gpu, gpu.mig_enabled)
        elif not isinstance(step, Reset) and step.gpu == gpu.uuid:
            gpu = _after_one(gpu, step, geometry)
    return gpu


def _after_one(gpu: Gpu, step: Step, geometry: Geometry | None) -> Gpu:
    match step:
        case SetMigMode(enabled=enabled):
            return _reset(gpu, enabled)
        case SetComputeMode(mode=mode):
            return replace(gpu, compute_mode=mode)
        case DestroyCompute(uuid=uuid):
            return replace(gpu, mig_devices=tuple(one for one in gpu.mig_devices if one.uuid != uuid))
        case CreateCompute():
            devices = (*gpu.mig_devices, _device(gpu, step, geometry))
            return replace(gpu, mig_devices=tuple(sorted(devices, key=lambda one: one.index)))
        case _:
            return gpu


def _reset(gpu: Gpu, enabled: bool) -> Gpu:
    """A change of MIG mode, and a reset, end all instances and bring the default compute mode."""
    mode = MigMode(enabled, enabled) if gpu.mig_mode is not None else None
    return replace(gpu, mig_mode=mode, mig_devices=(), compute_mode=ComputeMode.DEFAULT)


def _device(gpu: Gpu, step: CreateCompute, geometry: Geometry | None) -> MigDevice:
    taken = {one.index for one in gpu.mig_devices}
    index = next(number for number in count() if number not in taken)
    siblings = [one for one in gpu.mig_devices if one.placement == step.placement]
    spec = geometry.spec(MigProfile.parse(step.instance)) if geometry is not None else None
    assert geometry is not None
    assert spec is not None, "steps that make a MIG device were planned with its profile"
    return MigDevice(
        uuid=f"MIG-{gpu.uuid}-{index}",
        index=index,
        gi_id=siblings[0].gi_id if siblings else -1 - step.placement.start,
        ci_id=len(siblings),
        profile=step.profile,
        placement=step.placement,
        memory_bytes=instance_memory(spec, geometry, gpu.memory_bytes),
    )
