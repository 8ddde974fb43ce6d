"""MIG mode of a GPU through NVML: read it, change it, find a GPU that is in it."""

from __future__ import annotations

from collections.abc import Callable

from partage.edges.hardware.checked_change import step_error
from partage.edges.hardware.gpu_queries import Handle
from partage.edges.hardware.host import Host
from partage.edges.hardware.instances import gpu_instances
from partage.edges.hardware.nvml_queries import Nvml
from partage.edges.hardware.translate import RESET_REQUIRED, translate
from partage.errors import GpuInUse, HardwareError, Unsupported
from partage.model.gpu import MigMode
from partage.model.ids import GpuUuid
from partage.model.step import SetMigMode
from partage.values import Frozen

_RESET_HINT = "in a virtual machine reboot it; elsewhere nvidia-smi --gpu-reset while nothing uses the GPU"


class MigGpu(Frozen):
    """A GPU in MIG mode, as it was when the step began. memory_bytes: total memory of the GPU."""

    uuid: GpuUuid
    handle: Handle
    memory_bytes: int


def mig_mode(nvml: Nvml, uuid: GpuUuid) -> MigMode:
    """The GPU's MIG mode. Raises Unsupported for a GPU without MIG, NotFound, GpuLost."""
    mode = nvml.mig_mode(nvml.gpu_handle(uuid))
    if mode is None:
        raise Unsupported(f"GPU {uuid} has no MIG mode")
    return mode


def mig_gpu(nvml: Nvml, uuid: GpuUuid, *, stays_on: bool = False) -> MigGpu:
    """The GPU, which must be in MIG mode. stays_on: and must stay in it after the next reset.

    Raises Unsupported, NotFound, GpuLost.
    """
    handle, mode = nvml.gpu_handle(uuid), mig_mode(nvml, uuid)
    if not mode.current:
        raise Unsupported(f"MIG mode of GPU {uuid} is off")
    if stays_on and not mode.pending:
        raise Unsupported(f"GPU {uuid} leaves MIG mode at its next reset")
    return MigGpu(uuid, handle, nvml.memory_bytes(handle))


def set_mig_mode(nvml: Nvml, host: Host, reopen: Callable[[], None], step: SetMigMode) -> None:
    """Set the mode; it may stay pending until a reset.

    reopen: closes the NVML session with all its handles, which would block the change, and opens a new one.
    Raises HardwareError.
    """
    wanted = step.enabled
    if mig_mode(nvml, step.gpu) == MigMode(wanted, wanted):
        return
    if not wanted:
        _refuse_with_instances(nvml, step)
    reopen()
    without_reset = nvml.mig_without_reset(nvml.gpu_handle(step.gpu))
    refusal: HardwareError | None = None
    activation = 0
    try:
        activation = int(nvml.call("nvmlDeviceSetMigMode", nvml.gpu_handle(step.gpu), int(wanted)))
    except HardwareError as error:
        refusal = error
    # The driver may have unbound and bound the GPU again: old handles are invalid.
    reopen()
    now = mig_mode(nvml, step.gpu)
    if now == MigMode(wanted, wanted):
        return
    if now.pending == wanted and not without_reset:
        return  # pending until a reset, which the plan contains
    if refusal is None and activation == RESET_REQUIRED:
        refusal = Unsupported("the driver asks for a reset, which this GPU should not need", _RESET_HINT)
    elif refusal is None and activation:
        refusal = translate(activation, "nvmlDeviceSetMigMode, activation")
    state = "it is pending" if now.pending == wanted else "the mode is unchanged"
    raise step_error(nvml, host, step, refusal, state)


def _refuse_with_instances(nvml: Nvml, step: SetMigMode) -> None:
    """Turning the mode off destroys all instances. The plan must destroy them first, one by one."""
    if not mig_mode(nvml, step.gpu).current:
        return
    gpu = mig_gpu(nvml, step.gpu)
    instances = gpu_instances(nvml, gpu.handle, gpu.memory_bytes)
    if instances:
        raise GpuInUse(f"cannot {step} on {step.gpu}: there is still {', '.join(map(str, instances))}")
