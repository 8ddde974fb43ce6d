"""What is done to a GPU, one act at a time: plain values for a plan, a journal, the hardware port.

A GPU instance that does not exist yet has no id, so what is made names its place: the memory slices of its
GPU instance. Ids are reused by the driver; whoever destroys compares profile and placement with what lives
under the id, and leaves alone what is something else by now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from partage.model.gpu import ComputeMode
from partage.model.mps import DaemonSpec
from partage.model.placement import Placement
from partage.model.policy import Interval


class UseKind(StrEnum):
    """Who has a GPU open. monitor: DCGM, persistenced, nvsm: nobody's work, but it can block a reset."""

    POD = "pod"
    PROCESS = "process"
    MONITOR = "monitor"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Somebody holds something of one GPU.

    gpu: its UUID. name: ``namespace/pod``, a command's name. pid: None where it is not known.
    device: UUID of a MIG device. gi_id, ci_id: its GPU and compute instance; a gi_id without ci_id means all
    of that GPU instance. None of the three: the GPU as a whole.
    """

    gpu: str
    kind: UseKind
    name: str
    pid: int | None = None
    device: str | None = None
    gi_id: int | None = None
    ci_id: int | None = None

    @property
    def whole(self) -> bool:
        """It concerns the GPU, not a part of it."""
        return self.device is None and self.gi_id is None

    def __str__(self) -> str:
        pid = "" if self.pid is None else f" (pid {self.pid})"
        return f"{self.kind} {self.name}{pid}"


# --- the steps -----------------------------------------------------------------------------------
# gpu: always the UUID. str(step) is a sentence for people, without the GPU.


@dataclass(frozen=True, slots=True)
class SetMigMode:
    """Turn MIG mode on or off. Both return values count; the caller closes its own handles first."""

    gpu: str
    enabled: bool

    def __str__(self) -> str:
        return f"turn MIG mode {'on' if self.enabled else 'off'}"


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset GPUs, in one call, so that a pending MIG mode comes into force; every instance on them is lost.

    gpus: all that share the reset, by index. pending: those of them that need it.
    reboot: False: not needed. None: unknown; in a virtual machine a reset is often not allowed, and only a
    reboot of the machine brings the mode into force.
    """

    gpus: tuple[str, ...]
    pending: tuple[str, ...]
    reboot: bool | None = None

    @property
    def along(self) -> tuple[str, ...]:
        """Those that share the reset without needing it."""
        return tuple(gpu for gpu in self.gpus if gpu not in self.pending)

    def __str__(self) -> str:
        number = len(self.along)
        others = "1 GPU that shares" if number == 1 else f"{number} GPUs that share"
        are = "is" if number == 1 else "are"
        more = f"; {others} its NVLinks {are} reset along with it" if number else ""
        reboot = "; in a virtual machine that may take a reboot" if self.reboot is None else ""
        return f"reset the GPU, so that its MIG mode comes into force{more}{reboot}"


@dataclass(frozen=True, slots=True)
class DestroyCompute:
    """Destroy a compute instance, and with it a MIG device.

    instance, placement: profile and place of its GPU instance. profile: its own, ``1c.3g.40gb``.
    gi_id, ci_id: None where only the place is known (an undone creation whose ids nobody wrote down).
    """

    gpu: str
    instance: str
    placement: Placement
    profile: str
    gi_id: int | None = None
    ci_id: int | None = None
    uuid: str = ""

    def __str__(self) -> str:
        return f"destroy the MIG device {self.profile} at {self.placement}{_named(self.uuid)}"


@dataclass(frozen=True, slots=True)
class DestroyInstance:
    """Destroy a GPU instance that has no compute instance. gi_id: None where only the place is known."""

    gpu: str
    profile: str
    placement: Placement
    gi_id: int | None = None

    def __str__(self) -> str:
        return f"destroy the GPU instance {self.profile} at {self.placement}"


@dataclass(frozen=True, slots=True)
class CreateInstance:
    """Make a GPU instance at exactly this place."""

    gpu: str
    profile: str
    placement: Placement

    def __str__(self) -> str:
        return f"create a GPU instance {self.profile} at {self.placement}"


@dataclass(frozen=True, slots=True)
class CreateCompute:
    """Make a compute instance in the GPU instance at this place; the driver chooses where within it.

    instance: profile of the GPU instance. profile: what the MIG device will be called, ``1c.3g.40gb``.
    """

    gpu: str
    instance: str
    placement: Placement
    profile: str

    def __str__(self) -> str:
        return f"create the MIG device {self.profile} at {self.placement}"


