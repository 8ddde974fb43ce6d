"""What can go wrong on a simulated node. Values; ``SimulatedHardware.misbehave`` makes them happen.

A GPU is named by its NVML index, which it keeps while it is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from partage.errors import HardwareError
from partage.model.gpu import RecoveryAction
from partage.model.layout import LayoutItem
from partage.model.mps import DaemonPhase
from partage.model.step import UseKind

Call = Literal["observe", "conditions", "events", "perform", "uses", "processes", "time-slices", "daemons"]
"""A verb of the hardware port."""


@dataclass(frozen=True, slots=True)
class LoseGpu:
    """The GPU falls off the bus. nameless: not even its UUID and PCI address can be read any more."""

    gpu: int
    reason: str = "GPU is lost"
    nameless: bool = False


@dataclass(frozen=True, slots=True)
class GpuReturns:
    """A lost GPU answers again, as it was, without having been reset."""

    gpu: int


@dataclass(frozen=True, slots=True)
class RaiseXid:
    """The driver reports an XID, with what follows on hardware (``AFTERMATH``). gpu None: none is named."""

    gpu: int | None
    code: int
    gi: int | None = None
    ci: int | None = None


@dataclass(frozen=True, slots=True)
class Ailing:
    """What the driver says of the GPU's health from now on; None leaves a word as it is."""

    gpu: int
    recovery: RecoveryAction | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    fabric_ok: bool | None = None


@dataclass(frozen=True, slots=True)
class ResetGpu:
    """Somebody resets the GPU: MIG instances are gone, a pending MIG mode holds, what ailed it is over."""

    gpu: int


@dataclass(frozen=True, slots=True)
class Reboot:
    """The node reboots: all GPUs are reset, reset counts begin again, Hopper and later forget MIG mode."""


@dataclass(frozen=True, slots=True)
class DriverGone:
    """The driver is unloaded, or does not fit its library any more. kind: as in ``model.gpu.NoDriver``."""

    kind: str = "driver-missing"
    reason: str = "the NVIDIA driver is not loaded"


@dataclass(frozen=True, slots=True)
class DriverLoaded:
    """A driver is loaded, in place of what was there. Empty texts: the version that was there last."""

    version: str = ""
    cuda: str = ""


@dataclass(frozen=True, slots=True)
class FailCall:
    """The next ``times`` calls fail with that error; times None: until healed.

    done: an act is done nevertheless, and only its answer is lost, as when a helper is killed.
    """

    call: Call
    error: HardwareError
    times: int | None = 1
    done: bool = False


@dataclass(frozen=True, slots=True)
class HangCall:
    """The next ``times`` calls hang: for that long, then they answer; seconds None: until their deadline."""

    call: Call
    seconds: float | None = None
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class HealCall:
    """Calls of that verb fail and hang no more."""

    call: Call


@dataclass(frozen=True, slots=True)
class SetMig:
    """An administrator changes MIG by hand: layout None switches the mode off, else on and laid out anew."""

    gpu: int
    layout: tuple[LayoutItem, ...] | None


@dataclass(frozen=True, slots=True)
class Occupy:
    """Somebody opens the GPU; with ``gi`` that GPU instance, with ``ci``, too, the MIG device.

    With a pid it is a process with a context: memory_bytes of the GPU's memory are its own, None where the
    driver does not say. container: the id in its cgroup, 64 digits, pod: the pod's UID; empty: a process of
    the host. mps: it is a client of an MPS server (itself called ``nvidia-cuda-mps-server``).
    """

    gpu: int
    name: str = "python"
    kind: UseKind = UseKind.PROCESS
    gi: int | None = None
    ci: int | None = None
    pid: int | None = None
    memory_bytes: int | None = None
    container: str = ""
    pod: str = ""
    mps: bool = False


@dataclass(frozen=True, slots=True)
class Vacate:
    """Who goes by that name, or everybody, closes the GPU and all its parts."""

    gpu: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Blind:
    """Whether the node's processes are hidden: the driver then lists none, and says success."""

    on: bool = True


@dataclass(frozen=True, slots=True)
class MpsTurns:
    """The MPS daemons of a GPU die, fault, fall silent, or serve again."""

    gpu: int
    phase: DaemonPhase


Fault = (
    LoseGpu
    | GpuReturns
    | RaiseXid
    | Ailing
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
    | Blind
    | MpsTurns
)


@dataclass(frozen=True, slots=True)
class TimedFault:
    """A fault that happens by itself: so long after the first call, or at the call after so many."""

    fault: Fault
    after_s: float | None = None
    after_calls: int | None = None


AFTERMATH: dict[int, Callable[[int], Fault]] = {
    48: lambda gpu: Ailing(gpu, recovery=RecoveryAction.GPU_RESET),
    63: lambda gpu: Ailing(gpu, rows_pending=True),
    64: lambda gpu: Ailing(gpu, rows_failed=True),
    79: lambda gpu: LoseGpu(gpu, "GPU has fallen off the bus"),
    95: lambda gpu: Ailing(gpu, recovery=RecoveryAction.GPU_RESET),
    119: lambda gpu: Ailing(gpu, recovery=RecoveryAction.GPU_RESET),
}
"""What an XID brings with it, by code. Source: NVIDIA's XID catalogue (double-bit error, row remapping
recorded and failed, off the bus, uncontained error, GSP time-out). Other codes are events and no more."""
