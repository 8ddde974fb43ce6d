"""Which containers use more of a GPU's memory than their shares. Joins processes with the ledger. Pure.

A process belongs to the container in its cgroup, and the container to the pod that holds the shares. Each
relation is exact or missing: a process that belongs to no container is listed as such and counted for none.
The memory of an MPS server belongs to no tenant; where the driver counts the memory of clients for the
server, their use is not known. A server in a container that holds shares belongs to that tenant (or is a
process with the server's name).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from operator import attrgetter

from partage.model.cgroup import Owner, parse_cgroup
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid, PodUid, device_of
from partage.model.policy import WatchAction
from partage.model.process import GpuProcess, Processes, ProcessKind
from partage.model.share import DeviceOffer, Guarantee, NodeOffer, weakest
from partage.model.step import EndProcess
from partage.plan.serve.ledger_entry import Holder, LedgerEntry
from partage.units import format_bytes
from partage.values import Frozen

_PID = attrgetter("pid")


class GrantKind(StrEnum):
    """What the ledger says about a container and a device.

    held: it holds shares of it. none: it is known, and holds none. unknown: the container is not known, or
    shares of the device are held by a container that is not known.
    """

    HELD = "held"
    NONE = "none"
    UNKNOWN = "unknown"


class ContainerUsage(Frozen):
    """What one container uses of one device.

    device: UUID of the GPU or MIG device; gpu: of the GPU. pod: empty if its cgroup does not contain it.
    holder: the container's names; None if not known.
    used_bytes: sum over its processes there. partly: True if the driver has no figure for some, so it is a
    minimum.
    granted_bytes: sum over the shares that it holds there, whatever their guarantee; 0 unless grant is
    held.
    """

    device: DeviceUuid
    gpu: GpuUuid
    container: ContainerId
    pod: PodUid
    holder: Holder | None
    grant: GrantKind
    granted_bytes: int
    guarantee: Guarantee | None
    used_bytes: int
    partly: bool
    processes: tuple[GpuProcess, ...]

    @property
    def over(self) -> bool:
        """It uses more than its shares. Limits of the hardware itself cannot be exceeded."""
        limited = self.guarantee is not Guarantee.HARD
        return self.grant is GrantKind.HELD and limited and self.used_bytes > self.granted_bytes

    @property
    def pids(self) -> tuple[int, ...]:
        """Pids of its processes, ascending."""
        return tuple(row.pid for row in self.processes)


class ViolationKind(StrEnum):
    """over: a container uses more than its shares. ungranted: it uses a device of which it holds no share."""

    OVER = "over"
    UNGRANTED = "ungranted"


class Violation(Frozen):
    """What a container does wrong, and what to do about it.

    reason: one sentence. ends: processes to end with a signal. clients: pids of clients that the GPU's MPS
    daemon must end (``terminate_client``). Both empty: only warn.
    """

    concern: ViolationKind
    usage: ContainerUsage
    reason: str
    ends: tuple[EndProcess, ...] = ()
    clients: tuple[int, ...] = ()


class WatchResult(Frozen):
    """usages: of every container on every device, ordered by GPU, device and container.

    unattributed: processes that belong to no container: of the host, of a Slurm job, of an MPS server.
    violations: none where the policy turns watching off. hidden: why processes may be missing;
    empty: none.
    """

    usages: tuple[ContainerUsage, ...] = ()
    unattributed: tuple[GpuProcess, ...] = ()
    violations: tuple[Violation, ...] = ()
    hidden: str = ""


class ShareGrants(Frozen):
    """Shares that are held. by: (device, holder) to the offers of the shares.

    on: (GPU, holder) if the holder holds shares of any of its devices. doubtful: devices and GPUs with held
    shares whose holder or size is not certain.
    """

    by: Mapping[tuple[DeviceUuid, Holder], tuple[DeviceOffer, ...]]
    on: frozenset[tuple[GpuUuid, Holder]]
    doubtful: frozenset[DeviceUuid]


def grants_of(entries: Iterable[LedgerEntry], offer: NodeOffer) -> ShareGrants:
    """The ledger's entries joined with their offers. offer: everything that can be held now."""
    entries = tuple(entries)
    if not entries:  # at rest nothing is held, and an offer has hundreds of ids
        return ShareGrants({}, frozenset(), frozenset())
    offerings = {
        (offering.resource, share): offering
        for gpu_offer in offer.values()
        for offering in gpu_offer
        for share in offering.share_ids
    }
    by: dict[tuple[DeviceUuid, Holder], tuple[DeviceOffer, ...]] = {}
    on: set[tuple[GpuUuid, Holder]] = set()
    doubtful: set[DeviceUuid] = set()
    for entry in entries:
        offering = offerings.get((entry.resource, entry.id))
        if offering is None:
            doubtful.add(device_of(entry.id))  # of an earlier policy: its size is not known
            continue
        if not entry.known_holders:
            doubtful |= {offering.device, offering.gpu}
        for holder in entry.known_holders:
            on.add((offering.gpu, holder))
            key = offering.device, holder
            by[key] = (*by.get(key, ()), offering)
    return ShareGrants(by, frozenset(on), frozenset(doubtful))


