"""Kinds of GPUs, devices that are alike for pods on any node; and what is left of each on a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import field
from msgspec.structs import replace

from partage.claims.decide.book import BookDevice
from partage.claims.model.names import MEMORY, SHARES, Mode
from partage.claims.model.slices import SliceDevice
from partage.codec.values import encode
from partage.model.pod import ScheduledNode
from partage.plan.placement.mix import WHOLE_MILLI
from partage.plan.placement.room import Room
from partage.units import exact_quantity, parse_quantity
from partage.values import Frozen

OF_ONE_DEVICE = ("uuid", "parentUUID", "index", "pciBusID", "pcieRoot", "numaNode")
"""Attributes in which devices of one kind differ."""

MOST_SLOTS = 64
"""More units of one resource on a node are amounts: of what they are parts, the kubelet does not say."""


class Measure(StrEnum):
    """What of a device is counted. whole: who has it has all of it. slots: units of a resource of the device
    plugin, each as a GPU. units: the same where there are many, all of them as one GPU.
    """

    WHOLE = "whole"
    MEMORY = "memory"
    SHARES = "shares"
    SLOTS = "slots"
    UNITS = "units"


class DeviceKind(Frozen):
    """model: product and strategy, what tables of placement are for. total: what a device has of the measure;
    of a resource: units of the node. device: one of them as it is published, for claims. resource: of the
    device plugin; empty: for claims. key: differs where pods can tell the kinds apart.
    """

    key: str
    model: str
    measure: Measure
    total: int
    device: BookDevice | None = None
    resource: str = ""

    def milli(self, amount: int) -> int:
        """Thousandths of a GPU that an amount is, rounded down: what fits in bytes fits in milli, too."""
        return max(1, amount * WHOLE_MILLI // self.total)

    def left(self, taken: int) -> int:
        """Thousandths that are left."""
        return max(0, self.total - taken) * WHOLE_MILLI // self.total


class KindDevice(Frozen):
    """A device for claims. closed: no claim gets anything of it now."""

    pool: str
    name: str
    kind: DeviceKind
    closed: bool = False


class Taken(Frozen):
    """What claims have of a device. holders: claims, memory: bytes."""

    holders: int = 0
    memory: int = 0
    shares: int = 0

    def of(self, measure: Measure) -> int:
        """As it is counted."""
        match measure:
            case Measure.MEMORY:
                return self.memory
            case Measure.SHARES:
                return self.shares
            case _:
                return self.holders

    def plus(self, other: Taken, sign: int = 1) -> Taken:
        """Both together; sign -1: without the other."""
        return Taken(
            self.holders + sign * other.holders,
            self.memory + sign * other.memory,
            self.shares + sign * other.shares,
        )


class KindNames(Frozen):
    """Kinds by what they are like, so that equal ones are one object."""

    known: dict[bytes, DeviceKind] = field(default_factory=dict)

    def of_device(self, found: BookDevice) -> DeviceKind:
        """The kind of a published device. Raises ValueError, KeyError for one without what it needs."""
        device = found.device
        attributes = {
            name: value
            for name, value in device.attributes.items()
            if name.rpartition("/")[2] not in OF_ONE_DEVICE
        }
        like = replace(device, name="any", attributes=attributes, taints=())
        content = encode(like)
        if (kind := self.known.get(content)) is None:
            kind = self.known[content] = _kind(replace(found, pool="any", device=like), str(len(self.known)))
        return kind

    def of_resource(self, resource: str, product: str, units: int) -> DeviceKind:
        """The kind of a resource of the device plugin on a node."""
        slots = units <= MOST_SLOTS
        model = f"{product or 'GPU'}/{resource}" + ("" if slots else f" of {units}")
        content = model.encode()
        if (kind := self.known.get(content)) is None:
            measure, total = (Measure.SLOTS, 1) if slots else (Measure.UNITS, units)
            kind = DeviceKind(str(len(self.known)), model, measure, total, resource=resource)
            self.known[content] = kind
        return kind


def _kind(found: BookDevice, key: str) -> DeviceKind:
    device, mode = found.device, _mode(found)
    product = found.text("productName") or "GPU"
    match mode:
        case Mode.WHOLE:
            return DeviceKind(key, f"{product}/whole", Measure.WHOLE, 1, found)
        case Mode.MIG:
            return DeviceKind(key, f"{product}/mig-{found.text('profile')}", Measure.WHOLE, 1, found)
        case Mode.REPLICAS:
            shares = _total(device, SHARES)
            return DeviceKind(key, f"{product}/shares-{shares}", Measure.SHARES, shares, found)
        case Mode.AMOUNTS:
            memory = _total(device, MEMORY)
            words = exact_quantity(memory, binary=True)
            return DeviceKind(key, f"{product}/memory-{words}", Measure.MEMORY, memory, found)


def _mode(found: BookDevice) -> Mode:
    """By what it has: under NVIDIA's names no attribute says it."""
    if found.shared:
        return Mode.REPLICAS if SHARES in found.device.capacity else Mode.AMOUNTS
    return Mode.MIG if found.text("type") == "mig" else Mode.WHOLE


def _total(device: SliceDevice, name: str) -> int:
    total = int(parse_quantity(device.capacity[name].value))
    if total <= 0:
        raise ValueError(f"a device with {total} of {name}")
    return total


NO_GPU = "no GPU"
"""Model of a node without GPUs."""


class Used(Frozen):
    """What the pods of a node ask for together."""

    cpu_milli: int = 0
    memory_mib: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)


class KindRoom(Frozen):
    """What is left of one kind. kind: None: the node has no GPU."""

    kind: DeviceKind | None
    room: Room


def is_gpu_resource(name: str) -> bool:
    """Whether units of an extended resource are GPUs or parts of them, as device plugins call them."""
    return name.startswith("nvidia.com/") or name == "aliyun.com/gpu-mem"


def rooms_of(
    node: ScheduledNode,
    devices: Sequence[KindDevice],
    taken: Mapping[tuple[str, str], Taken],
    used: Used,
    names: KindNames,
) -> tuple[KindRoom, ...]:
    """devices: for claims, in the order of the allocator. taken: by pool and device."""
    left: dict[str, list[int]] = {}
    kinds: dict[str, DeviceKind] = {}
    for device in devices:
        kind = kinds.setdefault(device.kind.key, device.kind)
        has = taken.get((device.pool, device.name), Taken()).of(kind.measure)
        left.setdefault(kind.key, []).append(0 if device.closed else kind.left(has))
    for resource, units in sorted(node.devices.items()):
        if units > 0 and is_gpu_resource(resource):
            kind = names.of_resource(resource, node.product, units)
            kinds[kind.key] = kind
            has = max(0, used.devices.get(resource, 0))
            if kind.measure is Measure.SLOTS:
                free = max(0, units - has)
                left[kind.key] = [0] * (units - free) + [WHOLE_MILLI] * free
            else:
                left[kind.key] = [kind.left(has)]
    cpu, memory = node.cpu_milli - used.cpu_milli, node.memory_mib - used.memory_mib
    most = node.cpu_milli, node.memory_mib
    if not kinds:
        return (KindRoom(None, Room(NO_GPU, cpu, memory, [], *most)),)
    return tuple(
        KindRoom(kind, Room(kind.model, cpu, memory, left[key], *most)) for key, kind in kinds.items()
    )
