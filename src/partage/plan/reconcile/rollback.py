"""What a rollback finds on a GPU and may not destroy: instances that were not there before the change, and
that none of its steps says it made. An administrator may have made them meanwhile, at the place of ours.

They are told apart by ids and UUIDs, never by profile and place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from partage.errors import DriverUnavailable, HardwareTimeout, PartageError
from partage.model.geometry import MigProfile
from partage.model.gpu import EmptyInstance, Gpu, Inventory, MigDevice
from partage.model.ids import GpuUuid, MigUuid
from partage.model.layout import LayoutItem
from partage.model.policy import DesiredMig
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    Reset,
    SetMigMode,
    Step,
)
from partage.plan.reconcile.mig_plan import live_layout
from partage.values import Frozen

_UNCERTAIN = (HardwareTimeout, DriverUnavailable)
"""Errors after which a step may have been done all the same."""


class ForeignPart(Frozen):
    """A MIG device, or a GPU instance without one, that is not of the change."""

    gpu: GpuUuid
    part: MigDevice | EmptyInstance

    @property
    def device(self) -> MigUuid | None:
        """None: it is a GPU instance without one."""
        return self.part.uuid if isinstance(self.part, MigDevice) else None

    def __str__(self) -> str:
        named = f"{self.part.profile} at {self.part.placement}"
        return f"{named} ({self.device})" if self.device else f"the empty GPU instance {named}"


def foreign_parts(
    now: Inventory, before: Inventory, done: Iterable[tuple[Step, Created | None]]
) -> tuple[ForeignPart, ...]:
    """What is there ``now`` that was not there ``before``, and that no step made.

    done: all steps that were done in between, those of a rollback too, and what each said that it made.
    """
    was = [part for gpu in before for part in _parts(gpu)]
    instances = {(found.gpu, found.part.gi_id) for found in was}
    devices = {found.device for found in was}
    for step, made in done:
        match step:
            case Reset(gpus):
                instances = {instance for instance in instances if instance[0] not in gpus}
            case DestroyInstance(gpu, _, _, int() as gi_id):
                instances.discard((gpu, gi_id))  # the driver may give this id to another one
            case CreateInstance(gpu) if made is not None:
                instances.add((gpu, made.gi_id))
            case CreateCompute() if made is not None:
                devices.add(made.uuid)
    return tuple(
        found
        for gpu in now
        for found in _parts(gpu)
        if (found.device not in devices if found.device else (found.gpu, found.part.gi_id) not in instances)
    )


def layouts_beside(
    was: Mapping[GpuUuid, DesiredMig], foreign: Iterable[ForeignPart]
) -> dict[GpuUuid, DesiredMig]:
    """The layouts to go back to, by GPU UUID: ``was``, and what is foreign where it is."""
    found = dict(was)
    for other in foreign:
        layout = found.get(other.gpu)
        if layout is not None and layout.enabled and isinstance(other.part, MigDevice):
            start = other.part.placement.start if other.part.placement else None
            item = LayoutItem(MigProfile.parse(other.part.profile), start)
            found[other.gpu] = replace(layout, items=(*layout.items, item))
    return found


def is_as_it_was(gpu: Gpu, layout: DesiredMig, foreign: Iterable[ForeignPart]) -> bool:
    """Whether a GPU has this layout. An empty GPU instance that is not foreign does not belong to it: a
    failed creation may have left it.
    """
    settled = gpu.mig_mode is None or gpu.mig_mode.current == gpu.mig_mode.pending
    empty = {instance.gi_id for instance in gpu.empty_instances}
    left = empty - {other.part.gi_id for other in foreign if other.gpu == gpu.uuid}
    now = live_layout(gpu)
    return (
        settled and not left and now.enabled == layout.enabled and Counter(now.items) == Counter(layout.items)
    )


def hit_by(step: Step, foreign: Iterable[ForeignPart]) -> ForeignPart | None:
    """What is foreign and would be destroyed by a step; None: nothing."""
    return next((other for other in foreign if _hits(step, other)), None)


def _hits(step: Step, other: ForeignPart) -> bool:
    match step:
        case DestroyCompute(gpu):
            return gpu == other.gpu and (not step.uuid or step.uuid == other.device)
        case DestroyInstance(gpu):
            return gpu == other.gpu and step.gi_id in (None, other.part.gi_id)
        case SetMigMode(gpu, False):
            return gpu == other.gpu
        case Reset(gpus):
            return other.gpu in gpus
        case _:
            return False


def perhaps_ours(failed: Step, error: PartageError, foreign: Iterable[ForeignPart]) -> ForeignPart | None:
    """The part that the step that failed may have made after all; None: no such part."""
    if not isinstance(failed, CreateInstance | CreateCompute) or not isinstance(error, _UNCERTAIN):
        return None
    place = (failed.gpu, failed.profile, failed.placement)
    return next(
        (other for other in foreign if (other.gpu, other.part.profile, other.part.placement) == place), None
    )


def _parts(gpu: Gpu) -> list[ForeignPart]:
    parts: list[MigDevice | EmptyInstance] = [*gpu.mig_devices, *gpu.empty_instances]
    return [ForeignPart(gpu.uuid, part) for part in parts]
