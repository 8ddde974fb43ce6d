"""``process_*``: what the agent's own process costs, under the names that every Prometheus client has."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from partage.serve_http.metrics.exposition import Family

_UTIME, _STIME, _START, _VSIZE, _RSS = 11, 12, 19, 20, 21
"""Indexes after the name in ``/proc/self/stat`` (proc_pid_stat(5))."""


def process_families(proc: Path = Path("/proc")) -> Iterator[Family]:
    """Nothing where /proc cannot be read."""
    try:
        words = (proc / "self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = (proc / "stat").read_text(encoding="utf-8").partition("\nbtime ")[2].split()[0]
        descriptors = sum(1 for _ in (proc / "self/fd").iterdir())
        ticks, page = os.sysconf("SC_CLK_TCK"), resource.getpagesize()
        figures = (
            ("virtual_memory_bytes", "Virtual memory size in bytes.", "gauge", int(words[_VSIZE])),
            ("resident_memory_bytes", "Resident memory size in bytes.", "gauge", int(words[_RSS]) * page),
            (
                "start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                "gauge",
                int(words[_START]) / ticks + int(boot),
            ),
            (
                "cpu_seconds",
                "Total user and system CPU time spent in seconds.",
                "counter",
                (int(words[_UTIME]) + int(words[_STIME])) / ticks,
            ),
            ("open_fds", "Number of open file descriptors.", "gauge", descriptors),
            (
                "max_fds",
                "Maximum number of open file descriptors.",
                "gauge",
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            ),
        )
    except (OSError, ValueError, IndexError):
        return
    for name, text, kind, value in figures:
        yield Family(f"process_{name}", text, kind, [("", float(value))])
