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
_TAINTS, _CAPACITY = "DRADeviceTaints", "DRAConsumableCapacity"


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
    read. Whoever made them, those that are not wanted go.
    """
    numbered: dict[int, str] = {}
    for name in sorted(there):
        number = _number(name)
        if number is not None and number < len(wanted) and there[name] is not None:
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


def _number(name: str) -> int | None:
    match = _INDEX.match(name)
    return int(match[1]) if match else None


def dropped(sent: SliceSpec, kept: SliceSpec | None) -> Mapping[str, str]:
    """Devices of which the API server dropped something, and the feature gate that is off there."""
    returned = {device.name: device for device in kept.devices} if kept is not None else {}
    found = {}
    for device in sent.devices:
        now = returned.get(device.name)
        if now == device:
            continue
        taints_only = now is not None and replace(now, taints=device.taints) == device
        found[device.name] = _TAINTS if taints_only else _CAPACITY
    return found


def still_dropped(gates: Mapping[str, str], wanted: Iterable[SliceSpec]) -> Mapping[str, str]:
    """Those of ``gates`` (see ``dropped``) that a device of wanted needs still. Without them it would be sent
    again, and be there for a moment as an exclusive device, or as one without a taint.
    """
    devices = {device.name: device for spec in wanted for device in spec.devices}
    return {name: gate for name, gate in gates.items() if name in devices and _needs(devices[name], gate)}


def _needs(device: SliceDevice, gate: str) -> bool:
    return bool(device.taints) if gate == _TAINTS else device.allow_multiple_allocations is True


def without(wanted: Iterable[SliceSpec], devices: Mapping[str, object]) -> tuple[SliceSpec, ...]:
    """The same slices without some devices."""
    return tuple(
        replace(spec, devices=tuple(one for one in spec.devices if one.name not in devices))
        for spec in wanted
    )
