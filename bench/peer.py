"""NVIDIA's figures, to stand next to ours: docs/evidence/performance.md says how they were taken.

k8s-device-plugin v0.20.0 (Go 1.26) on a stub of NVML with 8 x H100; a Go client on the unix socket, 2,000
calls a cell, medians of three runs; a virtual machine with 2 shared cores, November 2026. Microseconds,
unless a name says otherwise; noise about 20 %.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timed:
    """Half of the calls were faster than p50, 99 % faster than p99. None: not measured there."""

    p50: float
    p99: float | None = None


ALLOCATE = {1: Timed(170, 363), 8: Timed(164, 423)}
"""By number of shares. For 4, which was not measured, NVIDIA's 1 and 8 differ by less than the noise."""

PREFERRED = {
    "8 x 48 shares": {1: Timed(450, 1663), 4: Timed(983, 2754), 8: Timed(1593, 3759)},
    "8 x 10 shares": {1: Timed(246), 4: Timed(343), 8: Timed(535)},
    "8 whole GPUs": {1: Timed(1010), 4: Timed(1017), 8: Timed(938)},
}

EXEC_TO_REGISTER_MS = 12.0
FIRST_LIST_MS = 15.0
KUBELET_RESTART_MS = 4.0
STOP_MS = 16.0
IDLE_RSS_MIB, IDLE_PSS_MIB = 21.0, 19.6
IDLE_CPU_MS_PER_S = 0.02
WAKE_UPS_PER_S = 0.6
THREADS = 8

PLAIN_GRPCLIB_ALLOCATE = 295.0
"""Allocate of 1 on the same machine and client, from a bare prototype on grpclib. The same kind of plugin is
measured here: the quotient says how much slower this machine is at this moment."""


def allocate(size: int) -> Timed:
    """NVIDIA's Allocate of so many shares."""
    return ALLOCATE.get(size, ALLOCATE[8])


def together(case: str, size: int) -> Timed | None:
    """Preferred allocation and Allocate one after the other: the sum of NVIDIA's two medians."""
    preferred = PREFERRED.get(case, {}).get(size)
    return Timed(preferred.p50 + allocate(size).p50) if preferred else None
