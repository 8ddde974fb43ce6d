"""A simulated node with the MIG layouts that a policy plans for it, as if ``partage apply`` had made them."""

from __future__ import annotations

from msgspec.structs import replace

from partage.model.geometry import MigProfile
from partage.model.gpu import Gpu, Inventory, MigMode
from partage.model.layout import LayoutItem
from partage.plan.offer.desired import DesiredState
from partage.plan.offer.select import GeometryOf
from partage.sim.node.mig import create_layout

_ON, _OFF = MigMode(current=True, pending=True), MigMode(current=False, pending=False)


def with_planned_layouts(desired: DesiredState, geometry_of: GeometryOf) -> Inventory:
    """The node of ``desired``, after its pending layouts were made. UUIDs and device files of new MIG devices
    are those that the simulation gives; on a real node they are read."""
    gpus = tuple(
        _made(gpu, desired, geometry_of) if gpu.uuid in desired.pending else gpu for gpu in desired.inventory
    )
    return replace(desired.inventory, gpus=gpus)


def _made(gpu: Gpu, desired: DesiredState, geometry_of: GeometryOf) -> Gpu:
    layout = desired.layouts.get(gpu.uuid)
    if layout is None or not layout.enabled:
        return replace(gpu, mig_mode=_OFF, mig_devices=(), empty_instances=())
    planned = {
        (row.device, row.profile, row.placement): None for row in desired.offer[gpu.uuid] if row.planned
    }
    items = [
        LayoutItem(MigProfile.parse(profile), placement.start)
        for _, profile, placement in planned
        if profile is not None and placement is not None
    ]
    geometry = geometry_of(gpu)
    devices = () if geometry is None else create_layout(gpu, geometry, items, "planned")
    return replace(gpu, mig_mode=_ON, mig_devices=devices, empty_instances=())
