"""Limits as an MPS daemon keeps them. It ignores invalid values and reports nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import field
from msgspec.structs import replace

from partage.units import GIB, MIB
from partage.values import Frozen

_VALUE = re.compile(r"(\d+)([GM])B?", re.ASCII)
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
        """The same with a limit for a device, by ordinal or UUID. Unchanged for an invalid name or value."""
        amount_bytes = parse_value(value)
        if amount_bytes is None or self.device(name) is None:
            return self
        others = {key: limit for key, limit in self.memory.items() if key != name}
        return replace(self, memory={**others, name: amount_bytes})

    def with_threads(self, value: str) -> DaemonLimits:
        """The same with another percentage. Unchanged for an invalid value."""
        if not _PERCENT.fullmatch(value) or not 0 < float(value) <= ALL_THREADS:
            return self
        return replace(self, threads=float(value))

    def with_environment(self, env: Mapping[str, str]) -> DaemonLimits:
        """The same with the limits of a daemon's environment, its defaults from its start."""
        found = self.with_threads(env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""))
        for name, value in _entries(env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")):
            found = found.with_memory(name, value)
        return found

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

        From 1 G on in whole G: a real node with four clients on 15 GiB answered ``3G``. What a real daemon
        prints where nothing was set is not known; here it is an empty line.
        """
        limit = self.memory.get(name)
        if limit is None:
            return ""
        return f"{limit // GIB}G" if limit >= GIB else f"{limit // MIB}M"


def parse_value(text: str) -> int | None:
    """Bytes in ``2G`` or ``512M``; None for anything else."""
    match = _VALUE.fullmatch(text)
    return int(match[1]) * (GIB if match[2] == "G" else MIB) if match and int(match[1]) else None


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
