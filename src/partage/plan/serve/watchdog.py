"""Who uses more of a GPU's memory than his shares say: processes joined with the ledger. Pure.

A process belongs to the container that its cgroup names, the container to whoever holds the shares. Each link
is exact or absent: what belongs to nobody in particular is said to, and counted for no one. An MPS server's
memory is no tenant's; where the driver counts its clients' for it, what they use is not known. A server in a
container that holds shares is that tenant's own, or a process that is called so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from partage.model.cgroup import Owner, parse_cgroup
from partage.model.ids import ShareId
from partage.model.policy import WatchAction
from partage.model.process import GpuProcess, Processes, ProcessKind
from partage.model.share import DeviceOffer, Guarantee, NodeOffer
from partage.model.step import EndProcess
from partage.plan.serve.ledger import Entry, Holder
from partage.units import format_bytes


class GrantKind(StrEnum):
    """What the ledger says of a container and a device.

    held: it holds shares of it. none: it is known, and holds none. unknown: who it is is not known, or shares
    of the device are held by somebody who is not.
    """

    HELD = "held"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """What one container uses of one device.

    device: UUID of the GPU or MIG device; gpu: of the GPU. container: its id. pod: UID, where its cgroup
    says. holder: who it is, None where that is not known.
    used_bytes: over all its processes there; partly True: some have no figure, so it is at least that.
    granted_bytes: the sum over the shares it holds there, however weakly guaranteed; 0 unless grant is held.
    """

    device: str
    gpu: str
    container: str
    pod: str
    holder: Holder | None
    grant: GrantKind
    granted_bytes: int
    guarantee: Guarantee | None
    used_bytes: int
    partly: bool
    processes: tuple[GpuProcess, ...]

    @property
    def over(self) -> bool:
        """It uses more than its shares say. What the hardware itself limits cannot be exceeded."""
        limited = self.guarantee is not Guarantee.HARD
        return self.grant is GrantKind.HELD and limited and self.used_bytes > self.granted_bytes

    @property
    def pids(self) -> tuple[int, ...]:
        """Of its processes, ascending."""
        return tuple(row.pid for row in self.processes)


class Concern(StrEnum):
    """What is wrong. over: more than its shares say. ungranted: it holds no share of what it uses."""

    OVER = "over"
    UNGRANTED = "ungranted"


@dataclass(frozen=True, slots=True)
class Violation:
    """What is to be said of a container, and done about it.

    reason: one sentence. ends: processes to be ended by a signal. clients: pids that the GPU's MPS daemon has
    to end (``terminate_client``). Both empty: warn only.
    """

    concern: Concern
    usage: ContainerUsage
    reason: str
    ends: tuple[EndProcess, ...] = ()
    clients: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchResult:
    """usages: every container on every device, by GPU, device and container.

    unattributed: processes that belong to no container: of the host, of a Slurm job, an MPS server's.
    verdicts: those that the policy wants to hear of. blind: why more may go on than can be seen; empty: no.
    """

    usages: tuple[ContainerUsage, ...] = ()
    unattributed: tuple[GpuProcess, ...] = ()
    verdicts: tuple[Violation, ...] = ()
    blind: str = ""


@dataclass(frozen=True, slots=True)
class Grants:
    """Shares that are held. by: (device, holder) to the shares' offerings.

    on: (GPU, holder) where somebody holds shares of any of its devices. doubtful: devices, and their GPUs, of
    which shares are held, and it is not certain by whom, or what they are.
    """

    by: Mapping[tuple[str, Holder], tuple[DeviceOffer, ...]]
    on: frozenset[tuple[str, Holder]]
    doubtful: frozenset[str]


def grants(entries: Iterable[Entry], offer: NodeOffer) -> Grants:
    """The ledger's entries, with what each share is. offer: all that can be held (``answerable``)."""
    offerings = {
        (offering.resource, share): offering
        for gpu_offer in offer.values()
        for offering in gpu_offer
        for share in offering.share_ids
    }
    by: dict[tuple[str, Holder], tuple[DeviceOffer, ...]] = {}
    on: set[tuple[str, Holder]] = set()
    doubtful: set[str] = set()
    for entry in entries:
        offering = offerings.get((entry.resource, entry.id))
        if offering is None:
            doubtful.add(ShareId.parse(entry.id).device)  # of an earlier policy: nobody knows how large it is
        elif entry.holder is None:
            doubtful |= {offering.device, offering.gpu}
        else:
            on.add((offering.gpu, entry.holder))
            key = offering.device, entry.holder
            by[key] = (*by.get(key, ()), offering)
    return Grants(by, frozenset(on), frozenset(doubtful))


