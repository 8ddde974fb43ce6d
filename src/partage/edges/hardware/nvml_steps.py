"""What is done to GPUs through NVML: MIG mode, GPU instances, compute instances. One thread's own.

NVML has one code for several causes, and may have done what it says that it could not. So after every call
the GPU is read again: what is there decides whether it was done, and what the error says.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, assert_never

from partage.edges.hardware.compute_mode import set_compute_mode
from partage.edges.hardware.host import Host
from partage.edges.hardware.instances import (
    ComputeInstance,
    GpuInstance,
    compute_instances,
    compute_profiles,
    gpu_instances,
    names_of,
    possible_starts,
)
from partage.edges.hardware.readings import Handle, Nvml
from partage.edges.hardware.translate import IN_USE, translate
from partage.edges.hardware.uses import uses
from partage.errors import (
    GpuInUse,
    GpuLost,
    HardwareError,
    InsufficientResources,
    NotFound,
    StateMismatch,
    Unsupported,
)
from partage.model.gpu import MigMode
from partage.model.placement import Placement
from partage.model.profile import MigProfile
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

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Card:
    """A GPU in MIG mode, as it was found when the act began."""

    uuid: str
    handle: Handle
    memory_bytes: int


class NvmlSteps:
    """Does one step at a time. Every method raises HardwareErrors, as ``Hardware.perform`` says."""

    def __init__(self, nvml: Nvml, host: Host, renew: Callable[[], None]) -> None:
        """renew: ends the session with all it holds and opens another."""
        self._nvml = nvml
        self._host = host
        self._renew = renew

    def perform(self, step: Step) -> Created | None:
        """One step through NVML; resets, time slices, processes and daemons are not NVML's to change."""
        match step:
            case CreateInstance():
                return self._create_instance(step)
            case CreateCompute():
                return self._create_compute(step)
            case SetMigMode():
                self._set_mode(step)
            case DestroyCompute():
                self._destroy_compute(step)
            case DestroyInstance():
                self._destroy_instance(step)
            case Verify():
                self._verify(step)
            case SetComputeMode():
                set_compute_mode(self._nvml, self._host, step, self._handle(step.gpu))
            case Reset() | SetTimeSlice() | EndProcess() | StartDaemon() | StopDaemon() | EndClient():
                raise Unsupported(f"NVML has no call to {step}")
            case _:
                assert_never(step)
        return None

    def mode(self, uuid: str) -> MigMode:
        """The GPU's MIG mode. Raises Unsupported on a GPU without."""
        mode = self._nvml.mig_mode(self._handle(uuid))
        if mode is None:
            raise Unsupported(f"GPU {uuid} has no MIG mode")
        return mode

    # --- the mode --------------------------------------------------------------------------------

    def _set_mode(self, step: SetMigMode) -> None:
        wanted = step.enabled
        if self.mode(step.gpu) == MigMode(wanted, wanted):
            return
        if not wanted:
            self._refuse_with_instances(step)
        self._renew()
        resetless = self._nvml.mig_without_reset(self._handle(step.gpu))
        refusal: HardwareError | None = None
        status = 0
        try:
            status = int(self._nvml.call("nvmlDeviceSetMigMode", self._handle(step.gpu), int(wanted)))
        except HardwareError as error:
            refusal = error
        # The GPU may have been unbound and bound again: nothing from before is valid.
        self._renew()
        now = self.mode(step.gpu)
        if now.current == wanted and now.pending == wanted:
            return
        if now.pending == wanted and not (resetless and (refusal or status == IN_USE)):
            return  # a reset has to follow; who planned knows
        if refusal is None and status:
            refusal = translate(status, "nvmlDeviceSetMigMode, activation")
        there = "it is pending" if now.pending == wanted else "the mode stays as it was"
        raise self._refused(step, refusal, there)

    def _refuse_with_instances(self, step: SetMigMode) -> None:
        """With the mode everything goes that lives on the GPU: the plan destroys it first, knowing it."""
        card = self._card(step.gpu) if self.mode(step.gpu).current else None
        live = gpu_instances(self._nvml, card.handle, card.memory_bytes) if card else ()
        if live:
            raise GpuInUse(f"cannot {step} on {step.gpu}: there is still {_list(live)}")

    # --- making ----------------------------------------------------------------------------------

    def _create_instance(self, step: CreateInstance) -> Created:
        card = self._card(step.gpu, lasting=True)
        profile_id = self._profile_id(card, step)
        before = {one.gi_id for one in self._instances(card)}

        def act() -> None:
            place = self._nvml.structure("c_nvmlGpuInstancePlacement_t")
            place.start, place.size = step.placement.start, step.placement.size
            self._nvml.call(
                "nvmlDeviceCreateGpuInstanceWithPlacement", card.handle, profile_id, ctypes.byref(place)
            )

        def look() -> Created | None:
            return next(
                (
                    Created(one.gi_id)
                    for one in self._instances(card)
                    if one.gi_id not in before and _is(one, step.profile, step.placement)
                ),
                None,
            )

        return self._attempt(step, act, look, lambda: self._no_place(card, step))

    def _profile_id(self, card: _Card, step: CreateInstance) -> int:
        """The id that this GPU knows the profile by. Raises Unsupported, before anything was tried."""
        names = names_of(self._nvml.gi_profiles(card.handle), card.memory_bytes)
        found = next((profile_id for profile_id, (name, _) in names.items() if name == step.profile), None)
        if found is None:
            known = ", ".join(sorted(name for name, _ in names.values()))
            raise Unsupported(f"GPU {card.uuid} has no profile {step.profile}; it has {known or 'none'}")
        places = possible_starts(self._nvml, card.handle, found)
        if places is not None and step.placement not in places:
            starts = ", ".join(str(place) for place in places)
            raise Unsupported(
                f"on GPU {card.uuid} {step.profile} cannot be at {step.placement}, only at {starts}"
            )
        return found

    def _no_place(self, card: _Card, step: CreateInstance) -> InsufficientResources | None:
        blocking = [one for one in self._instances(card) if one.placement.overlaps(step.placement)]
        return (
            InsufficientResources(f"cannot {step} on {card.uuid}: {_list(blocking)} is there")
            if blocking
            else None
        )

    def _create_compute(self, step: CreateCompute) -> Created:
        card = self._card(step.gpu, lasting=True)
        instance = self._at(card, step.instance, step.placement)
        slices = _slices(step.profile)
        profile_id = next((i for i, n in compute_profiles(self._nvml, instance).items() if n == slices), None)
        if profile_id is None:
            raise Unsupported(f"on GPU {card.uuid} {instance} cannot hold a {step.profile}")
        before = {one.ci_id for one in self._computes(card, instance)}

        def act() -> None:
            self._nvml.call("nvmlGpuInstanceCreateComputeInstance", instance.handle, profile_id)

        def look() -> Created | None:
            return next(
                (
                    Created(instance.gi_id, one.ci_id, one.uuid)
                    for one in self._computes(card, instance)
                    if one.ci_id not in before and one.profile == step.profile
                ),
                None,
            )

        return self._attempt(step, act, look, lambda: self._no_slices(card, instance, step, slices))

    def _no_slices(
        self, card: _Card, instance: GpuInstance, step: CreateCompute, slices: int
    ) -> InsufficientResources | None:
        held = self._computes(card, instance)
        if sum(one.slices for one in held) + slices <= instance.slices:
            return None
        return InsufficientResources(
            f"cannot {step} on {card.uuid}: in it {', '.join(one.profile for one in held)} lives"
        )

    # --- destroying ------------------------------------------------------------------------------

    def _destroy_compute(self, step: DestroyCompute) -> None:
        card = self._card(step.gpu)
        instance = self._at(card, step.instance, step.placement, step.gi_id)
        compute = self._compute(card, instance, step)
        self._attempt(
            step,
            lambda: self._nvml.call("nvmlComputeInstanceDestroy", compute.handle),
            lambda: (
                all(
                    (one.ci_id, one.uuid) != (compute.ci_id, compute.uuid)
                    for one in self._computes(card, instance)
                )
                or None
            ),
        )

    def _compute(self, card: _Card, instance: GpuInstance, step: DestroyCompute) -> ComputeInstance:
        """The one that is meant. Raises NotFound where it is not to be found without doubt."""
        held = self._computes(card, instance)
        resolve_layout = [
            one
            for one in held
            if one.profile == step.profile
            and (step.ci_id is None or one.ci_id == step.ci_id)
            and (not step.uuid or one.uuid == step.uuid)
        ]
        if len(resolve_layout) == 1:
            return resolve_layout[0]
        there = ", ".join(f"{one.profile} {one.uuid} (id {one.ci_id})" for one in held) or "nothing"
        doubt = "several could be meant" if resolve_layout else "it is not there"
        raise NotFound(f"cannot {step} on {card.uuid}: {doubt}; in {instance} lives {there}")

    def _destroy_instance(self, step: DestroyInstance) -> None:
        card = self._card(step.gpu)
        instance = self._at(card, step.profile, step.placement, step.gi_id)

        def still_held() -> GpuInUse | None:
            held = ", ".join(one.profile for one in self._computes(card, instance))
            return GpuInUse(f"cannot {step} on {card.uuid}: in it {held} still lives") if held else None

        self._attempt(
            step,
            lambda: self._nvml.call("nvmlGpuInstanceDestroy", instance.handle),
            lambda: all(one.gi_id != instance.gi_id for one in self._instances(card)) or None,
            still_held,
        )

    # --- looking ---------------------------------------------------------------------------------

    def _verify(self, step: Verify) -> None:
        mode = self._nvml.mig_mode(self._handle(step.gpu)) or MigMode(current=False, pending=False)
        if mode != MigMode(step.enabled, step.enabled):
            now, then = ("on" if value else "off" for value in (mode.current, mode.pending))
            raise StateMismatch(f"MIG mode of {step.gpu} is {now}, after the next reset {then}")
        found = self._devices(self._card(step.gpu)) if step.enabled else []
        if Counter(found) != Counter(step.devices):
            there, wanted = ", ".join(found) or "nothing", ", ".join(step.devices) or "nothing"
            raise StateMismatch(f"on {step.gpu} there is {there}; there should be {wanted}")

    def _devices(self, card: _Card) -> list[str]:
        """``3g.40gb@4`` for each MIG device, by slice; a GPU instance without one is told apart."""
        found: list[str] = []
        for instance in self._instances(card):
            start = instance.placement.start
            held = [f"{one.profile}@{start}" for one in self._computes(card, instance)]
            found += held or [f"an empty GPU instance {instance.profile}@{start}"]
        return found

    def _at(self, card: _Card, profile: str, placement: Placement, gi_id: int | None = None) -> GpuInstance:
        """The GPU instance of that profile at that place, and under that id if one is given."""
        live = self._instances(card)
        for one in live:
            if _is(one, profile, placement) and gi_id in (None, one.gi_id):
                return one
        which = "" if gi_id is None else f" with id {gi_id}"
        raise NotFound(
            f"on GPU {card.uuid} there is no {profile} at {placement}{which}; there is {_list(live)}"
        )

    def _instances(self, card: _Card) -> tuple[GpuInstance, ...]:
        return gpu_instances(self._nvml, card.handle, card.memory_bytes)

    def _computes(self, card: _Card, instance: GpuInstance) -> tuple[ComputeInstance, ...]:
        return compute_instances(self._nvml, card.handle, instance)

    def _handle(self, uuid: str) -> Handle:
        handles = self._nvml.handles()
        if uuid in handles:
            return handles[uuid]
        if len(handles) < self._nvml.count():
            raise GpuLost(f"GPU {uuid} is not among those that answer")
        raise NotFound(f"this node has no GPU {uuid}")

    def _card(self, uuid: str, *, lasting: bool = False) -> _Card:
        """The GPU, if it is in MIG mode. lasting: and not about to leave it at its next reset."""
        handle, mode = self._handle(uuid), self.mode(uuid)
        if not mode.current:
            raise Unsupported(f"MIG mode of GPU {uuid} is off")
        if lasting and not mode.pending:
            raise Unsupported(f"GPU {uuid} leaves MIG mode at its next reset")
        return _Card(uuid, handle, self._nvml.memory_bytes(handle))

    # --- trying ----------------------------------------------------------------------------------

    def _attempt(
        self,
        step: Step,
        act: Callable[[], object],
        look: Callable[[], T | None],
        explain: Callable[[], HardwareError | None] = lambda: None,
    ) -> T:
        """Act, then look: what is there now counts. explain: what stands in the way, read from the GPU."""
        refusal: HardwareError | None = None
        try:
            act()
        except HardwareError as error:
            refusal = error
        try:
            outcome = look()
            known = explain() if outcome is None else None
        except HardwareError as error:
            raise (refusal or error) from None
        if outcome is not None:
            return outcome
        raise known or self._refused(step, refusal, "the GPU is as it was") from refusal

    def _refused(self, step: Step, refusal: HardwareError | None, there: str) -> HardwareError:
        """The driver's refusal, with the step and who uses the GPU."""
        if refusal is None:
            return StateMismatch(f"the driver said yes to: {step}; read again, {there}")
        message = f"cannot {step}: {refusal.problems[0].message}; {there}"
        if not isinstance(refusal, GpuInUse):
            return type(refusal)(message, refusal.problems[0].hint)
        gpu = "" if not hasattr(step, "gpu") else step.gpu
        who = tuple(str(use) for use in uses(self._nvml, self._host) if use.gpu == gpu)
        return GpuInUse(f"{message}; it is used by {', '.join(who) or 'nobody that can be seen'}", uses=who)


def _is(instance: GpuInstance, profile: str, placement: Placement) -> bool:
    return (instance.profile, instance.placement) == (profile, placement)


def _slices(profile: str) -> int:
    try:
        return MigProfile.parse(profile).compute_slices
    except ValueError as error:
        raise Unsupported(str(error)) from error


def _list(instances: Sequence[GpuInstance]) -> str:
    return ", ".join(str(one) for one in instances) or "nothing"
