"""How much of a device a request is charged, as the scheduler counts, and why it cannot have so much.

Source: the allocator of k8s.io/dynamic-resource-allocation 0.36.4 and 0.37.2: amounts are rounded up to what
the device's policy allows, and one that is not named is the policy's default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from partage.claims.decide.book import BookDevice, Taking, amount_of
from partage.claims.decide.device_reasons import (
    CapacityTaken,
    CapacityTooSmall,
    DeviceReason,
    DeviceTaken,
    NoSuchCapacity,
)
from partage.claims.model.request import DeviceAsk
from partage.claims.model.slices import RequestPolicy, SliceDevice
from partage.units import parse_quantity
from partage.values import Frozen


class Charge(Frozen):
    """amounts: by capacity; of a device that is not shared none: all of it goes."""

    amounts: Mapping[str, Decimal]


def charge_of(ask: DeviceAsk, device: SliceDevice) -> Charge | DeviceReason:
    """What the request is charged of the device if nobody has anything of it."""
    for name in ask.amounts:
        if name not in device.capacity or _cannot_be_asked(device.capacity[name].request_policy):
            return NoSuchCapacity(name, _names(device))
    if device.allow_multiple_allocations is not True:
        for name, asked in ask.amounts.items():
            if asked > (most := amount_of(device, name)):
                return CapacityTooSmall(name, asked, most)
        return Charge({})
    found: dict[str, Decimal] = {}
    for name, capacity in device.capacity.items():
        policy, most = capacity.request_policy, amount_of(device, name)
        if policy is None:
            found[name] = most
            continue
        amount = rounded(ask.amounts.get(name), policy)
        if amount is None:
            return CapacityTooSmall(name, ask.amounts[name], most)
        found[name] = amount
    return Charge(found)


def rounded(asked: Decimal | None, policy: RequestPolicy) -> Decimal | None:
    """What is charged for an amount; None asks for the default. None: there is no so large amount."""
    if asked is None:
        return parse_quantity(policy.default)
    if policy.valid_range is None:
        allowed = [parse_quantity(value) for value in policy.valid_values]
        return min((value for value in allowed if value >= asked), default=None)
    lowest = parse_quantity(policy.valid_range.min)
    amount = max(asked, lowest)
    if policy.valid_range.step is not None and (step := parse_quantity(policy.valid_range.step)):
        steps, rest = divmod(amount - lowest, step)
        amount = lowest + (steps + bool(rest)) * step
    most = policy.valid_range.max
    return None if most is not None and amount > parse_quantity(most) else amount


def no_room(charge: Charge, book_device: BookDevice, takings: Iterable[Taking]) -> DeviceReason | None:
    """Why others leave too little; None: there is room. takings: of the device."""
    kept = list(takings)
    who = tuple(dict.fromkeys(taking.who for taking in kept))
    pods = tuple(dict.fromkeys(pod for taking in kept for pod in taking.pods))
    if not book_device.shared:
        return DeviceTaken(who, pods) if kept else None
    if any(not taking.amounts for taking in kept):
        return DeviceTaken(who, pods)
    for name, amount in charge.amounts.items():
        total = amount_of(book_device.device, name)
        free = total - sum((taking.amounts.get(name, Decimal(0)) for taking in kept), Decimal(0))
        if amount > free:
            return CapacityTaken(name, amount, free, total, who, pods)
    return None


def _cannot_be_asked(policy: RequestPolicy | None) -> bool:
    """It is there to be looked at in an expression."""
    return policy is not None and policy.valid_values == ("0",)


def _names(device: SliceDevice) -> tuple[str, ...]:
    return tuple(
        name for name, capacity in device.capacity.items() if not _cannot_be_asked(capacity.request_policy)
    )