def watch(
    processes: Processes,
    names: Mapping[str, Holder],
    granted: Grants,
    watch_of: Mapping[str, WatchAction],
) -> WatchResult:
    """Judge every container. names: container id to who it is, exact ones only.

    watch_of: by GPU UUID, WARN where it says nothing. Blind, what is seen is judged all the same: a container
    that exceeds its share does so whoever else is hidden.
    """

    def _is_tenants(server: GpuProcess, owner: Owner) -> bool:
        holder = names.get(owner.container)
        return holder is not None and (server.device or server.gpu, holder) in granted.by

    owned: dict[tuple[str, str, str], list[GpuProcess]] = {}
    owners: dict[str, Owner] = {}
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
    verdicts = (_verdict(usage, watch_of.get(usage.gpu, WatchAction.WARN)) for usage in usages)
    return WatchResult(
        usages, tuple(unattributed), tuple(one for one in verdicts if one is not None), processes.blind
    )


def _usage(
    device: str, owner: Owner, rows: Sequence[GpuProcess], holder: Holder | None, granted: Grants
) -> ContainerUsage:
    shares = granted.by.get((device, holder), ()) if holder else ()
    if shares:
        grant = GrantKind.HELD
    elif holder is None or device in granted.doubtful or (device, holder) in granted.on:
        # The last: the driver names the GPU, and not which of its MIG devices the process is on.
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
        granted_bytes=sum(offering.memory_bytes for offering in shares),
        guarantee=min(
            (offering.guarantee for offering in shares), key=lambda one: one.strength, default=None
        ),
        used_bytes=sum(row.used_bytes or 0 for row in rows),
        partly=any(row.used_bytes is None for row in rows),
        processes=tuple(sorted(rows, key=lambda row: row.pid)),
    )


def _verdict(usage: ContainerUsage, wanted: WatchAction) -> Violation | None:
    if wanted is WatchAction.OFF:
        return None
    who = _named(usage)
    if usage.grant is GrantKind.NONE:
        # Not ended: it may be a monitor, and to keep it away is the container runtime's to do.
        return Violation(Concern.UNGRANTED, usage, f"{who} works on {usage.device} and holds no share of it")
    if not usage.over:
        return None
    used, granted = format_bytes(usage.used_bytes), format_bytes(usage.granted_bytes)
    reason = f"{who} uses {used} of {usage.device}; its shares are {granted}"
    if wanted is not WatchAction.KILL:
        return Violation(Concern.OVER, usage, reason)
    # A signal to a server of MPS may hang its clients, whoever they are.
    ends = tuple(
        EndProcess(row.gpu, row.pid, row.start, usage.container)
        for row in usage.processes
        if row.kind not in (ProcessKind.MPS_CLIENT, ProcessKind.MPS_SERVER) and row.start is not None
    )
    clients = tuple(row.pid for row in usage.processes if row.kind is ProcessKind.MPS_CLIENT)
    return Violation(Concern.OVER, usage, reason, ends, clients)


def _named(usage: ContainerUsage) -> str:
    holder = usage.holder
    if holder is None:
        return f"container {usage.container[:12]}"
    return f"{holder.namespace}/{holder.pod}, container {holder.container},"
