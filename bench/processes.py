"""What processes cost, as the kernel counts it (proc(5))."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)$")


@dataclass(frozen=True)
class Memory:
    """MiB of several processes together.

    pss:   each page divided by the number of processes of the whole machine that have it mapped.
    alone: the same where nothing else on the machine runs Python: files that these processes map count once.
    """

    rss: float
    pss: float
    alone: float
    threads: int


def memory(pids: Sequence[int]) -> Memory:
    """Of these processes, now."""
    rollups = [_kib(Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")) for pid in pids]
    private, shared = 0, dict[str, int]()
    for pid in pids:
        anonymous, files = _by_file(Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8"))
        private += anonymous
        for name, kib in files.items():
            shared[name] = max(shared.get(name, 0), kib)
    return Memory(
        rss=sum(rollup["Rss"] for rollup in rollups) / 1024,
        pss=sum(rollup["Pss"] for rollup in rollups) / 1024,
        alone=(private + sum(shared.values())) / 1024,
        threads=sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids),
    )


def _kib(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def _by_file(smaps: str) -> tuple[int, dict[str, int]]:
    """KiB that belong to the process only, and those that are pages of files."""
    private, files, name = 0, dict[str, int](), ""
    for line in smaps.splitlines():
        mapping = _MAPPING.match(line)
        if mapping:
            name = mapping[1]
        elif line.startswith("Rss:"):
            resident = int(line.split()[1])
        elif line.startswith("Anonymous:"):
            anonymous = int(line.split()[1])
            private += anonymous
            files[name] = files.get(name, 0) + resident - anonymous
    return private, files


def cpu_ms(pid: int) -> float:
    """Milliseconds of processor time until now, all threads, to the nanosecond of the scheduler's count."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks) / 1e6


def _wake_ups(pid: int) -> int:
    """How often its threads have gone to sleep by themselves, which is how often they woke up."""
    texts = [(task / "status").read_text(encoding="ascii") for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(
        int(number)
        for text in texts
        for number in re.findall(r"^voluntary_\w+:\s+(\d+)$", text, re.MULTILINE)
    )


@dataclass(frozen=True)
class AtRest:
    """Per second, of several processes together."""

    cpu_ms: float
    wake_ups: float


def at_rest(groups: Sequence[Sequence[int]], seconds: float) -> list[AtRest]:
    """Watch groups of processes do nothing, all in the same time."""
    began, before = time.monotonic(), [_counts(pids) for pids in groups]
    time.sleep(seconds)
    took_s, after = time.monotonic() - began, [_counts(pids) for pids in groups]
    return [
        AtRest((cpu - cpu_before) / took_s, (woke - woke_before) / took_s)
        for (cpu, woke), (cpu_before, woke_before) in zip(after, before, strict=True)
    ]


def _counts(pids: Sequence[int]) -> tuple[float, int]:
    return sum(map(cpu_ms, pids)), sum(map(_wake_ups, pids))
