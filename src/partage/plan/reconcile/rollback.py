"""What a rollback finds on a GPU and may not destroy: instances that were not there before the change, and
that none of its steps says it made. An administrator may have made them meanwhile, at the place of ours.

They are told apart by ids and UUIDs, never by profile and place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from partage.errors import DriverUnavailable, HardwareTimeout, PartageError
from partage.model.geometry import MigProfile, Placement
from partage.model.gpu import Gpu, Inventory
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
    """A MIG device, or a GPU instance without one, that is not of the change.

    profile: of the device or the GPU instance. placement: of the GPU instance; None: only root may read it.
    device: None: it has none.
    """

    gpu: GpuUuid
    gi_id: int
    profile: str
    placement: Placement | None
    device: MigUuid | None = None

    def __str__(self) -> str:
        named = f"{self.profile} at {self.placement}"
        return f"{named} ({self.device})" if self.device else f"the empty GPU instance {named}"


def foreign_parts(
    now: Inventory, before: Inventory, done: Iterable[tuple[Step, Created | None]]
) -> tuple[ForeignPart, ...]:
    """What is there ``now`` that was not there ``before``, and that no step made.

    done: all steps that were done in between, those of a rollback too, and what each said that it made.
    """
    was = [part for gpu in before for part in _parts(gpu)]
    instances = {(part.gpu, part.gi_id) for part in was}
    devices = {part.device for part in was}
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
        part
        for gpu in now
        for part in _parts(gpu)
        if (part.device not in devices if part.device else (part.gpu, part.gi_id) not in instances)
    )


def layouts_beside(
    was: Mapping[GpuUuid, DesiredMig], foreign: Iterable[ForeignPart]
) -> dict[GpuUuid, DesiredMig]:
    """The layouts to go back to, by GPU UUID: ``was``, and what is foreign where it is."""
    found = dict(was)
    for part in foreign:
        layout = found.get(part.gpu)
        if layout is not None and layout.enabled and part.device:
            start = part.placement.start if part.placement else None
            item = LayoutItem(MigProfile.parse(part.profile), start)
            found[part.gpu] = replace(layout, items=(*layout.items, item))
    return found


def is_as_it_was(gpu: Gpu, layout: DesiredMig, foreign: Iterable[ForeignPart]) -> bool:
    """Whether a GPU has this layout. An empty GPU instance that is not foreign does not belong to it: a
    failed creation may have left it.
    """
    settled = gpu.mig_mode is None or gpu.mig_mode.current == gpu.mig_mode.pending
    empty = {instance.gi_id for instance in gpu.empty_instances}
    left = empty - {part.gi_id for part in foreign if part.gpu == gpu.uuid}
    now = live_layout(gpu)
    return (
        settled and not left and now.enabled == layout.enabled and Counter(now.items) == Counter(layout.items)
    )


def hit_by(step: Step, foreign: Iterable[ForeignPart]) -> ForeignPart | None:
    """What is foreign and would be destroyed by a step; None: nothing."""
    return next((part for part in foreign if _hits(step, part)), None)


def _hits(step: Step, part: ForeignPart) -> bool:
    match step:
        case DestroyCompute(gpu):
            return gpu == part.gpu and (not step.uuid or step.uuid == part.device)
        case DestroyInstance(gpu):
            return gpu == part.gpu and step.gi_id in (None, part.gi_id)
        case SetMigMode(gpu, False):
            return gpu == part.gpu
        case Reset(gpus):
            return part.gpu in gpus
        case _:
            return False


def perhaps_ours(failed: Step, error: PartageError, foreign: Iterable[ForeignPart]) -> ForeignPart | None:
    """The part that the step that failed may have made after all; None: no such part."""
    if not isinstance(failed, CreateInstance | CreateCompute) or not isinstance(error, _UNCERTAIN):
        return None
    place = (failed.gpu, failed.profile, failed.placement)
    return next((part for part in foreign if (part.gpu, part.profile, part.placement) == place), None)


def _parts(gpu: Gpu) -> list[ForeignPart]:
    devices = [
        ForeignPart(gpu.uuid, device.gi_id, device.profile, device.placement, device.uuid)
        for device in gpu.mig_devices
    ]
    empty = [
        ForeignPart(gpu.uuid, instance.gi_id, instance.profile, instance.placement)
        for instance in gpu.empty_instances
    ]
    return devices + empty
