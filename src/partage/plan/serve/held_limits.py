"""Which containers the driver has to limit, and of which it was seen to. Joins the ledger with cgroups. Pure.
What is decided of a place alone (``to_repair``, ``read_limit``) holds for Slurm's jobs, too.

A container's limit on a GPU is the sum of its shares there. A pod's name can have several containers of the
runtime's, because it was started again: one without a cgroup has ended, or is not there yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from partage.model.driver_limit import LimitAt, LimitBackend, SeenLimit
from partage.model.gpu import Inventory
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid, ShareId, device_of
from partage.model.share import DeviceOffer, Guarantee, NodeOffer, weakest
from partage.plan.serve.ledger_entry import Certainty, HeldLimit, Hold, Holder, LedgerEntry
from partage.units import format_bytes
from partage.values import grouped

NOT_SEEN = "its container has no cgroup yet, or was not looked at"


def limited_devices(offer: NodeOffer) -> frozenset[DeviceUuid]:
    """Devices whose shares have limits of the driver's."""
    return frozenset(row.device for rows in offer.values() for row in rows if row.limited)


def counted_devices(offer: NodeOffer, inventory: Inventory) -> frozenset[DeviceUuid]:
    """Whole GPUs whose memory the kernel counts for each cgroup, whether it limits it or not. Clients of MPS
    share what is counted for their server.
    """
    return frozenset(
        row.device
        for gpu in counted_gpus(inventory) & offer.keys()
        for row in offer[gpu]
        if row.device == gpu and not row.traits.through_daemon
    )


def counted_gpus(inventory: Inventory) -> frozenset[GpuUuid]:
    """GPUs whose memory the kernel counts for each cgroup."""
    return frozenset(gpu.uuid for gpu in inventory if gpu.limits and gpu.limits.backend is LimitBackend.DMEM)


def counted_places(
    entries: Iterable[LedgerEntry],
    devices: Collection[DeviceUuid],
    names: Mapping[ContainerId, Holder],
) -> frozenset[LimitAt]:
    """Where the memory of containers is counted that hold shares of these whole GPUs."""
    places = _places(names)
    return frozenset(
        LimitAt(container, GpuUuid(device_of(entry.id)))
        for entry in entries
        if entry.ended_s is None and device_of(entry.id) in devices
        for holder in entry.known_holders
        for container in places.get(holder, ())
    )


def wanted_limits(
    entries: Iterable[LedgerEntry], offer: NodeOffer, names: Mapping[ContainerId, Holder]
) -> dict[LimitAt, int]:
    """The limit of every container that is known to hold such shares, in bytes. offer: what can be held.

    names: containers of the node, by id.
    """
    places, wanted = _places(names), dict[LimitAt, int]()
    for entry, row in _limited(entries, offer):
        for at in _of_entry(entry, row, places):
            wanted[at] = wanted.get(at, 0) + row.memory_bytes
    return wanted


def to_repair(wanted: Mapping[LimitAt, int], seen: Mapping[LimitAt, SeenLimit]) -> dict[LimitAt, int]:
    """The limits that have to be set again: the container is there, and has another one or none."""
    return {
        at: limit_bytes
        for at, limit_bytes in wanted.items()
        if at in seen and seen[at].cgroup and seen[at].hard_bytes != limit_bytes
    }


def held_limits(
    entries: Iterable[LedgerEntry],
    offer: NodeOffer,
    names: Mapping[ContainerId, Holder],
    seen: Mapping[LimitAt, SeenLimit],
    late: Collection[LimitAt],
) -> dict[Hold, HeldLimit]:
    """What is said beside each held share. late: limits that were set again, after the container had begun.

    A share of several containers has the worst of theirs. Each of them has the limit of all, so together
    they can have more than the claim, and it is not in force.
    """
    entries, places = tuple(entries), _places(names)
    wanted = wanted_limits(entries, offer, names)
    found: dict[Hold, HeldLimit] = {}
    for entry, row in _limited(entries, offer):
        there = sorted(at for at in _of_entry(entry, row, places) if at in seen)
        states = [read_limit(wanted[at], seen[at], late=at in late) for at in there if seen[at].cgroup]
        if not states:
            states = [HeldLimit(row.memory_bytes, None, reason=seen[there[0]].why if there else NOT_SEEN)]
        worst = next((state for state in states if not state.in_force), states[0])
        found[entry.hold] = _of_each(worst, len(entry.known_holders))
    return found


