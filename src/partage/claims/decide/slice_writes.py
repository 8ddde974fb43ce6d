"""From the slices that are there to those that are wanted: what is written, and in which order. Pure.

Only slices of a pool's highest generation count, and only if there are as many as each of them says. So
between two writes the pool is not complete, and the order keeps that short: first what is obsolete goes, then
what stays is changed, then what is new comes (as client-go's helper for drivers does).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import field
from msgspec.structs import replace

from partage.claims.model.slices import SliceDevice, SliceSpec
from partage.values import Frozen

_INDEX = re.compile(r"(\d{5})-", re.ASCII)


class SliceWrites(Frozen):
    """deletes: names. replaces: by name. creates: by the number at the head of the name; the scheduler takes
    slices by name."""

    deletes: tuple[str, ...] = ()
    replaces: Mapping[str, SliceSpec] = field(default_factory=dict)
    creates: Mapping[int, SliceSpec] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.deletes or self.replaces or self.creates)


def slice_writes(wanted: Sequence[SliceSpec], there: Mapping[str, SliceSpec | None]) -> SliceWrites:
    """wanted: in any generation. there: the driver's slices on this node, by name; None: one that cannot be
    read. Whoever made them, those that are not wanted go, and those of another pool, which no slice changes.
    """
    numbered: dict[int, str] = {}
    for name, spec in sorted(there.items()):
        number = _number(name)
        if number is not None and number < len(wanted) and _place(spec) == _place(wanted[number]):
            numbered.setdefault(number, name)
    deletes = tuple(sorted(there.keys() - numbered.values()))
    generation = max((spec.pool.generation for spec in there.values() if spec is not None), default=0)
    missing = [number for number in range(len(wanted)) if number not in numbered]
    changed = _changed(wanted, there, numbered, generation)
    if not (deletes or missing or changed):
        return SliceWrites()
    if deletes or missing or len(changed) > 1:
        generation += 1
        changed = _changed(wanted, there, numbered, generation)
    creates = {number: _in(wanted, number, generation) for number in missing}
    return SliceWrites(deletes, changed, creates)


def _changed(
    wanted: Sequence[SliceSpec],
    there: Mapping[str, SliceSpec | None],
    numbered: Mapping[int, str],
    generation: int,
) -> dict[str, SliceSpec]:
    specs = {name: _in(wanted, number, generation) for number, name in sorted(numbered.items())}
    return {name: spec for name, spec in specs.items() if there[name] != spec}


def _in(wanted: Sequence[SliceSpec], number: int, generation: int) -> SliceSpec:
    spec = wanted[number]
    return replace(spec, pool=replace(spec.pool, generation=generation, resource_slice_count=len(wanted)))


def _place(spec: SliceSpec | None) -> tuple[str, str, str] | None:
    """What the API server never lets change in a slice."""
    return None if spec is None else (spec.driver, spec.node_name, spec.pool.name)


def _number(name: str) -> int | None:
    match = _INDEX.match(name)
    return int(match[1]) if match else None


# --- servers without a feature -----------------------------------------------------------------

CONSUMABLE_CAPACITY, DEVICE_TAINTS = "DRAConsumableCapacity", "DRADeviceTaints"
PARTITIONABLE = "DRAPartitionableDevices"
"""Feature gates of the API server. Where one is off, the server drops the fields that belong to it, without
a word: a shared device would be given whole to the first claim, one with a fault to any.
"""


def gates_needed(device: SliceDevice) -> frozenset[str]:
    """The gates without which a device is not what it says."""
    return frozenset(gate for gate, _ in _gated(device))


def gates_off(sent: SliceSpec, kept: SliceSpec | None) -> frozenset[str]:
    """The gates of which the API server dropped something. kept: its answer; None: it cannot be read."""
    returned = {} if kept is None else {device.name: _gated(device) for device in kept.devices}
    if kept is not None and sent.shared_counters and not kept.shared_counters:
        return frozenset((PARTITIONABLE,))
    return frozenset(
        gate
        for device in sent.devices
        if device.name in returned
        for gate, _ in _gated(device) - returned[device.name]
    )


def _gated(device: SliceDevice) -> set[tuple[str, str]]:
    """What belongs to a gate, with its gate."""
    found = {(DEVICE_TAINTS, taint.key) for taint in device.taints}
    found |= {
        (CONSUMABLE_CAPACITY, name)
        for name, capacity in device.capacity.items()
        if capacity.request_policy is not None
    }
    if device.allow_multiple_allocations:
        found.add((CONSUMABLE_CAPACITY, ""))
    found |= {(PARTITIONABLE, use.counter_set) for use in device.consumes_counters}
    return found


def without(wanted: Iterable[SliceSpec], off: frozenset[str]) -> tuple[SliceSpec, ...]:
    """The same slices without the devices, and without the counters, that need one of these gates."""
    return tuple(
        replace(spec, devices=tuple(device for device in spec.devices if not gates_needed(device) & off))
        for spec in wanted
        if not (spec.shared_counters and PARTITIONABLE in off)
    )
