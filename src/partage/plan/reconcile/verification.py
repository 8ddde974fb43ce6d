"""Which guarantees were seen in force: what driver and MPS daemons say, against what is promised. Pure.

A promise follows from the policy. It is verified once the node was read back and shows it: the device exists,
its MPS daemon serves with the limits of the share, nobody else can have changed them, the compute mode keeps
other processes out, and the watchdog sees the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from partage.model.gpu import ComputeMode, Gpu
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.mps import DaemonPhase, DaemonState
from partage.model.share import DeviceOffer, Guarantee, NodeOffer, weakest
from partage.plan.reconcile.node_plan import Observed
from partage.plan.serve.held_limits import seen_on
from partage.plan.serve.ledger_entry import LedgerEntry


def verified_guarantee(
    share: DeviceOffer,
    observed: Observed,
    watched: Collection[GpuUuid],
    doubts: Mapping[DeviceUuid, str],
    entries: Collection[LedgerEntry] = (),
) -> Guarantee | None:
    """The guarantee that was seen in force; None where nothing could be seen. entries: what is held.

    watched: UUIDs of GPUs whose use is watched at this moment. doubts: devices whose daemon's limits somebody
    else may change or have changed (``limit_trust``).
    """
    gpu = observed.node.inventory.gpu(share.gpu)
    if gpu is None or share.gpu in observed.node.lost or not _exists(share, gpu):
        return None
    if share.limited:
        missing = Guarantee.ADVISORY if share.guard else Guarantee.NONE
        seen = seen_on(share.device, entries, missing)
        return seen if seen is None else weakest((seen, share.guarantee))
    if not share.traits.through_daemon:
        return share.guarantee
    daemons = observed.daemons or ()
    daemon = next((daemon_state for daemon_state in daemons if daemon_state.device == share.device), None)
    if daemon is None or daemon.phase in (DaemonPhase.DEAD, DaemonPhase.SILENT) or daemon.pid is None:
        return None
    if share.guarantee is Guarantee.GUARDED and not limits_share(daemon, share):
        return Guarantee.NONE  # also if it takes no clients: those that it has are not limited
    if daemon.phase is not DaemonPhase.SERVING:
        return None
    if share.guarantee is not Guarantee.GUARDED:
        return share.guarantee
    alone = gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS
    kept = alone and share.gpu in watched and share.device not in doubts
    return Guarantee.GUARDED if kept else Guarantee.ADVISORY


def verifier(
    kinds: NodeOffer,
    observed: Observed,
    watched: Collection[GpuUuid],
    doubts: Mapping[DeviceUuid, str],
    entries: Collection[LedgerEntry] = (),
) -> Callable[[DeviceOffer], Guarantee | None]:
    """``verified_guarantee`` for shares of an offer whose guarantees were weakened: what is promised of a
    share of MPS can be less than what its daemon was seen to hold, and more than what it holds now.

    kinds: the same offer, with the guarantees of its kinds.
    """
    guarded = {
        (row.device, row.resource, row.first)
        for rows in kinds.values()
        for row in rows
        if row.guarantee is Guarantee.GUARDED
    }

    def verify(share: DeviceOffer) -> Guarantee | None:
        if (share.device, share.resource, share.first) in guarded and not observed.node.inventory.open_to_env:
            share = replace(share, guarantee=Guarantee.GUARDED)
        return verified_guarantee(share, observed, watched, doubts, entries)

    return verify


def stated_guarantee(share: DeviceOffer, seen: Guarantee | None) -> Guarantee:
    """What can be said of a share: the weaker one of what is promised and what was seen. A limit of the
    driver's is there only once it was read.
    """
    if share.limited and seen is None:
        return Guarantee.ADVISORY if share.guard else Guarantee.NONE
    return share.guarantee if seen is None else weakest(iter((share.guarantee, seen)))


def _exists(share: DeviceOffer, gpu: Gpu) -> bool:
    if share.planned:
        return False
    if share.profile is None:
        return share.device == gpu.uuid
    return any(mig.uuid == share.device for mig in gpu.mig_devices)


def limits_share(daemon: DaemonState, share: DeviceOffer) -> bool:
    """Whether the daemon's own limit of memory is the share's."""
    limits = {"": daemon.limits.memory_bytes}
    limits |= {namespace.name: namespace.memory_bytes for namespace in daemon.limits.namespaces}
    if share.in_slots:
        return daemon.limits.slots == share.replicas  # what each allows is read back when a claim gets it
    name = share.pipe.rpartition("/")[2]
    if share.by_memory:
        amounts = range(1, share.replicas + 1)
        return all(limits.get(f"{name}{units}") == units * share.memory_bytes for units in amounts)
    return limits.get(name) == share.memory_bytes