def _of_each(limit: HeldLimit, containers: int) -> HeldLimit:
    """The limit of a share that so many containers have."""
    if containers < 2 or not limit.in_force:
        return limit
    reason = f"{containers} containers use it, each with this limit: together they can have more"
    return replace(limit, reason=reason, shared_by=containers)


def read_limit(limit_bytes: int, seen: SeenLimit, *, late: bool) -> HeldLimit:
    """What is said of a place. late: it was set again, after the work there had begun."""
    read = seen.hard_bytes
    used = None if seen.state is None else seen.state.used_bytes
    reason = "" if read is not None else seen.why or "its cgroup has no limit"
    if read is not None and read > limit_bytes:
        reason = f"its cgroup may have {format_bytes(read)}"
    elif read is not None and used is not None and used > read:
        # Neither driver nor kernel takes back what a cgroup had before it had a limit.
        reason = f"{format_bytes(used)} is in use, taken before the limit was set"
    return HeldLimit(limit_bytes, read, late, reason)


def _places(names: Mapping[ContainerId, Holder]) -> dict[Holder, list[ContainerId]]:
    """Those of each holder: several, where it was started again."""
    return grouped((holder, container) for container, holder in names.items())


def _of_entry(
    entry: LedgerEntry, row: DeviceOffer, places: Mapping[Holder, Sequence[ContainerId]]
) -> list[LimitAt]:
    """Where those have their limit that hold a share."""
    return [
        LimitAt(container, row.gpu) for holder in entry.known_holders for container in places.get(holder, ())
    ]


def _limited(entries: Iterable[LedgerEntry], offer: NodeOffer) -> list[tuple[LedgerEntry, DeviceOffer]]:
    """The held shares that have a limit, each with its offer. One that is ending has no container."""
    rows: dict[Hold, DeviceOffer] = {
        (row.resource, ShareId(share)): row
        for devices in offer.values()
        for row in devices
        if row.limited
        for share in row.share_ids
    }
    if not rows:
        return []
    return [(entry, rows[entry.hold]) for entry in entries if entry.hold in rows and entry.ended_s is None]


class Limited(Protocol):
    """An entry of the ledger, or the row of a report that says the same."""

    @property
    def id(self) -> ShareId:
        """Of the held share."""

    @property
    def certainty(self) -> Certainty:
        """Of the hold."""

    @property
    def limit(self) -> HeldLimit | None:
        """What was seen of its limit."""


def as_seen(offer: NodeOffer, entries: Iterable[Limited]) -> NodeOffer:
    """An offer with what is said of its shares (``said_of``)."""
    if not limited_devices(offer):
        return offer
    entries = tuple(entries)
    return {
        gpu: tuple(replace(row, guarantee=said_of(row, entries)) for row in rows)
        for gpu, rows in offer.items()
    }


def limits_read(offer: NodeOffer, entries: Iterable[Limited]) -> frozenset[DeviceUuid]:
    """Devices with such limits where the limit of every holder was read."""
    limited, entries = limited_devices(offer), tuple(entries)
    return frozenset(
        device for device in limited if seen_on(device, entries, Guarantee.NONE) is Guarantee.HARD
    )


def said_of(row: DeviceOffer, entries: Iterable[Limited]) -> Guarantee:
    """What is said of shares: of limited ones what was seen, of others what is promised."""
    if not row.limited:
        return row.guarantee
    missing = Guarantee.ADVISORY if row.guard else Guarantee.NONE
    return weakest((row.guarantee, seen_on(row.device, entries, missing) or missing))


def seen_on(device: DeviceUuid, entries: Iterable[Limited], otherwise: Guarantee) -> Guarantee | None:
    """What was seen to be guaranteed on a device with such limits: hard only if every holder's limit was
    read, because one without a limit can use the memory of all. None: nobody holds a share of it, so nothing
    could be read. otherwise: where a limit is missing, or was not looked at yet.
    """
    held = [
        entry.limit
        for entry in entries
        if device_of(entry.id) == device and entry.certainty is not Certainty.ENDING
    ]
    if not held:
        return None
    in_force = all(limit is not None and limit.in_force for limit in held)
    return Guarantee.HARD if in_force else otherwise
