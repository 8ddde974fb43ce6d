"""The steps that change a GPU, one at a time: plain values for a plan, a journal and the hardware port; what
undoes them, and what they affect beyond the thing that they name.

A GPU instance that does not exist yet has no id, so a creation names its placement. The driver reuses ids, so
a destruction names id, profile and placement, and is refused if something else has the id now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from partage.model.geometry import Placement
from partage.model.gpu import ComputeMode
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid, MigUuid, cgroup_owner
from partage.model.mps import ClientLimits, DaemonSpec, MpsNamespace
from partage.model.strategy import Interval
from partage.units import format_bytes
from partage.values import Frozen, Tagged

# --- the steps -----------------------------------------------------------------------------------
# gpu: always the UUID. str(step) is a sentence for people, without the GPU.


class SetMigMode(Tagged):
    """Turn MIG mode on or off. The mode may stay pending until a reset."""

    gpu: GpuUuid
    enabled: bool

    def __str__(self) -> str:
        return f"turn MIG mode {'on' if self.enabled else 'off'}"


class Reset(Tagged):
    """Reset GPUs together, so that a pending MIG mode takes effect. All instances on them are lost.

    gpus: all GPUs that are reset together, by index. pending: those that need the reset.
    reboot: False: not needed. None: not known; in a virtual machine a reset is often not allowed, and only
    a reboot of the machine activates the mode.
    """

    gpus: tuple[GpuUuid, ...]
    pending: tuple[GpuUuid, ...]
    reboot: bool | None = None

    @property
    def along(self) -> tuple[GpuUuid, ...]:
        """The GPUs that are reset only because they share the reset."""
        return tuple(gpu for gpu in self.gpus if gpu not in self.pending)

    def __str__(self) -> str:
        number = len(self.along)
        others = "1 GPU that shares" if number == 1 else f"{number} GPUs that share"
        are = "is" if number == 1 else "are"
        more = f"; {others} its NVLinks {are} reset along with it" if number else ""
        reboot = "; in a virtual machine that may take a reboot" if self.reboot is None else ""
        return f"reset the GPU, so that its MIG mode takes effect{more}{reboot}"


class _InstanceStep(Tagged):
    """A step on a GPU instance: its profile and placement."""

    gpu: GpuUuid
    profile: str
    placement: Placement


class _ComputeStep(Tagged):
    """A step on a compute instance, and with it on a MIG device.

    instance, placement: profile and placement of its GPU instance. profile: its own, ``1c.3g.40gb``.
    """

    gpu: GpuUuid
    instance: str
    placement: Placement
    profile: str


class DestroyCompute(_ComputeStep):
    """Destroy a compute instance. gi_id, ci_id: None if not known (a creation is undone whose ids were not
    written down).
    """

    gi_id: int | None = None
    ci_id: int | None = None
    uuid: MigUuid = MigUuid("")

    def __str__(self) -> str:
        return f"destroy the MIG device {self.profile} at {self.placement}{_named(self.uuid)}"


class DestroyInstance(_InstanceStep):
    """Destroy a GPU instance without compute instances. gi_id: None if not known."""

    gi_id: int | None = None

    def __str__(self) -> str:
        return f"destroy the GPU instance {self.profile} at {self.placement}"


class CreateInstance(_InstanceStep):
    """Create a GPU instance at exactly this placement."""

    def __str__(self) -> str:
        return f"create a GPU instance {self.profile} at {self.placement}"


class CreateCompute(_ComputeStep):
    """Create a compute instance in the GPU instance at this placement; the driver chooses where in it."""

    def __str__(self) -> str:
        return f"create the MIG device {self.profile} at {self.placement}"


class Verify(Tagged):
    """Read the GPU again. MIG mode must be ``enabled``, and exactly these MIG devices must exist.

    devices: profiles with the first memory slice of their GPU instance, ``3g.40gb@4``, ordered by it.
    """

    gpu: GpuUuid
    enabled: bool
    devices: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.enabled:
            return "verify that MIG mode is off"
        if not self.devices:
            return "verify that it has no MIG device"
        return f"verify that it has exactly {', '.join(self.devices)}"


class SetComputeMode(Tagged):
    """Set which processes may create contexts on a GPU. before: the mode until now, set again on undo."""

    gpu: GpuUuid
    mode: ComputeMode
    before: ComputeMode

    def __str__(self) -> str:
        return f"set the compute mode to {self.mode.word}"


class SetTimeSlice(Tagged):
    """Set the length of a GPU's time slice. before: the length until now, set again on undo."""

    gpu: GpuUuid
    interval: Interval
    before: Interval

    def __str__(self) -> str:
        return f"set the time slice to {self.interval}"


