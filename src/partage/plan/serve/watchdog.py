"""Which containers use more of a GPU's memory than their shares. Joins processes with the ledger. Pure.

A process belongs to the container in its cgroup, and the container to the pod that holds the shares. Each
relation is exact or missing: a process that belongs to no container is listed as such and counted for none.
Containers that have a ResourceClaim in common are one holder: what they use is added up.
The memory of an MPS server belongs to no tenant; where the driver counts the memory of clients for the
server, their use is not known. A server in a container that holds shares belongs to that tenant (or is a
process with the server's name).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Final

from msgspec import field
from msgspec.structs import replace

from partage.model.cgroup import Owner, parse_cgroup
from partage.model.driver_limit import LimitAt
from partage.model.gpu_use import GpuProcess, Processes, ProcessKind
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid, PodUid, device_of, is_job
from partage.model.policy import WatchAction
from partage.model.share import DeviceOffer, Guarantee, NodeOffer, weakest
from partage.model.step import EndProcess
from partage.plan.serve.ledger_entry import Holder, LedgerEntry
from partage.units import format_bytes
from partage.values import Frozen


class ClaimMember(Frozen):
    """A container that uses a device of which it holds shares by these claims, ``namespace/name`` each."""

    device: DeviceUuid
    container: ContainerId
    claims: frozenset[str]
    used_bytes: int


class ClaimUse(Frozen):
    """What all containers use together of one device that have a claim in common, and what their claims have.

    containers: how many of them use the device.
    """

    claims: tuple[str, ...]
    containers: int
    used_bytes: int
    granted_bytes: int

    @property
    def over(self) -> bool:
        """They use more than their claims have."""
        return self.used_bytes > self.granted_bytes


def claim_uses(
    members: Iterable[ClaimMember], granted_bytes: Mapping[tuple[DeviceUuid, str], int]
) -> dict[tuple[DeviceUuid, ContainerId], ClaimUse]:
    """By device and container; a container that uses a device alone is left out.

    granted_bytes: of each claim on each device. Containers A and B with a claim in common, and B and C with
    another one, are one group: nobody can tell by which of its claims B uses memory.
    """
    groups: list[list[ClaimMember]] = []
    for member in members:
        same = [group for group in groups if any(_common(other, member) for other in group)]
        groups = [group for group in groups if group not in same]
        groups.append([*(other for group in same for other in group), member])
    return {
        (member.device, member.container): use
        for group in groups
        if len(group) > 1
        for use in [_use(group, granted_bytes)]
        for member in group
    }


def _common(one: ClaimMember, other: ClaimMember) -> bool:
    return one.device == other.device and not one.claims.isdisjoint(other.claims)


def _use(group: list[ClaimMember], granted_bytes: Mapping[tuple[DeviceUuid, str], int]) -> ClaimUse:
    claims = sorted(frozenset[str]().union(*(member.claims for member in group)))
    return ClaimUse(
        claims=tuple(claims),
        containers=len(group),
        used_bytes=sum([member.used_bytes for member in group]),
        granted_bytes=sum([granted_bytes.get((group[0].device, claim), 0) for claim in claims]),
    )


_PID = attrgetter("pid")

WATCH_ORDER = tuple(WatchAction)
"""From the mildest to the strictest."""


NOTHING_COUNTED: Final[Mapping[LimitAt, int]] = {}


class GrantKind(StrEnum):
    """What the ledger says about a container and a device.

    held: it holds shares of it. none: it is known, and holds none. unknown: the container is not known, or
    shares of the device are held by a container that is not known.
    """

    HELD = "held"
    NONE = "none"
    UNKNOWN = "unknown"


class OfDevice(Frozen):
    """A part of what is used of one device. gpu: UUID of the GPU; device: the same, or of its MIG device."""

    gpu: GpuUuid
    device: DeviceUuid


class ContainerUsage(OfDevice):
    """What one container uses of one device.

    pod: empty if its cgroup does not contain it.
    holder: the container's names; None if not known.
    used_bytes: sum over its processes there. partly: True if the driver has no figure for some, so it is a
    minimum.
    granted_bytes: sum over the shares that it holds there, whatever their guarantee; 0 unless grant is
    held.
    together: with the other containers that have its claims; None: no other one uses the device.
    counted: used_bytes is what is counted for its cgroup, and no sum over processes.
    """

    container: ContainerId
    pod: PodUid
    holder: Holder | None
    grant: GrantKind
    granted_bytes: int
    guarantee: Guarantee | None
    used_bytes: int
    partly: bool
    processes: tuple[GpuProcess, ...]
    together: ClaimUse | None = None
    counted: bool = False

    @property
    def over(self) -> bool:
        """It uses more than its shares, or all that have its claims do. Limits of the hardware itself cannot
        be exceeded."""
        limited = self.guarantee is not Guarantee.HARD
        together = self.together is not None and self.together.over
        return self.grant is GrantKind.HELD and limited and (self._alone or together)

    @property
    def _alone(self) -> bool:
        return self.used_bytes > self.granted_bytes

    @property
    def why_over(self) -> str:
        """What is used and what is allowed, a clause."""
        if self._alone or self.together is None:
            used, granted = format_bytes(self.used_bytes), format_bytes(self.granted_bytes)
            return f"uses {used} of {self.device}; its shares are {granted}"
        together = self.together
        claims = f"claim{'s' if len(together.claims) > 1 else ''} {' and '.join(together.claims)}"
        have = "have" if len(together.claims) > 1 else "has"
        return (
            f"is one of {together.containers} that use {format_bytes(together.used_bytes)} of {self.device} "
            f"together; their {claims} {have} {format_bytes(together.granted_bytes)}"
        )

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

    reason: one sentence. wanted: what is to happen to it. ends: processes to end with a signal. clients: pids
    of clients that the GPU's MPS daemon must end (``terminate_client``). Both empty: only warn.
    """

    concern: ViolationKind
    usage: ContainerUsage
    reason: str
    wanted: WatchAction = WatchAction.WARN
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
    shares whose holder or size is not certain. claims: (device, holder) to the claims by which it holds.
    of_claim: (device, claim) to the bytes that it has there. watch: (device, holder) to what its claims ask
    for, of several the strictest; missing: nothing.
    """

    by: Mapping[tuple[DeviceUuid, Holder], tuple[DeviceOffer, ...]]
    on: frozenset[tuple[GpuUuid, Holder]]
    doubtful: frozenset[DeviceUuid]
    claims: Mapping[tuple[DeviceUuid, Holder], frozenset[str]] = field(default_factory=dict)
    of_claim: Mapping[tuple[DeviceUuid, str], int] = field(default_factory=dict)
    watch: Mapping[tuple[DeviceUuid, Holder], WatchAction] = field(default_factory=dict)


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
    claims: dict[tuple[DeviceUuid, Holder], frozenset[str]] = {}
    of_claim: dict[tuple[DeviceUuid, str], int] = {}
    watch: dict[tuple[DeviceUuid, Holder], WatchAction] = {}
    for entry in entries:
        offering = offerings.get((entry.resource, entry.id))
        if offering is None:
            doubtful.add(device_of(entry.id))  # of an earlier policy: its size is not known
            continue
        if not entry.known_holders:
            doubtful |= {offering.device, offering.gpu}
        if entry.claim:
            claim = offering.device, entry.claim
            of_claim[claim] = of_claim.get(claim, 0) + offering.memory_bytes
        if offering.limited and not (entry.limit and entry.limit.in_force):
            held_by = Guarantee.ADVISORY if offering.guard else Guarantee.NONE
            offering = replace(offering, guarantee=held_by)
        for holder in entry.known_holders:
            on.add((offering.gpu, holder))
            key = offering.device, holder
            by[key] = (*by.get(key, ()), offering)
            if entry.claim:
                claims[key] = claims.get(key, frozenset()) | {entry.claim}
            if entry.watch is not None:
                watch[key] = max(entry.watch, watch.get(key, entry.watch), key=WATCH_ORDER.index)
    return ShareGrants(by, frozenset(on), frozenset(doubtful), claims, of_claim, watch)


def gpus_that_claims_watch(entries: Iterable[LedgerEntry], offer: NodeOffer) -> frozenset[GpuUuid]:
    """GPUs of which a claim wants its containers to be watched, whatever the policy says."""
    devices = {device_of(entry.id) for entry in entries if entry.watch not in (None, WatchAction.OFF)}
    return frozenset(gpu for gpu, rows in offer.items() if any(row.device in devices for row in rows))


def check_usage(
    processes: Processes,
    names: Mapping[ContainerId, Holder],
    granted: ShareGrants,
    watch_of: Mapping[GpuUuid, WatchAction],
    counted: Mapping[LimitAt, int] = NOTHING_COUNTED,
) -> WatchResult:
    """Check every container. names: container id to its names, only exact ones.

    watch_of: action by GPU UUID; WARN if missing; what a container's claims ask for counts more. If processes
    are hidden, the visible ones are checked all the same. counted: bytes that the kernel or the driver counts
    for a container's cgroup on a GPU: they count for more than the sum over processes, and need none.
    """

    def _is_tenants(server: GpuProcess, owner: Owner) -> bool:
        return (server.device or server.gpu, names.get(owner.container)) in granted.by

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
    for at, used_bytes in counted.items():
        if used_bytes and not is_job(at.container):
            owners.setdefault(at.container, Owner(container=at.container))
            owned.setdefault((at.gpu, at.gpu, at.container), [])
    usages = tuple(
        _usage((gpu, device), owners[container], owned[gpu, device, container], names.get(container), granted)
        for gpu, device, container in sorted(owned)
    )
    usages = tuple(_as_counted(usage, counted) for usage in usages) if counted else usages
    usages = _with_claims(usages, granted)

    def wanted(usage: ContainerUsage) -> WatchAction:
        own = granted.watch.get((usage.device, usage.holder)) if usage.holder else None
        return watch_of.get(usage.gpu, WatchAction.WARN) if own is None else own

    violations = (_violation(usage, wanted(usage)) for usage in usages)
    return WatchResult(
        usages,
        tuple(unattributed),
        tuple(violation for violation in violations if violation is not None),
        processes.hidden,
    )


def _as_counted(usage: ContainerUsage, counted: Mapping[LimitAt, int]) -> ContainerUsage:
    used_bytes = counted.get(LimitAt(usage.container, usage.gpu)) if usage.device == usage.gpu else None
    if used_bytes is None:
        return usage
    return replace(usage, used_bytes=used_bytes, partly=False, counted=True)


def _usage(
    at: tuple[GpuUuid, DeviceUuid],
    owner: Owner,
    rows: Sequence[GpuProcess],
    holder: Holder | None,
    granted: ShareGrants,
) -> ContainerUsage:
    gpu, device = at
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
        gpu=gpu,
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


def _with_claims(usages: tuple[ContainerUsage, ...], granted: ShareGrants) -> tuple[ContainerUsage, ...]:
    """With what those use together that have a claim in common."""
    members = [
        ClaimMember(usage.device, usage.container, claims, usage.used_bytes)
        for usage in usages
        if usage.holder is not None and (claims := granted.claims.get((usage.device, usage.holder)))
    ]
    uses = claim_uses(members, granted.of_claim) if len(members) > 1 else {}
    return tuple(
        replace(usage, together=use) if (use := uses.get((usage.device, usage.container))) else usage
        for usage in usages
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
    reason = f"{who} {usage.why_over}"
    if wanted is not WatchAction.KILL:
        return Violation(ViolationKind.OVER, usage, reason)
    # A signal to an MPS server may make all its clients hang.
    ends = tuple(
        EndProcess(row.gpu, row.pid, row.start, usage.container)
        for row in usage.processes
        if row.kind not in (ProcessKind.MPS_CLIENT, ProcessKind.MPS_SERVER) and row.start is not None
    )
    clients = tuple(row.pid for row in usage.processes if row.kind is ProcessKind.MPS_CLIENT)
    return Violation(ViolationKind.OVER, usage, reason, wanted, ends, clients)


def _named(usage: ContainerUsage) -> str:
    holder = usage.holder
    if holder is None:
        return f"container {usage.container[:12]}"
    return f"{holder.namespace}/{holder.pod}, container {holder.container},"
