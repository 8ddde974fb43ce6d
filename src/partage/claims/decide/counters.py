"""Counters that the devices of a pool use up together, as the scheduler counts them: a device goes to nobody
while others have left too little of one.

Source: the allocator of k8s.io/dynamic-resource-allocation 0.36.4 and 0.37.2. A device that is shared uses up
its counters once, whoever has parts of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

from partage.claims.decide.book import BookDevice, ClaimBook, CounterKey, DeviceKey, Taking
from partage.claims.decide.device_reasons import CountersTaken, LackingCounter
from partage.units import parse_quantity


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
