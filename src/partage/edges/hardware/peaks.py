"""The highest memory of each container, job and device, kept from one sample to the next.

A scrape every minute misses nothing so: it gets the peak of the samples between. Kept beside the driver,
because only there a sample is cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from partage.model.cgroup import Owner, parse_cgroup
from partage.model.gpu_use import GpuProcess, ProcessKind
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.samples import OwnerPeak

KEEP_ENDED_S = 300.0
"""How long the peak of an owner without processes is still told: longer than the pause between scrapes."""

MOST_OWNERS = 4096
"""Owners at a time. Those that ended longest ago are forgotten first."""

WINDOW_S = 60.0
"""The peak of a device covers this time and at most as much again."""

_Key = tuple[GpuUuid, DeviceUuid, str]


class _OwnerUse(Struct):
    owner: Owner
    used_bytes: int
    peak_bytes: int
    seen_s: float


class _DeviceWindow(Struct):
    """highest: of this window; before: of the one before; from_s: when this one began."""

    from_s: float
    highest: int
    before: int | None = None


class PeakKeeper:
    """Add each sample, then ask. now_s: on a clock that never goes back."""

    def __init__(self) -> None:
        self._owners: dict[_Key, _OwnerUse] = {}
        self._devices: dict[DeviceUuid, _DeviceWindow] = {}
        self._last_s = 0.0

    def add(self, rows: Iterable[GpuProcess], used: Mapping[DeviceUuid, int | None], now_s: float) -> None:
        """One sample. used: of GPUs and MIG devices."""
        sums: dict[_Key, int] = {}
        owners: dict[_Key, Owner] = {}
        for row in rows:
            if row.kind is ProcessKind.MPS_SERVER:
                continue
            owner = parse_cgroup(row.cgroups)
            key = row.gpu, row.device or row.gpu, owner_key(owner)
            owners[key] = owner
            sums[key] = sums.get(key, 0) + (row.used_bytes or 0)
        for key, number in sums.items():
            known = self._owners.get(key)
            if known is None:
                self._owners[key] = _OwnerUse(owners[key], number, number, now_s)
            else:
                known.used_bytes, known.seen_s = number, now_s
                known.peak_bytes = max(known.peak_bytes, number)
        for device, amount in used.items():
            if amount is not None:
                self._add_device(device, amount, now_s)
        self._last_s = now_s
        self._forget(now_s)

    def owners(self) -> tuple[OwnerPeak, ...]:
        """Those with processes in the last sample, and those that ended lately."""
        return tuple(
            OwnerPeak(
                gpu=gpu,
                device=device,
                container=use.owner.container,
                pod=use.owner.pod,
                job=use.owner.job,
                used_bytes=use.used_bytes if use.seen_s == self._last_s else 0,
                peak_bytes=use.peak_bytes,
                ended=use.seen_s != self._last_s,
            )
            for (gpu, device, _), use in self._owners.items()
        )

    def device(self, device: DeviceUuid) -> int | None:
        """The peak of a GPU or MIG device; None if it was in no sample of this window."""
        window = self._devices.get(device)
        if window is None or self._last_s - window.from_s >= 2 * WINDOW_S:
            return None
        return max(window.highest, window.before or 0)

    def _add_device(self, device: DeviceUuid, number: int, now_s: float) -> None:
        window = self._devices.get(device)
        if window is None or now_s - window.from_s >= 2 * WINDOW_S:
            self._devices[device] = _DeviceWindow(now_s, number)
        elif now_s - window.from_s >= WINDOW_S:
            self._devices[device] = _DeviceWindow(now_s, number, window.highest)
        else:
            window.highest = max(window.highest, number)

    def _forget(self, now_s: float) -> None:
        old = [key for key, use in self._owners.items() if now_s - use.seen_s > KEEP_ENDED_S]
        if len(self._owners) - len(old) > MOST_OWNERS:
            by_age = sorted(self._owners, key=lambda key: self._owners[key].seen_s)
            old = by_age[: len(self._owners) - MOST_OWNERS]
        for key in old:
            del self._owners[key]
        gone = [one for one, window in self._devices.items() if now_s - window.from_s > 2 * WINDOW_S]
        for device in gone:
            del self._devices[device]


def owner_key(owner: Owner) -> str:
    """A text that is the same for all processes of one container, or of one Slurm job outside of
    containers.
    """
    if owner.container or owner.pod:
        return owner.container or owner.pod
    return f"job {owner.job.job}" if owner.job else ""
