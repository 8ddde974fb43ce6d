"""What tests leave on the machine: processes, mounts and cgroups. Nothing, if they are right."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
MARK = "PARTAGE_TEST_SESSION"
"""A variable that all processes inherit which the tests start: the pid of pytest."""
ENDS_WITHIN_S = 10.0
"""Workers of pytest, and daemons that were just told to end, take a moment."""
_HELPERS_OF_PYTHON = "multiprocessing."
"""Those end with the process that started them."""


class Turn:
    """Whether this run of the tests had the machine for itself. Runs that were there at the same time see it:
    each holds a lock on one file, and changes its time when it begins.

    A mount or a cgroup does not say which run has made it.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._began_ns = time.time_ns()
        os.utime(self._file.fileno(), ns=(self._began_ns, self._began_ns))
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._first = True
        except BlockingIOError:
            self._first = False
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def alone(self) -> bool:
        """From its beginning until now."""
        return self._first and os.fstat(self._file.fileno()).st_mtime_ns == self._began_ns

    def end(self) -> None:
        self._file.close()


def of_this_run(left: list[str], *, alone: bool) -> list[str]:
    """What this run has surely made; beside another run, only processes have a mark."""
    return [line for line in left if alone or line.startswith("process ")]


def leftovers(proc: Path = PROC) -> set[str]:
    """A line for each thing that is there now."""
    return {*_processes(proc), *_mounts(proc), *_cgroups(proc)}


def new_leftovers(before: set[str], within_s: float = ENDS_WITHIN_S) -> list[str]:
    """What is there and was not before. Waits for what is just ending."""
    end_s = time.monotonic() + within_s
    left = leftovers() - before
    while left and time.monotonic() < end_s:
        time.sleep(0.1)
        left &= leftovers()
    return sorted(left)


def _processes(proc: Path) -> Iterator[str]:
    mark = f"{MARK}={os.environ.get(MARK, '')}".encode()
    for directory in proc.glob("[0-9]*"):
        try:
            marked = mark in (directory / "environ").read_bytes().split(b"\0")
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended, or is another user's
            continue
        if marked and int(directory.name) != os.getpid() and _HELPERS_OF_PYTHON not in command:
            yield f"process {directory.name}: {command.strip()[:200]}"


def _mounts(proc: Path) -> Iterator[str]:
    """Those in temporary directories of tests."""
    ours = tuple(f"{tempfile.gettempdir()}/{name}" for name in ("ptg", "partage-mps-", "pytest-of-"))
    for line in (proc / "self/mountinfo").read_text(encoding="utf-8").splitlines():
        if (where := line.split()[4]).startswith(ours):
            yield f"mount {where}"


def _cgroups(proc: Path) -> Iterator[str]:
    """Those of MPS daemons, and of attacks on memory limits."""
    for line in (proc / "self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            for directory in Path(before.split()[4]).glob("partage-*/*/"):
                yield f"cgroup {directory}"
