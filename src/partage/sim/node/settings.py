"""Compute mode and time slice of a simulated GPU.

As strict as hardware, and stricter where that is not known: in MIG mode a GPU has neither of the two.
"""

from __future__ import annotations

from msgspec.structs import replace

from partage.edges.hardware.gpu_settings import HINT, refuse_if_blocked
from partage.errors import StateMismatch, Unsupported
from partage.model.gpu import ComputeMode, Gpu
from partage.model.step import SetComputeMode, SetTimeSlice, TimeSlice
from partage.model.strategy import Interval
from partage.sim.node.preconditions import answering_gpu
from partage.sim.node.processes import processes_of
from partage.sim.node.state import SimulatedNode, with_gpu


def set_compute_mode(state: SimulatedNode, step: SetComputeMode) -> SimulatedNode:
    """Raises GpuInUse, GpuLost, StateMismatch, NotFound, Unsupported."""
    gpu = answering_gpu(state, step.gpu)
    if gpu.compute_mode == step.mode:
        return state
    if gpu.mig_enabled:
        raise Unsupported(f"GPU {gpu.index} is in MIG mode: its MIG devices have no compute mode")
    if step.mode is ComputeMode.EXCLUSIVE_THREAD:
        raise Unsupported("exclusive-thread mode is gone since CUDA 8")
    if gpu.compute_mode != step.before:
        raise StateMismatch(
            f"the compute mode of GPU {gpu.index} is {gpu.compute_mode.word}, not {step.before.word}"
        )
    refuse_if_blocked(processes_of(state).rows, step)
    return with_gpu(state, replace(gpu, compute_mode=step.mode))


def set_time_slice(state: SimulatedNode, step: SetTimeSlice) -> SimulatedNode:
    """Raises GpuLost, StateMismatch, NotFound, Unsupported."""
    gpu = answering_gpu(state, step.gpu)
    now = _time_slice_of(state, gpu)
    if now.interval is None:
        raise Unsupported(f"GPU {gpu.index}: {now.reason}", HINT)
    if now.interval is step.interval:
        return state
    if now.interval is not step.before:
        raise StateMismatch(f"the time slice of GPU {gpu.index} is {now.interval}, not {step.before}")
    return replace(state, time_slices={**state.time_slices, gpu.index: step.interval})


def time_slices_of(state: SimulatedNode) -> tuple[TimeSlice, ...]:
    """The time slices of the GPUs that answer, by index."""
    return tuple(
        _time_slice_of(state, gpu) for index, gpu in sorted(state.gpus.items()) if index not in state.lost
    )


def _time_slice_of(state: SimulatedNode, gpu: Gpu) -> TimeSlice:
    interval = state.time_slices.get(gpu.index, Interval.DEFAULT)
    if interval is None:
        return TimeSlice(gpu.uuid, None, "the driver of this GPU keeps the length of its time slice")
    if gpu.mig_enabled:
        return TimeSlice(gpu.uuid, None, "in MIG mode a GPU has no time slice to set")
    return TimeSlice(gpu.uuid, interval)
