"""What a node promises, by a policy or by the MPS daemons that are there; and which shares are attacked."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.errors import DaemonError, Unsupported
from partage.lab.daemon import MpsDaemon, find_pipe
from partage.lab.place import TenantPlace
from partage.lab.prove.model import AttackedShare
from partage.model.gpu import ComputeMode, Gpu, Inventory
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.mps import DaemonSpec, MpsNamespace
from partage.model.policy import ALL_EXCLUSIVE, AllDevices, GpuEntry, Mps, Policy
from partage.model.share import DeviceOffer, Guarantee, NodeOffer
from partage.model.strategy import Strategy
from partage.plan.offer.advertise import advertise
from partage.plan.offer.assign import assign
from partage.units import MIB
from partage.values import Frozen

_REPLICAS = 4
IN_FOUR = Policy((GpuEntry("", AllDevices(), Mps(_REPLICAS)),))
"""What a simulated node promises where nothing is said: nothing but MPS can be tried there."""


def offer_of_policy(policy: Policy, inventory: Inventory) -> NodeOffer:
    """What a policy would offer here. Raises Unsatisfiable, InputError.

    A device in units of memory is tried as two containers have it that share it evenly.
    """
    offer = advertise(assign(policy, inventory, geometry_of), inventory, policy)
    return {gpu: tuple(_halves(row) if row.by_memory else row for row in rows) for gpu, rows in offer.items()}


def _halves(row: DeviceOffer) -> DeviceOffer:
    units = max(1, row.count // 2)
    return replace(
        row,
        replicas=min(2, row.count),
        count=min(2, row.count),
        memory_bytes=units * row.memory_bytes,
        by_memory=False,
        pipe=f"{row.pipe}{units}" if row.pipe else "",
    )


async def offer_of_daemons(
    inventory: Inventory, run_dir: Path, pipe: Path | None, driver_root: Path
) -> NodeOffer:
    """Every GPU exclusive, except where an MPS daemon with a limit serves it: then what the daemon says."""
    plain = offer_of_policy(ALL_EXCLUSIVE, inventory)
    found: dict[GpuUuid, tuple[DeviceOffer, ...]] = {}
    for gpu in inventory:
        rows = [await _by_daemon(row, gpu, run_dir, pipe, driver_root) for row in plain.get(gpu.uuid, ())]
        found[gpu.uuid] = tuple(rows)
    return found


async def _by_daemon(
    whole: DeviceOffer, gpu: Gpu, run_dir: Path, pipe: Path | None, driver_root: Path
) -> DeviceOffer:
    """The device as its daemon shares it; whole where there is no daemon, or no limit."""
    at = find_pipe(whole.device, run_dir, pipe)
    if at is None:
        return whole
    daemon = MpsDaemon(at, driver_root)
    try:
        limit = await daemon.memory_limit(whole.memory_bytes // _REPLICAS // MIB * MIB)
        threads = await daemon.threads_limit()
    except (DaemonError, Unsupported):
        return whole
    if limit is None:
        return whole
    guarded = gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS and whole.profile is None
    return replace(
        whole,
        strategy=Strategy.MPS if whole.profile is None else Strategy.MIG,
        shared=Strategy.MPS,
        replicas=max(whole.memory_bytes // limit, 1),
        count=max(whole.memory_bytes // limit, 1),
        memory_bytes=limit,
        threads_percent=threads,
        guarantee=Guarantee.GUARDED if guarded else Guarantee.ADVISORY,
    )


class PromisedShare(Frozen):
    """A share that is promised, as an attack needs to know it.

    device_bytes: memory of the whole GPU or MIG device.
    largest_bytes: what the MPS daemon lets a client have: the largest share of the device, or this share
    where it has a namespace of its own; largest_threads: percent, likewise.
    exclusive: the GPU is in exclusive-process mode now.
    mig: UUIDs of MIG devices of the same GPU, its own first; empty on a whole GPU.
    namespaces: those of the daemon's server, if shares have some.
    """

    offering: DeviceOffer
    device_bytes: int
    largest_bytes: int
    largest_threads: int | None = None
    exclusive: bool = False
    mig: tuple[DeviceUuid, ...] = ()
    namespaces: tuple[MpsNamespace, ...] = ()

    @property
    def bytes(self) -> int:
        """Memory of this share."""
        return self.offering.memory_bytes

    @property
    def by_variable(self) -> bool:
        """Its limit is a variable of the container, because the daemon's own limit is larger."""
        return self.offering.traits.through_daemon and self.bytes < self.largest_bytes

    @property
    def guarded_by_framework(self) -> bool:
        """Time-sliced with the guard; without guard and limit a time-sliced share guarantees nothing."""
        promises = self.offering.guarantee is not Guarantee.NONE
        return not self.offering.traits.limits_memory and not self.offering.limited and promises

    @property
    def attacked(self) -> AttackedShare:
        """For a report."""
        offering = self.offering
        return AttackedShare(
            str(offering.resource), offering.gpu_index, offering.device, offering.replicas, self.bytes
        )

    @property
    def daemon_spec(self) -> DaemonSpec:
        """What the agent asks of the MPS daemon of this share."""
        memory_bytes = self.largest_bytes // MIB * MIB
        offering = self.offering
        return DaemonSpec(
            offering.gpu, offering.device, memory_bytes, self.largest_threads, namespaces=self.namespaces
        )

    def place(self, pipe: Path | None, driver_root: Path, guard: Path | None = None) -> TenantPlace:
        """The place of its tenants. pipe: of the MPS daemon."""
        return TenantPlace(
            device=self.offering.device,
            mig=self.mig,
            pipe=None if pipe is None else pipe / self.offering.pipe,
            guard=guard,
            memory_bytes=self.device_bytes,
            share_bytes=self.bytes,
            driver_root=driver_root,
            exclusive=self.exclusive,
        )


