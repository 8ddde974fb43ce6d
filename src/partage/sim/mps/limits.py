"""Limits as an MPS daemon keeps them. It ignores invalid values and reports nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import field
from msgspec.structs import replace

from partage.units import GIB, MIB
from partage.values import Frozen

_VALUE = re.compile(r"(\d+)([GM])B?", re.ASCII)
_TOLD = re.compile(r"(\d*)(.?)", re.ASCII | re.DOTALL)
_PERCENT = re.compile(r"\d{1,3}(\.\d+)?", re.ASCII)
ALL_THREADS = 100.0


class DaemonLimits(Frozen):
    """Limits of each client. threads: percent. devices: what the daemon sees; an ordinal counts these.

    memory: bytes by the device name that was used to set them; the newest entry is the last.
    """

    devices: tuple[str, ...]
    threads: float = ALL_THREADS
    memory: Mapping[str, int] = field(default_factory=dict)

    def with_memory(self, name: str, value: str) -> DaemonLimits:
        """The same with a limit for a device, by ordinal or UUID; without one for an amount of 0, which is
        also text that is no number. Unchanged for an invalid name.

        An ordinal that no device has is kept and printed (535, 550, 555).
        """
        amount_bytes = _told_bytes(value)
        if not (name.isdecimal() or name in self.devices):
            return self
        others = {key: limit for key, limit in self.memory.items() if key != name}
        return replace(self, memory={**others, name: amount_bytes} if amount_bytes else others)

    @property
    def printed_threads(self) -> str:
        """The percentage as the daemon prints it."""
        return f"{self.threads:.1f}"

    def with_threads(self, value: str) -> DaemonLimits:
        """The same with another percentage. Unchanged for an invalid value."""
        if not _PERCENT.fullmatch(value) or not 0 < float(value) <= ALL_THREADS:
            return self
        return replace(self, threads=float(value))

    def with_environment(self, env: Mapping[str, str]) -> DaemonLimits:
        """The same with the limits of a daemon's environment, its defaults from its start."""
        daemon_limits = self.with_threads(env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""))
        for name, value in _entries(env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")):
            daemon_limits = daemon_limits.with_memory(name, value)
        return daemon_limits

    def device(self, name: str) -> str | None:
        """The UUID of the device with that ordinal or UUID; None where the daemon sees no such device."""
        if name.isdecimal() and int(name) < len(self.devices):
            return self.devices[int(name)]
        return name if name in self.devices else None

    def limit_in_force(self, device: str) -> int | None:
        """The limit of a device. If it was set by ordinal and by UUID, the newest setting is in force."""
        settings = [limit for name, limit in self.memory.items() if self.device(name) == device]
        return settings[-1] if settings else None

    def printed_memory(self, name: str) -> str:
        """The limit that was set under exactly this name: an ordinal is not translated into a UUID, or back.

        From 1 G on in whole G; nothing where nothing was set (535, 550, 555).
        """
        limit = self.memory.get(name)
        if limit is None:
            return ""
        return f"{limit // GIB}G" if limit >= GIB else f"{limit // MIB}M"


def parse_value(text: str) -> int | None:
    """Bytes in ``2G`` or ``512M``; None for anything else."""
    match = _VALUE.fullmatch(text)
    return int(match[1]) * (GIB if match[2] == "G" else MIB) if match and int(match[1]) else None


def _told_bytes(text: str) -> int:
    """Bytes in what a daemon of version 2 is told, as recorded of 535, 550 and 555: digits, and the letter
    behind them. It is MiB unless that is G: ``1.5G`` and ``1K`` are 1 MiB. No digits are 0.
    """
    match = _TOLD.match(text)
    assert match is not None  # it matches everything
    return int(match[1] or 0) * (GIB if match[2] in ("G", "g") else MIB)


def client_limit(
    limit: int | None, variable: str | None, devices: tuple[str, ...], device: str
) -> int | None:
    """The limit of a client that has CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: it can be lower, never higher.

    devices: what the client sees. An entry for a device that it does not see drops all limits of the client,
    the daemon's too (measured by others on a real daemon: a client escapes its limit this way).
    """
    if not variable:
        return limit
    seen = DaemonLimits(devices)
    for name, value in _entries(variable):
        if seen.device(name) is None:
            return None
        seen = seen.with_memory(name, value)
    own = seen.limit_in_force(device)
    return limit if own is None else own if limit is None else min(limit, own)


def _entries(variable: str) -> Iterator[tuple[str, str]]:
    """``0=1G,1=512MB``: device and limit."""
    for entry in variable.split(","):
        name, _, value = entry.strip().partition("=")
        yield name, value