def check_usage(
    processes: Processes,
    names: Mapping[ContainerId, Holder],
    granted: ShareGrants,
    watch_of: Mapping[GpuUuid, WatchAction],
) -> WatchResult:
    """Check every container. names: container id to its names, only exact ones.

    watch_of: action by GPU UUID; WARN if missing. If processes are hidden, the visible ones are checked all
    the same.
    """

    def _is_tenants(server: GpuProcess, owner: Owner) -> bool:
        holder = names.get(owner.container)
        return holder is not None and (server.device or server.gpu, holder) in granted.by

    owned: dict[tuple[GpuUuid, DeviceUuid, ContainerId], list[GpuProcess]] = {}
    owners: dict[ContainerId, Owner] = {}
    unattributed: list[GpuProcess] = []
    for row in processes.rows:
        owner = parse_cgroup(row.cgroups)
        if not owner.container or (row.kind is ProcessKind.MPS_SERVER and not _is_tenants(row, owner)):
            unattributed.append(row)
            continue
        owners[owner.container] = owner
        owned.setdefault((row.gpu, row.device or row.gpu, owner.container), []).append(row)
    usages = tuple(
        _usage(device, owners[container], owned[gpu, device, container], names.get(container), granted)
        for gpu, device, container in sorted(owned)
    )
    violations = (_violation(usage, watch_of.get(usage.gpu, WatchAction.WARN)) for usage in usages)
    return WatchResult(
        usages,
        tuple(unattributed),
        tuple(violation for violation in violations if violation is not None),
        processes.hidden,
    )


def _usage(
    device: DeviceUuid, owner: Owner, rows: Sequence[GpuProcess], holder: Holder | None, granted: ShareGrants
) -> ContainerUsage:
    shares = granted.by.get((device, holder), ()) if holder else ()
    if shares:
        grant = GrantKind.HELD
    elif holder is None or device in granted.doubtful or (device, holder) in granted.on:
        # The last case: the driver reports the GPU, but not which of its MIG devices the process uses.
        grant = GrantKind.UNKNOWN
    else:
        grant = GrantKind.NONE
    return ContainerUsage(
        device=device,
        gpu=rows[0].gpu,
        container=owner.container,
        pod=owner.pod,
        holder=holder,
        grant=grant,
        granted_bytes=sum([offering.memory_bytes for offering in shares]),
        guarantee=weakest([offering.guarantee for offering in shares]) if shares else None,
        used_bytes=sum([row.used_bytes or 0 for row in rows]),
        partly=any(row.used_bytes is None for row in rows),
        processes=tuple(sorted(rows, key=_PID)),
    )


def _violation(usage: ContainerUsage, wanted: WatchAction) -> Violation | None:
    if wanted is WatchAction.OFF or not (usage.grant is GrantKind.NONE or usage.over):
        return None
    who = _named(usage)
    if usage.grant is GrantKind.NONE:
        # Not ended: it may be a monitor, and access is controlled by the container runtime.
        return Violation(
            ViolationKind.UNGRANTED, usage, f"{who} uses {usage.device} and holds no share of it"
        )
    used, granted = format_bytes(usage.used_bytes), format_bytes(usage.granted_bytes)
    reason = f"{who} uses {used} of {usage.device}; its shares are {granted}"
    if wanted is not WatchAction.KILL:
        return Violation(ViolationKind.OVER, usage, reason)
    # A signal to an MPS server may make all its clients hang.
    ends = tuple(
        EndProcess(row.gpu, row.pid, row.start, usage.container)
        for row in usage.processes
        if row.kind not in (ProcessKind.MPS_CLIENT, ProcessKind.MPS_SERVER) and row.start is not None
    )
    clients = tuple(row.pid for row in usage.processes if row.kind is ProcessKind.MPS_CLIENT)
    return Violation(ViolationKind.OVER, usage, reason, ends, clients)


def _named(usage: ContainerUsage) -> str:
    holder = usage.holder
    if holder is None:
        return f"container {usage.container[:12]}"
    return f"{holder.namespace}/{holder.pod}, container {holder.container},"