def shares_of(offer: NodeOffer, inventory: Inventory, gpus: Collection[GpuUuid]) -> tuple[PromisedShare, ...]:
    """One share of each kind that is offered on these GPUs (UUIDs), of the lowest GPU that has it."""
    found: dict[object, PromisedShare] = {}
    for gpu in inventory:
        if gpu.uuid in gpus:
            for share in _on(gpu, offer.get(gpu.uuid, ())):
                found.setdefault(_kind(share), share)
    return tuple(found.values())


def _kind(share: PromisedShare) -> object:
    """Shares of one kind make the same promise in the same words, enforced in the same way."""
    offering = share.offering
    return (
        offering.shared,
        offering.replicas,
        share.bytes,
        share.largest_bytes,
        share.device_bytes,
        offering.guarantee,
        offering.planned,
        bool(share.mig),
        share.exclusive,
        offering.pipe,
        offering.limited,
    )


def _on(gpu: Gpu, offerings: tuple[DeviceOffer, ...]) -> Iterator[PromisedShare]:
    sizes: dict[DeviceUuid, int] = {device.uuid: device.memory_bytes for device in gpu.mig_devices}
    for offering in offerings:
        own = [device_offer for device_offer in offerings if device_offer.device == offering.device]
        threads = [row.threads_percent for row in own if row.threads_percent is not None]
        others = tuple(uuid for uuid in sizes if uuid != offering.device)
        largest = offering.memory_bytes if offering.pipe else max(row.memory_bytes for row in own)
        whole = gpu.memory_bytes if offering.profile is None else largest * offering.replicas
        yield PromisedShare(
            offering=offering,
            device_bytes=sizes.get(offering.device, whole),
            largest_bytes=largest,
            largest_threads=offering.threads_percent if offering.pipe else max(threads, default=None),
            exclusive=gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS,
            mig=(offering.device, *others) if offering.profile is not None else (),
            namespaces=tuple(dict.fromkeys(map(_namespace, own))) if offering.pipe else (),
        )


def _namespace(offering: DeviceOffer) -> MpsNamespace:
    return MpsNamespace(offering.pipe.rpartition("/")[2], offering.memory_bytes, offering.threads_percent)
