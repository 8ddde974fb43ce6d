"""What claims want of GPUs whose MIG devices are made on demand: a value for whoever plans such a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from partage.model.ids import GpuUuid
from partage.model.layout import LayoutItem
from partage.values import Frozen


class GpuDemand(Frozen):
    """What claims want of one GPU.

    whole: all of it, without MIG. parts: MIG devices, each with its start. made: where MIG devices were made
    for claims, also for claims that have ended: only there one is ever destroyed.
    """

    whole: bool = False
    parts: tuple[LayoutItem, ...] = ()
    made: tuple[LayoutItem, ...] = ()


Demands = Mapping[GpuUuid, GpuDemand]
"""By GPU UUID. A GPU that is not in it is wanted by nobody."""

NO_DEMANDS: Demands = {}
