"""Which device is nearest to what a request asks for, in words."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from partage.claims.decide.book import BookDevice
from partage.claims.decide.device_reasons import (
    CapacityTaken,
    CapacityTooSmall,
    ClassSelectsOthers,
    CountersTaken,
    DeviceReason,
    DeviceTainted,
    DeviceTaken,
    NoSuchCapacity,
    RuleForbids,
    SelectorBroken,
    SelectorSaysNo,
    TakenHere,
)
from partage.claims.decide.scheduling import Unplaced, WayVerdict
from partage.claims.model.claim import amount_words
from partage.text import listed

_NEARNESS: tuple[type[DeviceReason], ...] = (
    ClassSelectsOthers,
    NoSuchCapacity,
    SelectorSaysNo,
    RuleForbids,
    CapacityTooSmall,
    DeviceTainted,
    DeviceTaken,
    CountersTaken,
    CapacityTaken,
    TakenHere,
    SelectorBroken,  # it ends the attempt, whatever the other devices are
)
"""The nearest to fitting last."""


def nearest(missed: Unplaced) -> str:
    """Of each alternative the device that is nearest to fitting, and why it does not."""
    said = [_nearest_of(way) for way in missed.ways]
    if len(said) == 1:
        return said[0]
    return "; ".join(
        f"{way.way.name.partition('/')[2]}: {text}" for way, text in zip(missed.ways, said, strict=True)
    )


def _nearest_of(way: WayVerdict) -> str:
    rated = [(device, reason) for device, reason in way.devices if reason is not None]
    fitting = len(way.devices) - len(rated)
    if not way.devices:
        return "the node has no device for claims"
    if fitting and way.way.every:
        return f"not all devices of {way.way.device_class} can be given: {_said(best_reason(rated))}"
    if fitting:
        return f"{way.way.count} devices are asked for, and {fitting} could be given together"
    best = best_reason(rated)
    if isinstance(best[1], ClassSelectsOthers):
        modes = dict.fromkeys(mode for device, _ in rated if (mode := device.text("mode")))
        there = f"; what it has for claims: {', '.join(modes)}" if modes else ""
        return f"the node has no device of {way.way.device_class}{there}"
    alike = [row for row in rated if type(row[1]) is type(best[1])]
    others = f" (the same of {len(alike) - 1} more)" if len(alike) > 1 else ""
    return f"{_said(best)}{others}"


def best_reason(rated: list[tuple[BookDevice, DeviceReason]]) -> tuple[BookDevice, DeviceReason]:
    """The first of those that are nearest."""
    return max(rated, key=lambda row: (_NEARNESS.index(type(row[1])), _room(row[1])))


def _room(reason: DeviceReason) -> Decimal:
    match reason:
        case CapacityTaken(free=free):
            return free
        case CapacityTooSmall(most=most):
            return most
    return Decimal(0)


def _said(rated: tuple[BookDevice, DeviceReason]) -> str:
    device, reason = rated
    where = "" if device.gpu_index is None else f" (GPU {device.gpu_index})"
    return f"{device.device.name}{where} {reason}"


def device_words(device: BookDevice, amounts: Mapping[str, Decimal]) -> str:
    """``gpu-1b2c3d4e (GPU 0): memory 10Gi``; amounts of 0 are left out."""
    parts = [f"{name} {amount_words(amount)}" for name, amount in amounts.items() if amount]
    where = "" if device.gpu_index is None else f" (GPU {device.gpu_index})"
    return f"{device.device.name}{where}: {listed(parts, 4) or 'all of it'}"