@dataclass(frozen=True, slots=True)
class Verify:
    """Read the GPU again: MIG mode as said, and on it exactly these MIG devices.

    devices: profiles with the first memory slice of their GPU instance, ``3g.40gb@4``, by that slice.
    """

    gpu: str
    enabled: bool
    devices: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.enabled:
            return "verify that MIG mode is off"
        if not self.devices:
            return "verify that no MIG device lives on it"
        return f"verify that nothing but {', '.join(self.devices)} lives on it"


@dataclass(frozen=True, slots=True)
class SetComputeMode:
    """Say who may open contexts on a GPU. before: the mode it has now, and gets back when this is undone."""

    gpu: str
    mode: ComputeMode
    before: ComputeMode

    def __str__(self) -> str:
        return f"set the compute mode to {self.mode.name.lower().replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class SetTimeSlice:
    """Set the length of a GPU's time slice. before: the one it has now, and gets back when this is undone."""

    gpu: str
    interval: Interval
    before: Interval

    def __str__(self) -> str:
        return f"set the time slice to {self.interval}"


@dataclass(frozen=True, slots=True)
class EndProcess:
    """End a process that works on a GPU. Cannot be taken back.

    start: as in ``model.process.GpuProcess``. container: the id that its cgroup names, 64 digits. A process
    that has the pid by now and is another one, or in another container, is left alone.
    """

    gpu: str
    pid: int
    start: int
    container: str

    def __str__(self) -> str:
        return f"end process {self.pid} of container {self.container[:12]}"


@dataclass(frozen=True, slots=True)
class StartDaemon:
    """Have an MPS control daemon that is as asked. One that runs and is so is left alone."""

    gpu: str
    spec: DaemonSpec

    def __str__(self) -> str:
        return f"start the MPS daemon{_part(self.gpu, self.spec.device)}: {self.spec.limits}"


@dataclass(frozen=True, slots=True)
class StopDaemon:
    """End the MPS control daemon of a device, which has to be without clients.

    spec: what it was asked to be, and is again when this is undone; None where nobody knows.
    """

    gpu: str
    device: str
    spec: DaemonSpec | None = None

    def __str__(self) -> str:
        return f"stop the MPS daemon{_part(self.gpu, self.device)}"


@dataclass(frozen=True, slots=True)
class EndClient:
    """End one client's work on an MPS server, whose process lives on. Cannot be taken back."""

    gpu: str
    device: str
    server: int
    client: int

    def __str__(self) -> str:
        return f"end the work of MPS client {self.client}"


def _part(gpu: str, device: str) -> str:
    return "" if device == gpu else f" of {device}"


Step = (
    SetMigMode
    | Reset
    | DestroyCompute
    | DestroyInstance
    | CreateInstance
    | CreateCompute
    | Verify
    | SetComputeMode
    | SetTimeSlice
    | EndProcess
    | StartDaemon
    | StopDaemon
    | EndClient
)
"""One act."""


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """The length of a GPU's time slice as it is. interval: None where it cannot be said; reason: why."""

    gpu: str
    interval: Interval | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Created:
    """What a creation brought. ci_id, uuid: of a compute instance only."""

    gi_id: int
    ci_id: int | None = None
    uuid: str = ""


def gpus_of(step: Step) -> tuple[str, ...]:
    """The GPUs that a step acts on."""
    return step.gpus if isinstance(step, Reset) else (step.gpu,)


def reverse(step: Step, made: Created | None = None) -> Step | None:
    """What takes a step back. None for what changes nothing, for what ends, and for a reset: see ``undo``.

    made: what the step brought, where that is known. A MIG device that is made again has a new UUID.
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
        case Reset() | Verify() | EndProcess() | StopDaemon() | EndClient():
            return None
        case _:
            assert_never(step)


def undo(done: Iterable[tuple[Step, Created | None]]) -> tuple[Step, ...]:
    """What takes the steps of ``done`` back, last one first.

    A reset is taken back by another one, after the modes before it are: only then do the old modes come
    into force, and what lived on the GPUs can be made again.
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


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """How far a step reaches beyond what it names.

    idle: GPUs, by UUID, that nobody may use meanwhile and that lose every instance they have; empty for a
    step under which all other instances go on running.
    reboot: as in ``Reset``.
    """

    idle: tuple[str, ...] = ()
    reboot: bool | None = False


def blast(step: Step) -> BlastRadius:
    """The blast radius of a step. Instances are isolated: to make or destroy one touches no other."""
    match step:
        case SetMigMode(gpu):
            return BlastRadius((gpu,))
        case Reset(gpus):
            return BlastRadius(gpus, step.reboot)
        case _:
            return BlastRadius()


def _named(uuid: str) -> str:
    return f" ({uuid})" if uuid else ""
