"""Time slices that claims ask for: a setting of the whole GPU, set and restored as the policy's are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
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
    the planner's cache goes by that.
    """

    _last: tuple[DesiredState, Mapping[DeviceUuid, Interval], DesiredState] | None = None

    def of(self, desired: DesiredState, entries: Iterable[LedgerEntry]) -> DesiredState:
        """In place of the policy's interval, where a claim asks for one, as long as it holds the GPU."""
        asked = asked_intervals(entries)
        if not asked:
            return desired
        if self._last is None or self._last[0] is not desired or self._last[1] != asked:
            settings = dict(desired.settings)
            for gpu in desired.inventory:
                if (interval := asked.get(gpu.uuid)) is not None:
                    settings[gpu.uuid] = replace(settings.get(gpu.uuid, NO_SETTINGS), interval=interval)
            self._last = desired, asked, replace(desired, settings=settings)
        return self._last[2]
