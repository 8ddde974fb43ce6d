"""The steps that NVML can do: MIG mode, GPU instances, compute instances, compute mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from partage.edges.hardware.compute_mode import set_compute_mode
from partage.edges.hardware.host import Host
from partage.edges.hardware.mig_instances import MigInstances
from partage.edges.hardware.mig_mode import set_mig_mode
from partage.edges.hardware.nvml_queries import Nvml
from partage.errors import Unsupported
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    EndClient,
    EndProcess,
    Reset,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    StartDaemon,
    Step,
    StopDaemon,
    Verify,
)


def perform_step(nvml: Nvml, host: Host, reopen: Callable[[], None], step: Step) -> Created | None:
    """Perform one step, on the thread of the session. Raises HardwareError as ``Hardware.perform`` says.

    reopen: closes the NVML session with all its handles and opens a new one. Raises Unsupported for a step
    that NVML has no call for: reset, time slice, process, MPS daemon.
    """
    instances = MigInstances(nvml, host)
    match step:
        case CreateInstance():
            return instances.create_gpu_instance(step)
        case CreateCompute():
            return instances.create_compute_instance(step)
        case SetMigMode():
            set_mig_mode(nvml, host, reopen, step)
        case DestroyCompute():
            instances.destroy_compute_instance(step)
        case DestroyInstance():
            instances.destroy_gpu_instance(step)
        case Verify():
            instances.verify(step)
        case SetComputeMode():
            set_compute_mode(nvml, host, step, nvml.gpu_handle(step.gpu))
        case Reset() | SetTimeSlice() | EndProcess() | StartDaemon() | StopDaemon() | EndClient():
            raise Unsupported(f"NVML has no call to {step}")
        case _:
            assert_never(step)
    return None
