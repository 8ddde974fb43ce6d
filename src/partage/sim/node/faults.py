"""What can go wrong on a simulated node, as values. ``SimulatedHardware.inject`` makes a fault happen.

``gpu`` is always the NVML index, which a GPU keeps while it is lost. str(fault) is a sentence for people.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from partage.errors import HardwareError
from partage.model.gpu import RecoveryAction
from partage.model.gpu_use import UseKind
from partage.model.ids import ContainerId, PodUid
from partage.model.layout import LayoutItem
from partage.model.mps import DaemonPhase
from partage.sim.node.load import Load, Sensors
from partage.values import Frozen

Call = Literal[
    "observe",
    "conditions",
    "events",
    "perform",
    "uses",
    "processes",
    "left",
    "samples",
    "time-slices",
    "daemons",
    "limits",
    "tenants",
]
"""A verb of the hardware port."""


class LoseGpu(Frozen):
    """The GPU falls off the bus. nameless: its UUID and PCI address can no longer be read."""

    gpu: int
    reason: str = "GPU is lost"
    nameless: bool = False

    def __str__(self) -> str:
        return f"GPU {self.gpu} does not answer any more"


class GpuReturns(Frozen):
    """A lost GPU answers again, as it was. It was not reset."""

    gpu: int

    def __str__(self) -> str:
        return f"GPU {self.gpu} answers again"


class RaiseXid(Frozen):
    """The driver reports an XID, with its ``XID_CONSEQUENCES``. gpu None: the driver names no GPU.

    gi, ci: on a GPU that is not in MIG mode only 0, which some drivers then say of the whole GPU.
    """

    gpu: int | None
    code: int
    gi: int | None = None
    ci: int | None = None

    def __str__(self) -> str:
        return f"XID {self.code}" + ("" if self.gpu is None else f" on GPU {self.gpu}")


class SetCondition(Frozen):
    """What the driver says of the GPU's health from now on. None: as before."""

    gpu: int
    recovery: RecoveryAction | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    fabric_ok: bool | None = None

    def __str__(self) -> str:
        return f"the driver reports a problem with the health of GPU {self.gpu}"


class ResetGpu(Frozen):
    """The GPU is reset: without MIG instances, a pending MIG mode in force, its condition good again."""

    gpu: int

    def __str__(self) -> str:
        return f"GPU {self.gpu} is reset"


class Reboot(Frozen):
    """The node reboots: all GPUs are reset, reset counts begin at 0, Hopper and later lose their MIG mode."""

    def __str__(self) -> str:
        return "the node reboots"


class DriverGone(Frozen):
    """The driver is unloaded, or has another version than its library. kind: see ``model.gpu.NoDriver``."""

    kind: str = "driver-missing"
    reason: str = "the NVIDIA driver is not loaded"

    def __str__(self) -> str:
        return "the driver is unloaded"


class DriverLoaded(Frozen):
    """A driver is loaded in place of the one before. Empty texts: the version that was there last."""

    version: str = ""
    cuda: str = ""

    def __str__(self) -> str:
        return f"driver {self.version} is loaded" if self.version else "the driver is loaded"


class FailCall(Frozen):
    """The next ``times`` calls fail with that error; times None: until healed.

    done: the step is done and only its answer is lost, as when the helper process is killed.
    """

    call: Call
    error: HardwareError
    times: int | None = 1
    done: bool = False

    def __str__(self) -> str:
        return f"the driver's answer to '{self.call}' is an error"


class HangCall(Frozen):
    """The next ``times`` calls hang for ``seconds`` and then answer. seconds None: until their deadline."""

    call: Call
    seconds: float | None = None
    times: int | None = 1

    def __str__(self) -> str:
        return f"the driver hangs at '{self.call}'"


class HealCall(Frozen):
    """Calls of that verb no longer fail or hang."""

    call: Call

    def __str__(self) -> str:
        return f"the driver answers '{self.call}' again"


class SetMig(Frozen):
    """An administrator changes MIG by hand: layout None turns the mode off, a layout replaces the old one."""

    gpu: int
    layout: tuple[LayoutItem, ...] | None

    def __str__(self) -> str:
        if self.layout is None:
            return f"an administrator turns MIG off on GPU {self.gpu}"
        items = ", ".join(map(str, self.layout)) or "no MIG device"
        return f"an administrator creates {items} on GPU {self.gpu}"


