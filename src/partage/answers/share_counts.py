"""What a report of an agent comes to: how many shares are held, free, or not usable, and what is wrong.

A share that the kubelet would give to nobody now is not free: its GPU is lost, unhealthy or cordoned, or
the share is withdrawn because its GPU is going to change. The report has a sick GPU twice: in the row of the
GPU, and as a reason why the node is degraded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from partage.model.ids import DeviceUuid, GpuUuid, ResourceName
from partage.model.share import DeviceOffer
from partage.plan.serve.ledger_entry import Hold
from partage.text import gpus
from partage.values import Frozen, grouped

if TYPE_CHECKING:
    from partage.answers.documents.report import PlannedFrom, ReportDocument, ReportedGpuRow


class ShareCount(Frozen):
    """Shares, or units of memory."""

    held: int = 0
    free: int = 0
    not_usable: int = 0

    @property
    def all(self) -> int:
        """What was offered."""
        return self.held + self.free + self.not_usable

    def __add__(self, other: ShareCount) -> ShareCount:
        return ShareCount(self.held + other.held, self.free + other.free, self.not_usable + other.not_usable)

    def __str__(self) -> str:
        """``3 held, 4 free, 1 not usable``."""
        lost = f", {self.not_usable} not usable" if self.not_usable else ""
        return f"{self.held} held, {self.free} free{lost}"


def not_usable(report: ReportDocument) -> frozenset[Hold]:
    """Shares that are not held and that no container can get now."""
    from partage.answers.documents.report import withdrawn_in  # all of the agent's status: for show, later

    planned = report.planner_input  # read once: it is most of the report
    gpus, devices = _gpus_out(report), _devices_out(report, planned)
    out = {
        (offering.resource, share)
        for offering in _offerings(report)
        if offering.gpu in gpus or offering.device in devices
        for share in offering.share_ids
    }
    return (withdrawn_in(planned) | out) - {(entry.resource, entry.id) for entry in report.held}


class ShareCounts(Frozen):
    """The shares of a node. by_gpu: by the index of the GPU; only GPUs that offer shares. by_resource: held
    shares that are offered no more count, too.
    """

    by_gpu: Mapping[int, ShareCount]
    by_resource: Mapping[ResourceName, ShareCount]


def count_shares(report: ReportDocument) -> ShareCounts:
    """Of a node."""
    held = {(entry.resource, entry.id) for entry in report.held}
    out = not_usable(report)
    by_gpu: dict[int, ShareCount] = {}
    by_resource: dict[ResourceName, ShareCount] = {}
    for offering in _offerings(report):
        states = Counter(_state((offering.resource, share), held, out) for share in offering.share_ids)
        count = ShareCount(states["held"], states["free"], states["not usable"])
        by_gpu[offering.gpu_index] = by_gpu.get(offering.gpu_index, ShareCount()) + count
        by_resource[offering.resource] = by_resource.get(offering.resource, ShareCount()) + count
    for resource in report.resources:
        known = by_resource.get(resource.name, ShareCount())
        by_resource[resource.name] = known + ShareCount(held=max(0, resource.held - known.held))
    return ShareCounts(by_gpu, by_resource)


def count_by_resource(report: ReportDocument) -> Mapping[ResourceName, ShareCount]:
    """By the name of the resource."""
    return count_shares(report).by_resource


def any_usable(report: ReportDocument) -> bool:
    """Whether a GPU of the node can be used; also where it has none."""
    return not report.gpus or any(works(gpu) for gpu in report.gpus)


def works(gpu: ReportedGpuRow) -> bool:
    """Whether it answers and is not unhealthy."""
    return not gpu.lost and gpu.health.state.offered


def _gpus_out(report: ReportDocument) -> set[GpuUuid]:
    return {gpu.uuid for gpu in report.gpus if gpu.cordoned or not works(gpu)}


def _devices_out(report: ReportDocument, planned: PlannedFrom | None) -> set[DeviceUuid]:
    """MIG devices in GPU instances that are not healthy; none known of an agent of another version."""
    if planned is None:
        return set()
    out = {
        (gpu.uuid, gi_id)
        for gpu in report.gpus
        for gi_id, health in gpu.instances.items()
        if not health.state.offered
    }
    inventory = planned.snapshot.observed.node.inventory
    return {device.uuid for gpu in inventory for device in gpu.mig_devices if (gpu.uuid, device.gi_id) in out}


def _offerings(report: ReportDocument) -> Iterator[DeviceOffer]:
    return (offering for gpu_offer in report.offer.values() for offering in gpu_offer)


def _state(hold: Hold, held: Collection[Hold], out: Collection[Hold]) -> str:
    return "held" if hold in held else "not usable" if hold in out else "free"


_OF_A_GPU = "gpu-unhealthy"
"""The code of reasons that the rows of GPUs say, too."""


def problems_of(report: ReportDocument) -> list[str]:
    """Everything, a sentence each: GPUs first, those with the same problem together."""
    alike = grouped((trouble, gpu.index) for gpu in report.gpus for trouble in troubles_of_gpu(gpu))
    return [*(f"{gpus(indexes)}: {trouble}" for trouble, indexes in alike.items()), *problems_of_node(report)]


def problems_of_node(report: ReportDocument) -> list[str]:
    """What is not said of one of its GPUs."""
    reasons = (*report.reasons, *report.degraded)
    return list(dict.fromkeys(reason.message for reason in reasons if reason.code != _OF_A_GPU))


def troubles_of_gpu(gpu: ReportedGpuRow) -> list[str]:
    """What is wrong with a GPU, and with GPU instances of it."""
    instances = [
        f"GPU instance {gi_id} {health.state}: {health.reason}"
        for gi_id, health in gpu.instances.items()
        if not health.state.offered
    ]
    return [*([gpu.trouble] if gpu.trouble else []), *instances]
