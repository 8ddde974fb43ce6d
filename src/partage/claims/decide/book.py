"""What the scheduler knows of a node's devices: what is published of them, and which claims have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

from msgspec import field

from partage.claims.decide.devices import ClaimDevices, claim_devices
from partage.claims.decide.slices import slices_of, usable_memory
from partage.claims.model.names import MEMORY, OWN_NAMES, SHARES, Mode, mode_of
from partage.claims.model.server import NUMA_SINCE
from partage.claims.model.slices import SliceDevice, SliceSpec, ValidRange
from partage.model.gpu import Inventory
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.share import DeviceOffer, NodeOffer
from partage.plan.offer.select import GeometryOf
from partage.plan.serve.claim_offer import Closed
from partage.plan.serve.ledger_entry import Hold
from partage.units import parse_quantity
from partage.values import Frozen

DeviceKey = tuple[str, str, str]
"""Driver, pool and name: what a device is in the cluster."""


class BookDevice(Frozen):
    """A published device."""

    driver: str
    pool: str
    device: SliceDevice

    @property
    def key(self) -> DeviceKey:
        """What it is in the cluster."""
        return self.driver, self.pool, self.device.name

    def text(self, attribute: str) -> str:
        """An attribute of the driver's domain as text; empty if there is none."""
        found = self.device.attributes.get(attribute)
        return "" if found is None else found.string or found.version or ""

    @property
    def gpu(self) -> str:
        """UUID of the GPU that it is, or is part of; empty: not published."""
        return self.text("parentUUID") or self.text("uuid")

    @property
    def gpu_index(self) -> int | None:
        """NVML's index of it."""
        found = self.device.attributes.get("index")
        return None if found is None else found.number

    @property
    def shared(self) -> bool:
        """Whether several claims can have parts of it."""
        return self.device.allow_multiple_allocations is True


class Taking(Frozen):
    """What somebody has of a device. who: ``claim team/part``, or a pod. pods: those that have to end before
    it is given back; (): nobody knows them. amounts: of capacities; empty: all of the device.
    """

    device: DeviceKey
    who: str
    pods: tuple[str, ...] = ()
    amounts: Mapping[str, Decimal] = field(default_factory=dict)


class ClaimBook(Frozen):
    """A node as claims see it.

    devices: in the order in which the scheduler tries them. takings: who has something of them. served: the
    devices as the agent of the node gives them; None: only what is published is known. trouble: why the node
    has no devices for claims, a clause; empty: it has, or need not have.
    """

    devices: tuple[BookDevice, ...] = ()
    takings: tuple[Taking, ...] = ()
    served: ClaimDevices | None = None
    trouble: str = ""

    def of_device(self, key: DeviceKey) -> Iterator[Taking]:
        """Who has something of a device."""
        return (one for one in self.takings if one.device == key)


def devices_in(slices: Iterable[SliceSpec]) -> tuple[BookDevice, ...]:
    """The devices of the newest generation of each pool, in the order of the slices. Without those of other
    drivers whose amounts are not read here.
    """
    kept = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for one in kept:
        pool = one.driver, one.pool.name
        newest[pool] = max(newest.get(pool, 0), one.pool.generation)
    return tuple(
        BookDevice(one.driver, one.pool.name, device)
        for one in kept
        if one.pool.generation == newest[one.driver, one.pool.name]
        for device in one.devices
        if _can_be_counted(device)
    )


def _can_be_counted(device: SliceDevice) -> bool:
    try:
        for capacity in device.capacity.values():
            policy = capacity.request_policy
            texts = [capacity.value]
            if policy is not None:
                allowed = policy.valid_range or ValidRange("0")
                texts += [policy.default, *policy.valid_values, allowed.min]
                texts += [text for text in (allowed.max, allowed.step) if text is not None]
            for text in texts:
                parse_quantity(text)
    except ValueError:
        return False
    return True


def book_of_offer(
    offer: NodeOffer,
    inventory: Inventory,
    node: str,
    geometry_of: GeometryOf,
    *,
    held: Mapping[Hold, str] | None = None,
    closed: Mapping[DeviceUuid, Closed] | None = None,
) -> ClaimBook:
    """The book of a node whose offer is known. held: who holds a share."""
    served = claim_devices(offer, inventory, node, geometry_of, OWN_NAMES)
    devices = devices_in(slices_of(served, inventory, closed or {}, NUMA_SINCE, geometry_of))
    keys = {name: one.key for one in devices for name in [one.device.name]}
    takings = [
        taking for name, row in served.rows.items() for taking in _takings(keys[name], row, held or {})
    ]
    return ClaimBook(devices, tuple(takings), served)


def _takings(key: DeviceKey, row: DeviceOffer, held: Mapping[Hold, str]) -> Iterator[Taking]:
    """By holder: how much its ids of the device are."""
    counts: dict[str, int] = {}
    for share in row.share_ids:
        if (row.resource, share) in held:
            who = held[row.resource, share] or f"?{share}"
            counts[who] = counts.get(who, 0) + 1
    for who, count in counts.items():
        amounts: dict[str, Decimal] = {}
        match mode_of(row):
            case Mode.AMOUNTS:
                # All units are all of it, also where its memory is no multiple of the unit.
                amount = usable_memory(row) if count == row.count else count * row.memory_bytes
                amounts[MEMORY] = Decimal(amount)
            case Mode.REPLICAS:
                amounts[SHARES] = Decimal(count)
            case Mode.WHOLE | Mode.MIG:
                pass
        yield Taking(key, who, (who,), amounts)


def amount_of(device: SliceDevice, name: str) -> Decimal:
    """A capacity in all. Raises KeyError, ValueError."""
    return parse_quantity(device.capacity[name].value)


def gpus_in(book: ClaimBook) -> dict[GpuUuid, int]:
    """The GPUs that published devices are of, and their indexes."""
    return {GpuUuid(one.gpu): one.gpu_index for one in book.devices if one.gpu and one.gpu_index is not None}
