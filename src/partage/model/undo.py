"""The steps that undo steps, and what a step affects beyond the thing that it names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from partage.model.ids import GpuUuid
from partage.model.mps import DaemonSpec
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    EndClient,
    EndProcess,
    PlannedStep,
    Reset,
    SetComputeMode,
    SetMemoryLimit,
    SetMigMode,
    SetNamespace,
    SetTimeSlice,
    StartDaemon,
    Step,
    StopDaemon,
    Verify,
)
from partage.values import Frozen


def reverse(step: Step, made: Created | None = None) -> Step | None:
    """The step that undoes a step. None for a step that changes nothing or cannot be undone; reset: see
    ``undo``.

    made: what the step created, if known. A MIG device that is created again has a new UUID.
    """
    match step:
        case SetMigMode(gpu, enabled):
            return SetMigMode(gpu, not enabled)
        case DestroyCompute(gpu, instance, placement, profile):
            return CreateCompute(gpu, instance, placement, profile)
        case DestroyInstance(gpu, profile, placement):
            return CreateInstance(gpu, profile, placement)
        case CreateInstance(gpu, profile, placement):
            return DestroyInstance(gpu, profile, placement, made.gi_id if made else None)
        case CreateCompute(gpu, instance, placement, profile):
            known = (made.gi_id, made.ci_id, made.uuid) if made else (None, None, "")
            return DestroyCompute(gpu, instance, placement, profile, *known)
        case SetComputeMode(gpu, mode, before):
            return SetComputeMode(gpu, before, mode)
        case SetTimeSlice(gpu, interval, before):
            return SetTimeSlice(gpu, before, interval)
        case StartDaemon(gpu, spec):
            return StopDaemon(gpu, spec.device, spec)
        case StopDaemon(gpu, _, DaemonSpec() as spec):
            return StartDaemon(gpu, spec)
        case (
            Reset() | Verify() | EndProcess() | StopDaemon() | EndClient() | SetNamespace() | SetMemoryLimit()
        ):
            return None
        case _:
            assert_never(step)


def undo(done: Iterable[tuple[Step, Created | None]]) -> tuple[Step, ...]:
    """The steps that undo ``done``, the last one first.

    A reset is undone by another reset, after the MIG modes before it are set back: only then do the old
    modes take effect, and the instances can be created again.
    """
    back: list[Step] = []
    reset: Reset | None = None
    for step, made in reversed(list(done)):
        if reset is not None and not isinstance(step, SetMigMode):
            back.append(reset)
            reset = None
        if isinstance(step, Reset):
            reset = step
        elif (one := reverse(step, made)) is not None:
            back.append(one)
    return (*back, reset) if reset is not None else tuple(back)


class BlastRadius(Frozen):
    """What a step affects beyond the thing that it names.

    idle: GPUs, by UUID, that must be idle and lose all their instances; empty if all other instances keep
    running.
    reboot: as in ``Reset``.
    """

    idle: tuple[GpuUuid, ...] = ()
    reboot: bool | None = False


def blast_radius(step: PlannedStep) -> BlastRadius:
    """The blast radius of a step. Instances are isolated: to make or destroy one touches no other."""
    match step:
        case SetMigMode(gpu):
            return BlastRadius((gpu,))
        case Reset(gpus):
            return BlastRadius(gpus, step.reboot)
        case _:
            return BlastRadius()
