"""What a step changes on a simulated node. The simulation refuses whatever a driver refuses.

State and step in, state out; an error where the driver says no. Sources: NVIDIA's MIG guide and nvml.h. Where
these leave something open, the simulation is the stricter one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from partage.errors import HardwareError
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
from partage.sim.node.daemons import end_client, start_daemon, stop_daemon
from partage.sim.node.gpu_steps import reset_gpus, set_mig_mode, verify
from partage.sim.node.instance_steps import (
    create_compute,
    create_instance,
    destroy_compute,
    destroy_instance,
)
from partage.sim.node.processes import end_process
from partage.sim.node.settings import set_compute_mode, set_time_slice
from partage.sim.node.state import SimulatedNode

Outcome = tuple[SimulatedNode, Created | HardwareError | None]
"""The node afterwards, and what was created. An error here is one that left something changed."""


def perform_step(state: SimulatedNode, step: Step) -> Outcome:
    """The node after a step. Raises HardwareError where the driver refuses and nothing has changed."""
    match step:
        case SetMigMode():
            return set_mig_mode(state, step)
        case CreateInstance():
            return create_instance(state, step)
        case CreateCompute():
            return create_compute(state, step)
        case _:
            return _CHANGES[type(step)](state, step), None


_CHANGES: Mapping[type[Step], Callable[[SimulatedNode, Any], SimulatedNode]] = {
    Reset: reset_gpus,
    DestroyCompute: destroy_compute,
    DestroyInstance: destroy_instance,
    Verify: verify,
    SetComputeMode: set_compute_mode,
    SetTimeSlice: set_time_slice,
    EndProcess: end_process,
    StartDaemon: start_daemon,
    StopDaemon: stop_daemon,
    EndClient: end_client,
}
"""The other steps, which create nothing."""
