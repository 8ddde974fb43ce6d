"""Limits as an MPS daemon keeps them: what is invalid is ignored, and nobody is told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from partage.units import GIB, MIB

_VALUE = re.compile(r"(\d+)([GM])B?", re.ASCII)
_PERCENT = re.compile(r"\d{1,3}(\.\d+)?", re.ASCII)
ALL_THREADS = 100.0


@dataclass(frozen=True, slots=True)
class DaemonLimits:
    """threads: percent. memory: bytes by the name under which they were set, the last set one last.

    devices: what the daemon sees; an ordinal counts these.
    """

    devices: tuple[str, ...]
    threads: float = ALL_THREADS
    memory: Mapping[str, int] = field(default_factory=dict)

    def with_memory(self, name: str, value: str) -> DaemonLimits:
        """Of a device, by ordinal or UUID; as before where either says nothing."""
        amount_bytes = parse_value(value)
        if amount_bytes is None or self.device(name) is None:
            return self
        others = {key: limit for key, limit in self.memory.items() if key != name}
        return replace(self, memory={**others, name: amount_bytes})

    def with_threads(self, value: str) -> DaemonLimits:
        """As before where the value says nothing."""
        if not _PERCENT.fullmatch(value) or not 0 < float(value) <= ALL_THREADS:
            return self
        return replace(self, threads=float(value))

    def device(self, name: str) -> str | None:
        """The UUID behind an ordinal or UUID; None where the daemon sees no such device."""
        if name.isdecimal() and int(name) < len(self.devices):
            return self.devices[int(name)]
        return name if name in self.devices else None

    def in_force(self, device: str) -> int | None:
        """Of several settings for one device, by ordinal and by UUID, the last one counts."""
        settings = [limit for name, limit in self.memory.items() if self.device(name) == device]
        return settings[-1] if settings else None

    def printed_memory(self, name: str) -> str:
        """As it was set under this very name: an ordinal is not translated into a UUID, or back.

        In whole G from one G on: a node of four clients on 15 GiB has been shown to answer ``3G``. What is
        printed where nothing was set is not known; here it is an empty line.
        """
        limit = self.memory.get(name)
        if limit is None:
            return ""
        return f"{limit // GIB}G" if limit >= GIB else f"{limit // MIB}M"


def parse_value(text: str) -> int | None:
    """Bytes in ``2G`` or ``512M``; None for anything else."""
    match = _VALUE.fullmatch(text)
    return int(match[1]) * (GIB if match[2] == "G" else MIB) if match and int(match[1]) else None


def lowered(limit: int | None, variable: str | None, devices: tuple[str, ...], device: str) -> int | None:
    """The limit of one client that brings CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: lower, never higher.

    devices: what the client sees. One entry for a device that it does not see, and every limit of the client
    is dropped, the daemon's own too (measured by others on a real daemon: a tenant escapes this way).
    """
    if not variable:
        return limit
    seen = DaemonLimits(devices)
    for entry in variable.split(","):
        name, _, value = entry.strip().partition("=")
        if seen.device(name) is None:
            return None
        seen = seen.with_memory(name, value)
    own = seen.in_force(device)
    return limit if own is None else own if limit is None else min(limit, own)
