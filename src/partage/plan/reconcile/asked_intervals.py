"""Time slices that claims ask for: a setting of the whole GPU, set and restored as the policy's are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from partage.model.ids import DeviceUuid, device_of
from partage.model.strategy import Interval
from partage.plan.offer.desired import DesiredState
from partage.plan.offer.settings import NO_SETTINGS
from partage.plan.serve.ledger_entry import LedgerEntry


def asked_intervals(entries: Iterable[LedgerEntry]) -> dict[DeviceUuid, Interval]:
    """What claims ask for, by the UUID of the GPU. No two claims are given one GPU with different ones."""
    return {device_of(entry.id): entry.interval for entry in entries if entry.interval is not None}


class WithIntervals(Struct):
    """The desired state with the intervals of claims. The same inputs have the same value, not an equal one:
    the planner's cache goes by that. The ledger's entries are walked once for each of its versions.
    """

    _last: tuple[DesiredState, Mapping[DeviceUuid, Interval], DesiredState] | None = None
    _walked: tuple[LedgerEntry, ...] = ()
    _asked: Mapping[DeviceUuid, Interval] = field(default_factory=dict)

    def asked(self, entries: tuple[LedgerEntry, ...]) -> Mapping[DeviceUuid, Interval]:
        """As ``asked_intervals``."""
        if entries is not self._walked:
            self._walked, self._asked = entries, asked_intervals(entries)
        return self._asked

    def of(self, desired: DesiredState, entries: tuple[LedgerEntry, ...]) -> DesiredState:
        """In place of the policy's interval, where a claim asks for one, as long as it holds the GPU."""
        asked = self.asked(entries)
        if not asked:
            return desired
        if self._last is None or self._last[0] is not desired or self._last[1] != asked:
            settings = dict(desired.settings)
            for gpu in desired.inventory:
                if (interval := asked.get(gpu.uuid)) is not None:
                    settings[gpu.uuid] = replace(settings.get(gpu.uuid, NO_SETTINGS), interval=interval)
            self._last = desired, asked, replace(desired, settings=settings)
        return self._last[2]
