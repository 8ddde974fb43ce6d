"""The steps that NVML can do: MIG mode, GPU instances, compute instances, compute mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from partage.edges.hardware.compute_mode import set_compute_mode
from partage.edges.hardware.host import Host
from partage.edges.hardware.mig_instances import MigInstances
from partage.edges.hardware.mig_mode import set_mig_mode
from partage.edges.hardware.readings import Nvml
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


class NvmlSteps:
    """Performs one step at a time, on one thread."""

    def __init__(self, nvml: Nvml, host: Host, reopen: Callable[[], None]) -> None:
        """reopen: closes the NVML session with all its handles and opens a new one."""
        self._nvml = nvml
        self._host = host
        self._reopen = reopen
        self._instances = MigInstances(nvml, host)

    def perform(self, step: Step) -> Created | None:
        """Perform one step. Raises HardwareError as ``Hardware.perform`` says.

        Raises Unsupported for a step that NVML has no call for: reset, time slice, process, MPS daemon.
        """
        match step:
            case CreateInstance():
                return self._instances.create_gpu_instance(step)
            case CreateCompute():
                return self._instances.create_compute_instance(step)
            case SetMigMode():
                set_mig_mode(self._nvml, self._host, self._reopen, step)
            case DestroyCompute():
                self._instances.destroy_compute_instance(step)
            case DestroyInstance():
                self._instances.destroy_gpu_instance(step)
            case Verify():
                self._instances.verify(step)
            case SetComputeMode():
                set_compute_mode(self._nvml, self._host, step, self._nvml.gpu_handle(step.gpu))
            case Reset() | SetTimeSlice() | EndProcess() | StartDaemon() | StopDaemon() | EndClient():
                raise Unsupported(f"NVML has no call to {step}")
            case _:
                assert_never(step)
        return None
