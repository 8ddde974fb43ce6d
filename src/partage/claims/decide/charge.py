"""How much of a device a request is charged, as the scheduler counts, and why it cannot have so much: of the
device itself, or of counters that the devices of a pool use up together.

Source: the allocator of k8s.io/dynamic-resource-allocation 0.36.4 and 0.37.2: amounts are rounded up to what
the device's policy allows, and one that is not named is the policy's default. A device goes to nobody while
others have left too little of one of its counters; one that is shared uses them up once, whoever has parts of
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

from partage.claims.decide.book import BookDevice, ClaimBook, CounterKey, DeviceKey, Taking, amount_of
from partage.claims.decide.device_reasons import (
    CapacityTaken,
    CapacityTooSmall,
    CountersTaken,
    DeviceReason,
    DeviceTaken,
    LackingCounter,
    NoSuchCapacity,
)
from partage.claims.model.claim import DeviceAsk
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


class CountersLeft:
    """What the takings of a book leave of its counters."""

    def __init__(self, book: ClaimBook) -> None:
        self._totals = book.counters
        self._uses = {
            device.key: dict(_uses(device)) for device in book.devices if device.device.consumes_counters
        }
        self._taken: dict[DeviceKey, list[Taking]] = {}
        for taking in book.takings:
            if taking.device in self._uses:
                self._taken.setdefault(taking.device, []).append(taking)

    def lacking(self, device: BookDevice, more: Iterable[Taking] = ()) -> CountersTaken | None:
        """Why others leave too little for the device; None: there is enough. more: takings beside those of
        the book.
        """
        if (wanted := self._uses.get(device.key)) is None:
            return None
        taken = {key: [*takings] for key, takings in self._taken.items()}
        for taking in more:
            if taking.device in self._uses:
                taken.setdefault(taking.device, []).append(taking)
        taken.pop(device.key, None)
        lacking = []
        for counter, amount in wanted.items():
            total = self._totals.get(counter[0], {}).get(counter[1])
            users = {key: used for key in taken if (used := self._uses[key].get(counter))}
            free = None if total is None else total - sum(users.values())
            if total is not None and free is not None and amount > free:
                by_pods = _by_pods(users, taken)
                who = dict.fromkeys(taking.who for key in users for taking in taken[key])
                lacking.append(LackingCounter(counter[1], amount, free, total, tuple(who), by_pods))
        return CountersTaken(tuple(lacking)) if lacking else None


def _by_pods(
    users: Mapping[DeviceKey, Decimal], taken: Mapping[DeviceKey, list[Taking]]
) -> Mapping[tuple[str, ...], Decimal]:
    """How much comes back when these pods end: of a device that is shared, all of its pods."""
    found: dict[tuple[str, ...], Decimal] = {}
    for key, amount in users.items():
        pods = tuple(dict.fromkeys(pod for taking in taken[key] for pod in taking.pods))
        if pods and all(taking.pods for taking in taken[key]):
            found[pods] = found.get(pods, Decimal(0)) + amount
    return found


def _uses(device: BookDevice) -> Iterator[tuple[tuple[CounterKey, str], Decimal]]:
    for use in device.device.consumes_counters:
        for name, counter in use.counters.items():
            yield ((device.driver, device.pool, use.counter_set), name), parse_quantity(counter.value)
