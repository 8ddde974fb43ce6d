"""MIG through NVML: read and change the mode of a GPU; create, destroy and verify GPU instances and compute
instances. See ``change_and_check``.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from partage.edges.hardware.binding import RESET_REQUIRED, translate
from partage.edges.hardware.checked_change import change_and_check, step_error
from partage.edges.hardware.gpu_queries import Handle
from partage.edges.hardware.host import Host
from partage.edges.hardware.instances import (
    ComputeInstance,
    GpuInstance,
    compute_instances,
    compute_profiles,
    gpu_instances,
    possible_starts,
    profile_names,
)
from partage.edges.hardware.nvml_queries import Nvml
from partage.errors import (
    GpuInUse,
    HardwareError,
    InsufficientResources,
    NotFound,
    StateMismatch,
    Unsupported,
)
from partage.model.geometry import MigProfile, Placement
from partage.model.gpu import MigMode
from partage.model.ids import GpuUuid
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    SetMigMode,
    Step,
    Verify,
)
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


T = TypeVar("T")
_REFUSED = (InsufficientResources, GpuInUse)
"""The driver has made nothing. An instance that is new all the same was made by somebody else just now."""
InstanceStep = CreateInstance | CreateCompute | DestroyCompute | DestroyInstance | Verify


class MigInstances:
    """Performs steps on MIG instances. For one thread; every method raises HardwareError."""

    def __init__(self, nvml: Nvml, host: Host) -> None:
        self._nvml = nvml
        self._host = host

    def perform(self, step: InstanceStep) -> Created | None:
        """Perform a step."""
        match step:
            case CreateInstance():
                return self.create_gpu_instance(step)
            case CreateCompute():
                return self.create_compute_instance(step)
            case DestroyCompute():
                self.destroy_compute_instance(step)
            case DestroyInstance():
                self.destroy_gpu_instance(step)
            case Verify():
                self.verify(step)
        return None

    # --- create ----------------------------------------------------------------------------------

    def create_gpu_instance(self, step: CreateInstance) -> Created:
        """Create a GPU instance at exactly the placement of the step."""
        gpu = mig_gpu(self._nvml, step.gpu, stays_on=True)
        profile_id = self._profile_id(gpu, step)
        before = {instance.gi_id for instance in self._instances(gpu)}

        def create() -> None:
            place = self._nvml.structure("c_nvmlGpuInstancePlacement_t")
            place.start, place.size = step.placement.start, step.placement.size
            self._nvml.call(
                "nvmlDeviceCreateGpuInstanceWithPlacement", gpu.handle, profile_id, ctypes.byref(place)
            )

        def created() -> Created | None:
            new = (instance for instance in self._instances(gpu) if instance.gi_id not in before)
            return next(
                (Created(instance.gi_id) for instance in new if _is(instance, step.profile, step.placement)),
                None,
            )

        return self._attempt(step, create, created, lambda: self._slices_taken(gpu, step), refused=_REFUSED)

    def _profile_id(self, gpu: MigGpu, step: CreateInstance) -> int:
        """The id of the profile on this GPU. Raises Unsupported before anything was changed."""
        names = profile_names(self._nvml.gi_profiles(gpu.handle), gpu.memory_bytes)
        found = next((profile_id for profile_id, (name, _) in names.items() if name == step.profile), None)
        if found is None:
            known = ", ".join(sorted(name for name, _ in names.values()))
            raise Unsupported(f"GPU {gpu.uuid} has no profile {step.profile}; it has {known or 'none'}")
        places = possible_starts(self._nvml, gpu.handle, found)
        if places is not None and step.placement not in places:
            starts = ", ".join(map(str, places))
            raise Unsupported(
                f"on GPU {gpu.uuid} {step.profile} cannot be at {step.placement}, only at {starts}"
            )
        return found

    def _slices_taken(self, gpu: MigGpu, step: CreateInstance) -> InsufficientResources | None:
        blocking = [
            instance for instance in self._instances(gpu) if instance.placement.overlaps(step.placement)
        ]
        if not blocking:
            return None
        return InsufficientResources(f"cannot {step} on {gpu.uuid}: {_list(blocking)} is there")

    def create_compute_instance(self, step: CreateCompute) -> Created:
        """Create a compute instance in the GPU instance at the placement of the step."""
        gpu = mig_gpu(self._nvml, step.gpu, stays_on=True)
        instance = self._instance_at(gpu, step.instance, step.placement)
        slices = _slices(step.profile)
        profile_id = next((i for i, n in compute_profiles(self._nvml, instance).items() if n == slices), None)
        if profile_id is None:
            raise Unsupported(f"on GPU {gpu.uuid} {instance} cannot hold a {step.profile}")
        before = {compute_instance.ci_id for compute_instance in self._compute_instances(gpu, instance)}

        new: list[int] = []

        def create() -> None:
            handle = self._nvml.call("nvmlGpuInstanceCreateComputeInstance", instance.handle, profile_id)
            new.append(int(self._nvml.call("nvmlComputeInstanceGetInfo", handle).id))

        def created() -> Created | None:
            for compute_instance in self._compute_instances(gpu, instance):
                # Of several new ones, only the driver's answer says which is ours.
                is_ours = compute_instance.ci_id in new if new else compute_instance.ci_id not in before
                if is_ours and compute_instance.profile == step.profile:
                    return Created(instance.gi_id, compute_instance.ci_id, compute_instance.uuid)
            return None

        return self._attempt(
            step, create, created, lambda: self._too_few_slices(gpu, instance, step), refused=_REFUSED
        )

    def _too_few_slices(
        self, gpu: MigGpu, instance: GpuInstance, step: CreateCompute
    ) -> InsufficientResources | None:
        existing = self._compute_instances(gpu, instance)
        if (
            sum(compute_instance.slices for compute_instance in existing) + _slices(step.profile)
            <= instance.slices
        ):
            return None
        names = ", ".join(compute_instance.profile for compute_instance in existing)
        return InsufficientResources(f"cannot {step} on {gpu.uuid}: the GPU instance holds {names}")

    # --- destroy ---------------------------------------------------------------------------------

    def destroy_compute_instance(self, step: DestroyCompute) -> None:
        """Destroy exactly the compute instance that the step names."""
        gpu = mig_gpu(self._nvml, step.gpu)
        instance = self._instance_at(gpu, step.instance, step.placement, step.gi_id)
        target = self._compute_instance(gpu, instance, step)

        def destroyed() -> bool | None:
            left = {(instance.ci_id, instance.uuid) for instance in self._compute_instances(gpu, instance)}
            return (target.ci_id, target.uuid) not in left or None

        self._attempt(step, lambda: self._nvml.call("nvmlComputeInstanceDestroy", target.handle), destroyed)

    def _compute_instance(self, gpu: MigGpu, instance: GpuInstance, step: DestroyCompute) -> ComputeInstance:
        """The compute instance of the step. Raises NotFound if there is none, or more than one."""
        existing = self._compute_instances(gpu, instance)
        matching = [
            compute_instance
            for compute_instance in existing
            if compute_instance.profile == step.profile
            and (step.ci_id is None or compute_instance.ci_id == step.ci_id)
            and (not step.uuid or compute_instance.uuid == step.uuid)
        ]
        if len(matching) == 1:
            return matching[0]
        there = (
            ", ".join(
                f"{compute_instance.profile} {compute_instance.uuid} (id {compute_instance.ci_id})"
                for compute_instance in existing
            )
            or "nothing"
        )
        reason = "several match" if matching else "it does not exist"
        raise NotFound(f"cannot {step} on {gpu.uuid}: {reason}; {instance} holds {there}")

    def destroy_gpu_instance(self, step: DestroyInstance) -> None:
        """Destroy a GPU instance that has no compute instances."""
        gpu = mig_gpu(self._nvml, step.gpu)
        instance = self._instance_at(gpu, step.profile, step.placement, step.gi_id)

        def destroyed() -> bool | None:
            return all(gpu_instance.gi_id != instance.gi_id for gpu_instance in self._instances(gpu)) or None

        def not_empty() -> GpuInUse | None:
            left = ", ".join(instance.profile for instance in self._compute_instances(gpu, instance))
            return GpuInUse(f"cannot {step} on {gpu.uuid}: it still holds {left}") if left else None

        self._attempt(
            step, lambda: self._nvml.call("nvmlGpuInstanceDestroy", instance.handle), destroyed, not_empty
        )

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, step: Verify) -> None:
        """Compare MIG mode and MIG devices with the step. Changes nothing. Raises StateMismatch."""
        handle = self._nvml.gpu_handle(step.gpu)
        mode = self._nvml.mig_mode(handle) or MigMode(current=False, pending=False)
        if mode != MigMode(step.enabled, step.enabled):
            now, then = ("on" if value else "off" for value in (mode.current, mode.pending))
            raise StateMismatch(f"MIG mode of {step.gpu} is {now}, after the next reset {then}")
        found = self._devices(mig_gpu(self._nvml, step.gpu)) if step.enabled else []
        if Counter(found) != Counter(step.devices):
            there, wanted = ", ".join(found) or "nothing", ", ".join(step.devices) or "nothing"
            raise StateMismatch(f"on {step.gpu} there is {there}; there should be {wanted}")

    def _devices(self, gpu: MigGpu) -> list[str]:
        """``3g.40gb@4`` for each MIG device, by memory slice; empty GPU instances get a text of their own."""
        found: list[str] = []
        for instance in self._instances(gpu):
            start = instance.placement.start
            devices = [
                f"{compute_instance.profile}@{start}"
                for compute_instance in self._compute_instances(gpu, instance)
            ]
            found += devices or [f"an empty GPU instance {instance.profile}@{start}"]
        return found

    # --- look-ups --------------------------------------------------------------------------------

    def _instance_at(
        self, gpu: MigGpu, profile: str, placement: Placement, gi_id: int | None = None
    ) -> GpuInstance:
        """The GPU instance with this profile and placement, and this id if given. Raises NotFound."""
        existing = self._instances(gpu)
        for instance in existing:
            if _is(instance, profile, placement) and gi_id in (None, instance.gi_id):
                return instance
        which = "" if gi_id is None else f" with id {gi_id}"
        raise NotFound(
            f"on GPU {gpu.uuid} there is no {profile} at {placement}{which}; there is {_list(existing)}"
        )

    def _instances(self, gpu: MigGpu) -> tuple[GpuInstance, ...]:
        return gpu_instances(self._nvml, gpu.handle, gpu.memory_bytes)

    def _compute_instances(self, gpu: MigGpu, instance: GpuInstance) -> tuple[ComputeInstance, ...]:
        return compute_instances(self._nvml, gpu.handle, instance)

    def _attempt(
        self,
        step: Step,
        change: Callable[[], object],
        result: Callable[[], T | None],
        explain: Callable[[], HardwareError | None] = lambda: None,
        refused: tuple[type[HardwareError], ...] = (),
    ) -> T:
        return change_and_check(
            self._nvml, self._host, step, change, result, explain=explain, refused=refused
        )


def _is(instance: GpuInstance, profile: str, placement: Placement) -> bool:
    return (instance.profile, instance.placement) == (profile, placement)


def _slices(profile: str) -> int:
    """Compute slices of a profile name. Raises Unsupported for a name that is none."""
    try:
        return MigProfile.parse(profile).compute_slices
    except ValueError as error:
        raise Unsupported(str(error)) from error


def _list(instances: Sequence[GpuInstance]) -> str:
    return ", ".join(map(str, instances)) or "nothing"
