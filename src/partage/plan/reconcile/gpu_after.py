"""GPUs as they will be once the steps of a plan are carried out, and what they still need then. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from msgspec.structs import replace

from partage.model.geometry import Geometry, MigProfile, instance_memory
from partage.model.gpu import ComputeMode, Gpu, MigDevice, MigMode
from partage.model.ids import DeviceUuid, planned_uuid
from partage.model.mps import DaemonState
from partage.model.step import (
    CreateCompute,
    DestroyCompute,
    PlannedStep,
    Reset,
    SetComputeMode,
    SetMigMode,
    StartDaemon,
    StartDaemonAt,
    Step,
    StopDaemon,
    gpus_of,
)
from partage.model.strategy import Interval
from partage.plan.offer.settings import GpuSettings
from partage.plan.reconcile.settings_steps import OriginalSettings, settings_steps, slice_steps


def gpu_after(gpu: Gpu, steps: Iterable[Step], geometry: Geometry | None) -> Gpu:
    """The GPU after ``steps``, those of other GPUs among them.

    A new MIG device has the lowest free index and a ``planned_uuid``. geometry: of the GPU's model.
    """
    for step in steps:
        if isinstance(step, Reset) and gpu.uuid in step.gpus:
            gpu = _reset(gpu, gpu.mig_enabled)
        elif not isinstance(step, Reset) and step.gpu == gpu.uuid:
            gpu = _after_one(gpu, step, geometry)
    return gpu


def steps_after(
    gpu: Gpu,
    first: Sequence[Step],
    geometry: Geometry | None,
    want: GpuSettings,
    *,
    daemons: Iterable[DaemonState],
    interval: Interval | None,
    original: OriginalSettings,
) -> tuple[PlannedStep, ...]:
    """The steps to ``want`` once the steps ``first`` are done: daemons, compute mode, time slice.

    want: of the GPU as it will be (``gpu_after``). daemons: those of the GPU now. interval: its time
    slice now, if it reports one.
    """
    made = gpu_after(gpu, first, geometry)
    stopped = {step.device for step in first if isinstance(step, StopDaemon)}
    left = [daemon for daemon in daemons if daemon.device not in stopped]
    steps = settings_steps(made, want, left, original)
    there = {device.uuid for device in gpu.mig_devices}
    new: dict[DeviceUuid, MigDevice] = {
        device.uuid: device for device in made.mig_devices if device.uuid not in there
    }
    slices = slice_steps(gpu.uuid, want, _interval_after(made, first, interval), original)
    return (*(_planned(step, new) for step in (*steps.end, *steps.make)), *slices)


def _planned(step: Step, new: Mapping[DeviceUuid, MigDevice]) -> PlannedStep:
    """A MIG device that is not made yet has no UUID, so its place is named."""
    if not isinstance(step, StartDaemon) or step.spec.device not in new:
        return step
    device = new[step.spec.device]
    return StartDaemonAt(step.gpu, device.profile, device.known_placement, step.spec.limits)


def _interval_after(made: Gpu, first: Iterable[Step], interval: Interval | None) -> Interval | None:
    """A change of MIG mode, and a reset, bring the default length; in MIG mode a GPU has none."""
    if made.mig_enabled:
        return None
    reset = any(isinstance(step, (SetMigMode, Reset)) and made.uuid in gpus_of(step) for step in first)
    return Interval.DEFAULT if reset else interval


def _after_one(gpu: Gpu, step: Step, geometry: Geometry | None) -> Gpu:
    match step:
        case SetMigMode(enabled=enabled):
            return _reset(gpu, enabled)
        case SetComputeMode(mode=mode):
            return replace(gpu, compute_mode=mode)
        case DestroyCompute(uuid=uuid):
            return replace(
                gpu, mig_devices=tuple(device for device in gpu.mig_devices if device.uuid != uuid)
            )
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
    taken = {device.index for device in gpu.mig_devices}
    index = next(number for number in count() if number not in taken)
    siblings = [device for device in gpu.mig_devices if device.placement == step.placement]
    spec = geometry.spec(MigProfile.parse(step.instance)) if geometry is not None else None
    assert geometry is not None
    assert spec is not None, "steps that make a MIG device were planned with its profile"
    return MigDevice(
        uuid=planned_uuid(gpu.uuid, index),
        index=index,
        gi_id=siblings[0].gi_id if siblings else -1 - step.placement.start,
        ci_id=len(siblings),
        profile=step.profile,
        placement=step.placement,
        memory_bytes=instance_memory(spec, geometry, gpu.memory_bytes),
    )
