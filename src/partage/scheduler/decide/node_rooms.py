"""What is left of a node: one room for each kind of GPU that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import field

from partage.model.pod import ScheduledNode
from partage.plan.placement.mix import WHOLE_MILLI
from partage.plan.placement.room import Room
from partage.scheduler.decide.kinds import DeviceKind, KindDevice, KindNames, Measure, Taken
from partage.values import Frozen

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
