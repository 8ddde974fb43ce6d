"""A recorded trace of what containers use: a CSV file, a line for each sample.

Columns, by their names in the first line, in any order: ``time`` (seconds, any start), ``namespace``,
``pod``, ``container``, ``memory_bytes`` (empty or NaN: not measured); where known also ``device`` (UUID),
``pid`` (a line for each process; those of one container and time are added up), ``peak_bytes`` (the highest
so far), ``sm`` (0 to 1), ``share_bytes``, ``guarantee`` and ``device_bytes``. Other columns are left alone.
"""

from __future__ import annotations

from pathlib import Path

from partage.edges.files.csv_table import Row, WrongCell, number, read_table
from partage.plan.history.evidence import TAKEN_FOR_ALL, Run, workload_of

NEEDED = ("time", "namespace", "pod", "container", "memory_bytes")
_LATEST_S = 1e11
"""Times beyond, the year 5138, are not seconds."""


def read_usage_trace(path: Path, device_bytes: int) -> tuple[Run, ...]:
    """The runs of a trace. device_bytes: memory of a GPU, where the trace does not say it.

    Raises InputError with all problems, up to ten.
    """
    runs: dict[tuple[str, ...], _Samples] = {}

    def take(row: Row) -> None:
        key = tuple(row.get(name) or "" for name in ("namespace", "pod", "container", "device"))
        runs.setdefault(key, _Samples()).add(row)

    read_table(path, NEEDED, take)
    return tuple(samples.run(key, device_bytes) for key, samples in runs.items() if samples)


def _measured(row: Row, name: str) -> float | None:
    """As ``number``; programs that write tables write NaN for what they do not know."""
    return None if (row.get(name) or "").strip().lower() == "nan" else number(row, name)


class _Samples:
    """The samples of one container on one device."""

    def __init__(self) -> None:
        self._used: dict[float, dict[str, int]] = {}
        self._sm: dict[float, float] = {}
        self._peak: int | None = None
        self._share: int | None = None
        self._device: int | None = None
        self._limited = False

    def __bool__(self) -> bool:
        return bool(self._used)

    def add(self, row: Row) -> None:
        """Take a line. Raises ValueError with what is wrong with it."""
        at, used = number(row, "time"), _measured(row, "memory_bytes")
        if at is None:
            raise ValueError("time is empty")
        if at > _LATEST_S:
            raise WrongCell(f"time is {at:.0f}; seconds are needed", "milliseconds? divide by 1000")
        sm, share, device = (_measured(row, name) for name in ("sm", "share_bytes", "device_bytes"))
        if sm is not None and sm > 1:
            raise ValueError(f"sm is {sm:g}; it is a part of the time, from 0 to 1")
        self._share = self._share if share is None else int(share)
        self._device = self._device if device is None else int(device)
        self._limited = self._limited or row.get("guarantee") in TAKEN_FOR_ALL
        if (peak := _measured(row, "peak_bytes")) is not None:
            self._peak = max(self._peak or 0, int(peak))
        if used is not None:
            self._take(at, (row.get("pid") or "").strip(), int(used), sm)

    def _take(self, at: float, pid: str, used: int, sm: float | None) -> None:
        now = self._used.setdefault(at, {})
        if pid in now:
            raise WrongCell(
                f"time {at:g} is there twice for this container",
                "a line for each container and time; the columns device and pid tell several GPUs and "
                "processes apart",
            )
        now[pid] = used
        if sm is not None:
            self._sm[at] = min(1.0, self._sm.get(at, 0.0) + sm)

    def run(self, key: tuple[str, ...], device_bytes: int) -> Run:
        """All of them as one run."""
        namespace, pod, container, _ = key
        times = sorted(self._used)
        return Run(
            workload=f"{namespace}/{workload_of(pod)}/{container}",
            at_s=tuple(times),
            used_bytes=tuple(sum(self._used[at].values()) for at in times),
            sm=tuple(self._sm[at] for at in times if at in self._sm),
            device_bytes=self._device or device_bytes,
            peak_bytes=self._peak,
            share_bytes=self._share,
            limited=self._limited,
            processes=max(map(len, self._used.values())),
            container="/".join((namespace, pod, container)),
        )
