"""GPUs under MPS that serve nothing yet, and whose held shares are known all the same. Pure.

The agent's state was lost, and then a daemon or the driver under the pods. The ids alone do not say what they
were given as (ADR 20): under time-slicing, or with another number of shares, they may be the same. A daemon
of Partage on their device says so by its limits, also one that has ended: it is removed when a device is no
longer shared by MPS.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from partage.model.ids import DeviceUuid, GpuUuid, device_of
from partage.model.mps import DaemonState
from partage.model.share import GpuOffer
from partage.plan.offer.desired import DesiredState, existing_offer
from partage.plan.reconcile.node_plan import Snapshot
from partage.plan.reconcile.transition import GpuServing, foreign_holds
from partage.plan.reconcile.verification import limits_share


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
        if all(limits_share(daemon, one) for one in offer if one.device == daemon.device)
    }
