"""GPUs that serve nothing yet and of which shares are held, because the agent's state was lost, or another
plugin gave them: whose holds are known all the same, and whose may have been given as something else.
Pure.

The id of a share does not say into how many its device was split, or by what (ADR 20): ``<uuid>::0`` is in
every offer of shares. An id without a number is a whole device. A daemon of Partage on the device says it by
its limits, also one that has ended: it is removed when a device is no longer shared by MPS.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from partage.model.ids import DeviceUuid, GpuUuid, ResourceName, ShareId, device_of, parse_share_id
from partage.model.mps import DaemonState
from partage.model.share import GpuOffer, NodeOffer
from partage.plan.offer.desired import DesiredState, existing_offer
from partage.plan.reconcile.node_plan import Snapshot
from partage.plan.reconcile.transition import GpuServing, foreign_holds
from partage.plan.reconcile.verification import limits_share
from partage.plan.serve.ledger_entry import HeldIds, Hold

Listed = Mapping[ResourceName, frozenset[ShareId]]
"""Ids in the last lists that plugins sent to the kubelet."""


def unknown_terms(
    offers: NodeOffer, held: HeldIds, listed: Listed, gpu_of: Mapping[DeviceUuid, GpuUuid]
) -> frozenset[GpuUuid]:
    """GPUs that have to wait until their holders have ended, whatever fits their offer.

    offers: what those GPUs would serve that serve nothing yet. listed: before the first list of this agent.
    A device that was listed with just the shares that it is to have was split into so many.
    """
    if not offers:
        return frozenset()
    shared = {device for ids in held.ids.values() for share in ids if (device := _shared_device(share))}
    before = _by_device(listed) if shared else {}
    waiting: set[GpuUuid] = set()
    for device in shared:
        gpu = gpu_of.get(device) or GpuUuid(device)
        if gpu in offers and not _was_listed_so(device, offers[gpu], before.get(device)):
            waiting.add(gpu)
    return frozenset(waiting)


def _shared_device(share: ShareId) -> DeviceUuid | None:
    device, number = parse_share_id(share)
    return None if number is None else device


def _by_device(listed: Listed) -> Mapping[DeviceUuid, set[Hold]]:
    devices: dict[DeviceUuid, set[Hold]] = defaultdict(set)
    for resource, ids in listed.items():
        for share in ids:
            devices[parse_share_id(share)[0]].add((resource, share))
    return devices


def _was_listed_so(device: DeviceUuid, offer: GpuOffer, listed: set[Hold] | None) -> bool:
    """Shares of several sizes, and units, are not known by their number."""
    rows = [offering for offering in offer if offering.device == device]
    if len(rows) != 1 or rows[0].by_memory:
        return False
    return listed == {(rows[0].resource, share) for share in rows[0].share_ids}


def recognised(
    desired: DesiredState, now: Snapshot, gpu_of: Mapping[DeviceUuid, GpuUuid]
) -> dict[GpuUuid, GpuServing]:
    """What these GPUs are taken to serve: the wanted offer, to which all of their held ids belong.

    gpu_of: MIG device UUID to GPU UUID.
    """
    if not now.observed.daemons:
        return {}
    served = {gpu for gpu, serving in now.served.items() if serving.offer or serving.leaving}
    passed_over = served | now.unknown | set(now.in_hand)
    wanted = {
        gpu: GpuServing(offer)
        for gpu, offer in existing_offer(desired.offer).items()
        if offer and gpu not in passed_over and now.observed.daemons_of(gpu)
    }
    if not wanted:
        return {}
    held: dict[GpuUuid, set[DeviceUuid]] = defaultdict(set)
    for entry in now.entries:
        device = device_of(entry.id)
        held[gpu_of.get(device) or GpuUuid(device)].add(device)
    foreign = foreign_holds(wanted, now.held, gpu_of)
    return {
        gpu: serving
        for gpu, serving in wanted.items()
        if gpu in held
        and gpu not in foreign
        and held[gpu] <= _devices_shared_so(serving.offer, now.observed.daemons_of(gpu))
    }


def _devices_shared_so(offer: GpuOffer, daemons: Iterable[DaemonState]) -> set[DeviceUuid]:
    """Devices whose daemon has the limits of all these shares."""
    return {
        daemon.device
        for daemon in daemons
        if all(limits_share(daemon, offering) for offering in offer if offering.device == daemon.device)
    }
