"""What is offered under which resource name: the rows of ``resources``; what every held share has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from partage.answers.documents.document import GpuName, row
from partage.model.ids import DeviceUuid, ResourceName, ShareId
from partage.model.share import DeviceOffer, Guarantee, NodeOffer, Resource, resources_of, weakest
from partage.model.strategy import Interval, Strategy
from partage.plan.reconcile.verification import stated_guarantee
from partage.plan.serve.ledger_entry import Certainty
from partage.values import Frozen, grouped

Verify = Callable[[DeviceOffer], Guarantee | None]
"""The guarantee of a share that was seen in force; None where nothing could be seen."""


class ResourceDeviceRow(Frozen, kw_only=True, omit_defaults=True):
    """One GPU or MIG device. Keys that do not apply are left out.

    uuid: None for a device that has still to be made. index: ``6``, or ``6:1`` for a MIG device.
    sharing: how the device itself is shared. replicas: shares that it is split into.
    first_share, count: which of them are here. memory_bytes: of one share.
    pipe: its namespace below the MPS daemon's pipe directory. interval: length of a time slice.
    one_share_only: a container may hold one share only. planned: it has still to be made.
    by_memory: shares are units of memory, and a container may hold several, all of this device.
    """

    uuid: DeviceUuid | None
    index: str | None = None
    profile: str | None = None
    sharing: Strategy
    replicas: int
    first_share: int
    count: int
    memory_bytes: int
    guarantee: Guarantee
    promised: Guarantee
    verified: Guarantee | None
    threads_percent: int | None = None
    pipe: str = ""
    interval: Interval | None = None
    one_share_only: bool
    planned: bool
    by_memory: bool = False


class ResourceGpuRow(GpuName):
    """What one GPU adds to a resource. memory_bytes: of the smallest share, where shares differ.
    planned: a MIG device in it has still to be made.
    """

    count: int
    strategy: Strategy
    guarantee: Guarantee
    promised: Guarantee
    verified: Guarantee | None
    memory_bytes: int
    planned: bool
    devices: tuple[ResourceDeviceRow, ...]


class ResourceRow(Frozen):
    """One resource: how many shares, how, with what guarantee, and on which GPUs.

    strategy: ``exclusive``, ``time-slicing``, ``mps``, ``mig``, or ``mixed`` for several; None, as the
    guarantees: nothing is offered under this name any more. guarantee: the weaker one of promised and
    verified, each the weakest of all shares. promised: what follows from the policy. verified: what was seen
    in force; None where nothing was seen. gpus: one row for each GPU that adds to it.
    """

    name: ResourceName
    count: int
    strategy: str | None
    guarantee: Guarantee | None
    promised: Guarantee | None
    verified: Guarantee | None
    gpus: tuple[ResourceGpuRow, ...]


class HeldShare(Frozen, kw_only=True):
    """A share that is held, and how sure that is."""

    resource: ResourceName
    id: ShareId
    certainty: Certainty


def resource_rows(offer: NodeOffer, verify: Verify | None = None) -> tuple[ResourceRow, ...]:
    """One row per resource name. offer: what is promised. verify: None where the node was not read back."""
    check = verify or (lambda _share: None)
    return tuple(_resource_row(resource, check) for resource in resources_of(offer).values())


def _resource_row(resource: Resource, verify: Verify) -> ResourceRow:
    by_gpu = grouped((offering.gpu_index, offering) for offering in resource.offerings)
    strategies = {str(offering.strategy) for offering in resource.offerings}
    return row(
        ResourceRow,
        resource,
        strategy=strategies.pop() if len(strategies) == 1 else "mixed",
        gpus=tuple(_gpu_row(offerings, verify) for offerings in by_gpu.values()),
        **_guarantees(resource.offerings, verify),
    )


def _gpu_row(offerings: Sequence[DeviceOffer], verify: Verify) -> ResourceGpuRow:
    first = offerings[0]
    return ResourceGpuRow(
        index=first.gpu_index,
        uuid=first.gpu,
        count=sum(offering.count for offering in offerings),
        strategy=first.strategy,
        memory_bytes=min(offering.memory_bytes for offering in offerings),
        planned=any(offering.planned for offering in offerings),
        devices=tuple(_device_row(offering, verify) for offering in offerings),
        **_guarantees(offerings, verify),
    )


def _device_row(offering: DeviceOffer, verify: Verify) -> ResourceDeviceRow:
    return row(
        ResourceDeviceRow,
        offering,
        uuid=None if offering.planned else offering.device,
        index=None if offering.planned else offering.index,
        sharing=offering.shared,
        first_share=offering.first,
        one_share_only=offering.single,
        **_guarantees([offering], verify),
    )


def _guarantees(offerings: Sequence[DeviceOffer], verify: Verify) -> dict[str, Any]:
    seen = [verify(offering) for offering in offerings]
    known = [guarantee for guarantee in seen if guarantee is not None]
    return {
        "guarantee": weakest(
            stated_guarantee(offering, guarantee) for offering, guarantee in zip(offerings, seen, strict=True)
        ),
        "promised": weakest(offering.guarantee for offering in offerings),
        "verified": weakest(iter(known)) if len(known) == len(seen) else None,
    }
