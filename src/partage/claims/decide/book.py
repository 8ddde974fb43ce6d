"""What the scheduler knows of a node's devices: what is published of them, and which claims have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal

from msgspec import field

from partage.claims.decide.devices import ClaimDevices, claim_devices
from partage.claims.decide.on_demand import PlaceOnDemand
from partage.claims.decide.slices import slices_of
from partage.claims.model.names import MEMORY, OWN_NAMES, SHARES, ClaimNames, Mode, mode_of, usable_memory
from partage.claims.model.slices import NUMA_SINCE, SliceDevice, SliceSpec, ValidRange
from partage.model.claim import NO_DEMANDS, Demands, GpuDemand
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

CounterKey = tuple[str, str, str]
"""Driver, pool and name of a counter set."""

Counters = Mapping[CounterKey, Mapping[str, Decimal]]
"""How much there is of each counter."""


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
    has no devices for claims, a clause; empty: it has, or need not have. counters: what devices use up
    together.
    """

    devices: tuple[BookDevice, ...] = ()
    takings: tuple[Taking, ...] = ()
    served: ClaimDevices | None = None
    trouble: str = ""
    counters: Counters = field(default_factory=dict)

    @property
    def names(self) -> ClaimNames:
        """Of the driver of the node's agent."""
        return OWN_NAMES if self.served is None else self.served.names

    def of_device(self, key: DeviceKey) -> Iterator[Taking]:
        """Who has something of a device."""
        return (taking for taking in self.takings if taking.device == key)


def devices_in(slices: Iterable[SliceSpec]) -> tuple[BookDevice, ...]:
    """The devices of the newest generation of each pool, in the order of the slices. Without those of other
    drivers whose amounts are not read here.
    """
    return tuple(
        BookDevice(spec.driver, spec.pool.name, device)
        for spec in _newest(slices)
        for device in spec.devices
        if _can_be_counted(device)
    )


def counters_in(slices: Iterable[SliceSpec]) -> Counters:
    """The counters of the newest generation of each pool. Without sets whose amounts are not read here."""
    found: dict[CounterKey, Mapping[str, Decimal]] = {}
    for spec in _newest(slices):
        for some in spec.shared_counters:
            with suppress(ValueError):
                amounts = {name: parse_quantity(counter.value) for name, counter in some.counters.items()}
                found[spec.driver, spec.pool.name, some.name] = amounts
    return found


def _newest(slices: Iterable[SliceSpec]) -> list[SliceSpec]:
    kept = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for spec in kept:
        pool = spec.driver, spec.pool.name
        newest[pool] = max(newest.get(pool, 0), spec.pool.generation)
    return [spec for spec in kept if spec.pool.generation == newest[spec.driver, spec.pool.name]]


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
        for use in device.consumes_counters:
            for counter in use.counters.values():
                parse_quantity(counter.value)
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
    names: ClaimNames = OWN_NAMES,
    demands: Demands = NO_DEMANDS,
) -> ClaimBook:
    """The book of a node whose offer is known. held: who holds a share. names: of its driver. demands: what
    claims want of GPUs on demand, also what is not made yet.
    """
    served = claim_devices(offer, inventory, node, geometry_of, names, on_demand=demands)
    slices = slices_of(served, inventory, closed or {}, NUMA_SINCE, geometry_of)
    devices = devices_in(slices)
    keys = {name: device.key for device in devices for name in [device.device.name]}
    takings = [
        taking for name, row in served.rows.items() for taking in _takings(keys[name], row, held or {})
    ]
    # What a claim waits for is not there, so it has no ids of it.
    wanted = [
        Taking(keys[name], f"?{name}")
        for name, place in served.places.items()
        if served.rows[name].planned and _is_wanted(place, demands[place.gpu])
    ]
    return ClaimBook(devices, (*takings, *wanted), served, counters=counters_in(slices))


def _is_wanted(place: PlaceOnDemand, demand: GpuDemand) -> bool:
    return demand.whole if place.item is None else place.item in demand.parts


def _takings(key: DeviceKey, row: DeviceOffer, held: Mapping[Hold, str]) -> Iterator[Taking]:
    """By holder: how much its ids of the device are."""
    counts = Counter(
        held[row.resource, share] or f"?{share}" for share in row.share_ids if (row.resource, share) in held
    )
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
    return {
        GpuUuid(device.gpu): device.gpu_index
        for device in book.devices
        if device.gpu and device.gpu_index is not None
    }
