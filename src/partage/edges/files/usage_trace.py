"""A recorded trace of what containers use: a CSV file, a line for each sample.

Columns, by their names in the first line, in any order: ``time`` (seconds, any start), ``namespace``,
``pod``, ``container``, ``memory_bytes``; where known also ``device`` (UUID), ``sm`` (0 to 1),
``share_bytes``, ``guarantee`` and ``device_bytes``. Other columns are left alone.
"""

from __future__ import annotations

from pathlib import Path

from partage.edges.files.csv_table import Row, number, read_table
from partage.plan.rightsize.evidence import Run, workload_of

NEEDED = ("time", "namespace", "pod", "container", "memory_bytes")


def read_usage_trace(path: Path, device_bytes: int) -> tuple[Run, ...]:
    """The runs of a trace. device_bytes: memory of a GPU, where the trace does not say it.

    Raises InputError with all problems, up to ten.
    """
    runs: dict[tuple[str, ...], _Samples] = {}

    def take(row: Row) -> None:
        key = tuple(row.get(name) or "" for name in ("namespace", "pod", "container", "device"))
        runs.setdefault(key, _Samples()).add(row)

    read_table(path, NEEDED, take)
    return tuple(samples.run(key, device_bytes) for key, samples in runs.items())


class _Samples:
    """The samples of one container on one device."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int, float | None]] = []
        self._share: int | None = None
        self._device: int | None = None
        self._limited = False

    def add(self, row: Row) -> None:
        """Take a line. Raises ValueError with what is wrong with it."""
        at, used = number(row, "time"), number(row, "memory_bytes")
        if at is None or used is None:
            raise ValueError(f"{'time' if at is None else 'memory_bytes'} is empty")
        sm, share, device = number(row, "sm"), number(row, "share_bytes"), number(row, "device_bytes")
        if sm is not None and sm > 1:
            raise ValueError(f"sm is {sm:g}; it is a part of the time, from 0 to 1")
        self._points.append((at, int(used), sm))
        self._share = self._share if share is None else int(share)
        self._device = self._device if device is None else int(device)
        self._limited = self._limited or row.get("guarantee") in {"hard", "guarded"}

    def run(self, key: tuple[str, ...], device_bytes: int) -> Run:
        """All of them as one run."""
        namespace, pod, container, _ = key
        self._points.sort(key=lambda point: point[0])
        return Run(
            workload=f"{namespace}/{workload_of(pod)}/{container}",
            at_s=tuple(at for at, _, _ in self._points),
            used_bytes=tuple(used for _, used, _ in self._points),
            sm=tuple(sm for _, _, sm in self._points if sm is not None),
            device_bytes=self._device or device_bytes,
            share_bytes=self._share,
            limited=self._limited,
        )