class Occupy(Frozen):
    """A program opens the GPU; with ``gi`` that GPU instance; with ``gi`` and ``ci`` that MIG device.

    With a pid it is a process with a context. memory_bytes: its memory on the GPU, None where the driver
    does not say. container, pod, job: of its cgroup; job: the number or the SLUID of a Slurm job, outside
    of containers. All are empty for a process of the host. mps: it is a client of an MPS server (the server
    itself is called ``nvidia-cuda-mps-server``). load: what it does over time, with memory_bytes as its
    least memory; None: always the same, and no work. limit_bytes: the driver's limit of its container on
    the GPU, which a hook has set before its first instruction; None: none has.
    """

    gpu: int
    name: str = "python"
    kind: UseKind = UseKind.PROCESS
    gi: int | None = None
    ci: int | None = None
    pid: int | None = None
    memory_bytes: int | None = None
    container: ContainerId = ContainerId("")
    pod: PodUid = PodUid("")
    mps: bool = False
    load: Load | None = None
    job: str = ""
    limit_bytes: int | None = None

    def __str__(self) -> str:
        return f"{self.name} opens GPU {self.gpu}"


class Vacate(Frozen):
    """Programs of that name (None: all programs) close the GPU and all its parts."""

    gpu: int
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.name or 'every process'} closes GPU {self.gpu}"


class LoseLimits(Frozen):
    """Somebody with root's rights takes the driver's memory limits of all containers on the GPU away."""

    gpu: int

    def __str__(self) -> str:
        return f"containers on GPU {self.gpu} lose their memory limits"


class SetSensors(Frozen):
    """What the sensors of the GPU show from now on."""

    gpu: int
    sensors: Sensors

    def __str__(self) -> str:
        return f"the sensors of GPU {self.gpu} show other values"


class HideProcesses(Frozen):
    """Whether the node's processes are hidden: the driver then lists none and reports success."""

    on: bool = True

    def __str__(self) -> str:
        return f"the node's processes {'are hidden' if self.on else 'can be seen'}"


_BECOMES = {
    DaemonPhase.DEAD: "dies",
    DaemonPhase.FAULT: "has a fault",
    DaemonPhase.SILENT: "hangs",
    DaemonPhase.SERVING: "takes clients again",
    DaemonPhase.STARTING: "has no limits in force",
}


class LoseCapabilityFiles(Frozen):
    """Whether the capability device files of the GPU's MIG devices are missing, and cannot be made."""

    gpu: int
    missing: bool = True

    def __str__(self) -> str:
        return (
            f"the device files of GPU {self.gpu}'s MIG devices {'are gone' if self.missing else 'are there'}"
        )


class LastClientLeaves(Frozen):
    """Partage closes the driver for a moment, as when its helper is replaced. A GPU without persistence mode
    that nothing else has open forgets its compute mode and its time slice.
    """

    gpu: int

    def __str__(self) -> str:
        return f"Partage closes GPU {self.gpu} for a moment"


class SetDaemonPhase(Frozen):
    """The MPS daemons of a GPU end, have a fault, do not answer, or serve again."""

    gpu: int
    phase: DaemonPhase

    def __str__(self) -> str:
        return f"the MPS daemon of GPU {self.gpu} {_BECOMES.get(self.phase, self.phase)}"


Fault = (
    LoseGpu
    | GpuReturns
    | RaiseXid
    | SetCondition
    | ResetGpu
    | Reboot
    | DriverGone
    | DriverLoaded
    | FailCall
    | HangCall
    | HealCall
    | SetMig
    | Occupy
    | Vacate
    | SetSensors
    | HideProcesses
    | LoseCapabilityFiles
    | LastClientLeaves
    | SetDaemonPhase
    | LoseLimits
)


class TimedFault(Frozen):
    """A fault with a time: so long after the first call, or at the call that follows so many calls."""

    fault: Fault
    after_s: float | None = None
    after_calls: int | None = None


XID_CONSEQUENCES: dict[int, Callable[[int], Fault]] = {
    48: lambda gpu: SetCondition(gpu, recovery=RecoveryAction.GPU_RESET),
    63: lambda gpu: SetCondition(gpu, rows_pending=True),
    64: lambda gpu: SetCondition(gpu, rows_failed=True),
    79: lambda gpu: LoseGpu(gpu, "GPU has fallen off the bus"),
    95: lambda gpu: SetCondition(gpu, recovery=RecoveryAction.GPU_RESET),
    119: lambda gpu: SetCondition(gpu, recovery=RecoveryAction.GPU_RESET),
}
"""What an XID causes, by code. Source: NVIDIA's XID catalogue (double-bit error, row remapping recorded and
failed, off the bus, uncontained error, GSP time-out). Other codes cause nothing but their event."""