class EndProcess(Tagged):
    """End a process that uses a GPU. Cannot be undone.

    start: as in ``model.gpu_use.GpuProcess``. container: in its cgroup. If the pid belongs to
    another process now, or the process to another container, it is not touched.
    """

    gpu: GpuUuid
    pid: int
    start: int
    container: ContainerId

    def __str__(self) -> str:
        return f"end process {self.pid} of container {self.container[:12]}"


class StartDaemon(Tagged):
    """Start an MPS control daemon as ``spec`` describes it. One that runs like this already is left alone."""

    gpu: GpuUuid
    spec: DaemonSpec

    def __str__(self) -> str:
        return f"start the MPS daemon{_part(self.gpu, self.spec.device)}: {self.spec.limits}"


class StopDaemon(Tagged):
    """Stop the MPS control daemon of a device. It must have no clients.

    spec: how it was started, and will be started again on undo; None if not known.
    """

    gpu: GpuUuid
    device: DeviceUuid
    spec: DaemonSpec | None = None

    def __str__(self) -> str:
        return f"stop the MPS daemon{_part(self.gpu, self.device)}"


class EndClient(Tagged):
    """End the work of one client of an MPS server; its process lives on. Cannot be undone."""

    gpu: GpuUuid
    device: DeviceUuid
    server: int
    client: int

    def __str__(self) -> str:
        return f"end the work of MPS client {self.client}"


class SetNamespace(Tagged):
    """Set the limits of a namespace that an MPS daemon has already. Done when they have been read back."""

    gpu: GpuUuid
    device: DeviceUuid
    namespace: MpsNamespace

    def __str__(self) -> str:
        return f"allow {self.namespace} of the MPS daemon{_part(self.gpu, self.device)}"


class SetMemoryLimit(Tagged):
    """Set the driver's hard memory limit of a cgroup again, where it was lost. Done when it has been read
    back. Lowered below what is in use, it evicts nothing. Cannot be undone.

    container: as in ``LimitAt``. limit_bytes: whole MiB.
    """

    gpu: GpuUuid
    container: ContainerId
    limit_bytes: int

    def __str__(self) -> str:
        return f"limit {cgroup_owner(self.container)} to {format_bytes(self.limit_bytes)}"


def _part(gpu: GpuUuid, device: DeviceUuid) -> str:
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
    | SetNamespace
    | SetMemoryLimit
)
"""One step. Every step can be performed by the hardware port."""


class StartDaemonAt(Frozen):
    """Start the MPS daemon of a MIG device that an earlier step makes. Only planned: once the device is
    there, and has a UUID, a new plan says ``StartDaemon``.

    profile: of the MIG device. placement: of its GPU instance. limits: of the daemon's clients.
    """

    gpu: GpuUuid
    profile: str
    placement: Placement
    limits: ClientLimits

    def __str__(self) -> str:
        return f"start the MPS daemon of {self.profile} at {self.placement}: {self.limits}"


PlannedStep = Step | StartDaemonAt
"""A step as a plan lists it."""


class Transaction(Frozen):
    """Steps that are done in this order, and rolled back together if one of them fails.

    gpus: UUIDs of the GPUs that are touched, by index. Transactions are independent of each other.
    """

    gpus: tuple[GpuUuid, ...]
    steps: tuple[Step, ...]


class TimeSlice(Frozen):
    """The length of a GPU's time slice, as observed. interval: None if it cannot be read; reason: why."""

    gpu: GpuUuid
    interval: Interval | None
    reason: str = ""


class Created(Frozen):
    """The ids of what a step created. ci_id, uuid: only for a compute instance."""

    gi_id: int
    ci_id: int | None = None
    uuid: MigUuid = MigUuid("")


def gpus_of(step: PlannedStep) -> tuple[GpuUuid, ...]:
    """The GPUs that a step acts on."""
    return step.gpus if isinstance(step, Reset) else (step.gpu,)


def _named(uuid: MigUuid) -> str:
    return f" ({uuid})" if uuid else ""


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
