"""What /proc says of processes, remembered for some seconds: samples are taken every second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from partage.edges.host.procfs import ProcessInfo, read_process, start_of

CHECKED_S, READ_S = 5.0, 30.0
"""After so long it is checked that the pid is still the same process; and its cgroup is read again, because
a process
can be moved (Slurm adopts those of ssh)."""


class _CachedProcess(Struct):
    info: ProcessInfo | None
    checked_s: float
    read_s: float


class ProcessCache:
    """For one thread. seen: of the last sample, by pid."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._entries: dict[int, _CachedProcess] = {}

    @property
    def seen(self) -> dict[int, ProcessInfo | None]:
        """The processes of the last sample; None for one that /proc does not show."""
        return {pid: entry.info for pid, entry in self._entries.items()}

    def at(self, now_s: float) -> Callable[[set[int]], dict[int, ProcessInfo | None]]:
        """A function that reads the processes of one sample; those that are not in it are forgotten."""

        def read(pids: set[int]) -> dict[int, ProcessInfo | None]:
            self._entries = {pid: self._entry(pid, now_s) for pid in pids}
            return self.seen

        return read

    def _entry(self, pid: int, now_s: float) -> _CachedProcess:
        known = self._entries.get(pid)
        if known is None or known.info is None or now_s - known.read_s >= READ_S:
            return _CachedProcess(read_process(self._proc, pid), now_s, now_s)
        if now_s - known.checked_s >= CHECKED_S:
            if start_of(self._proc, pid) != known.info.start:
                return _CachedProcess(read_process(self._proc, pid), now_s, now_s)
            known.checked_s = now_s
        return known
