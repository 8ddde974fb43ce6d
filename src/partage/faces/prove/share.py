"""Which shares are attacked: one of each kind that a node offers, with what surrounds it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from partage.faces.prove.model import Which
from partage.model.gpu import ComputeMode, Gpu, Inventory
from partage.model.mps import MpsNamespace
from partage.model.policy import Strategy
from partage.model.share import DeviceOffer, Guarantee, NodeOffer


@dataclass(frozen=True, slots=True)
class Share:
    """A share that is promised, as an attack needs to know it.

    device_bytes: memory of the whole GPU or MIG device. largest_bytes: of the largest share of the device,
    which is what its MPS daemon lets every client have, or its own where it has a namespace there;
    largest_threads: percent, likewise.
    exclusive: the GPU is in exclusive-process mode now. mig: UUIDs of MIG devices of the same GPU, its own
    first; empty on a whole GPU. namespaces: those of its daemon's server, if shares have some.
    """

    offering: DeviceOffer
    device_bytes: int
    largest_bytes: int
    largest_threads: int | None = None
    exclusive: bool = False
    mig: tuple[str, ...] = ()
    namespaces: tuple[MpsNamespace, ...] = ()

    @property
    def bytes(self) -> int:
        """Memory of this share."""
        return self.offering.memory_bytes

    @property
    def by_variable(self) -> bool:
        """Its limit stands in the container's environment: the daemon's own is larger. Not in a namespace."""
        return self.offering.shared is Strategy.MPS and self.bytes < self.largest_bytes

    @property
    def guarded_by_framework(self) -> bool:
        """A time-sliced share states more than nothing only where it has the guard."""
        return self.offering.shared is Strategy.TIME_SLICING and self.offering.guarantee is not Guarantee.NONE

    @property
    def which(self) -> Which:
        offering = self.offering
        return Which(
            str(offering.resource), offering.gpu_index, offering.device, offering.replicas, self.bytes
        )


def shares_of(offer: NodeOffer, inventory: Inventory, gpus: Collection[str]) -> tuple[Share, ...]:
    """One share of each kind that is offered on these GPUs (UUIDs), of the lowest GPU that has it."""
    found: dict[object, Share] = {}
    for gpu in inventory:
        if gpu.uuid in gpus:
            for share in _on(gpu, offer.get(gpu.uuid, ())):
                found.setdefault(_kind(share), share)
    return tuple(found.values())


def _kind(share: Share) -> object:
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
    )


def _on(gpu: Gpu, offerings: tuple[DeviceOffer, ...]) -> Iterator[Share]:
    sizes = {device.uuid: device.memory_bytes for device in gpu.mig_devices}
    for offering in offerings:
        own = [one for one in offerings if one.device == offering.device]
        threads = [one.threads_percent for one in own if one.threads_percent is not None]
        others = tuple(uuid for uuid in sizes if uuid != offering.device)
        largest = offering.memory_bytes if offering.pipe else max(one.memory_bytes for one in own)
        whole = gpu.memory_bytes if offering.profile is None else largest * offering.replicas
        yield Share(
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
