"""Work done in forks of this process, some at a time, and nothing of it stays behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

_Job = TypeVar("_Job")
_MEMORY = 6 << 30
"""Bytes. A fault may keep a loop from ending, and what it makes grows."""
_END = "end\n"
"""The last line of a fork that came to its end. Its exit code does not say so: a test may end it with 0."""
_MARK = "PARTAGE_FORK"
"""The variable of a fork and of all processes that its tests start."""


def in_forks(
    jobs: deque[_Job], work: Callable[[_Job], Iterable[object]], at_once: int
) -> Iterator[tuple[_Job, list[Any], bool]]:
    """Each job, what its work gave (read back from JSON), and whether it came to its end.

    Jobs that are added meanwhile are done, too.
    """
    running: dict[int, tuple[_Job, IO[str]]] = {}
    try:
        while jobs or running:
            while jobs and len(running) < at_once:
                job, given = jobs.popleft(), _unnamed_file()
                if pid := os.fork():
                    running[pid] = job, given
                else:
                    _do(work(job), given)
            pid, _ = os.wait()
            if pid in running:
                job, given = running.pop(pid)
                _kill_marked(pid)
                with given:
                    given.seek(0)
                    lines = given.readlines()
                    ended = lines[-1:] == [_END]
                    yield job, [json.loads(line) for line in lines[: len(lines) - ended]], ended
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            _kill_marked(pid)


def _unnamed_file() -> IO[str]:
    return tempfile.TemporaryFile("w+")


def _do(results: Iterable[object], given: IO[str]) -> None:
    try:
        os.environ[_MARK] = str(os.getpid())
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        for result in results:
            given.write(json.dumps(result) + "\n")
            given.flush()
        given.write(_END)
        given.flush()
    finally:
        os._exit(0)  # never back into the loop of who forked


def _kill_marked(pid: int) -> None:
    """What a fork left behind."""
    mark = f"{_MARK}={pid}".encode()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (directory / "environ").read_bytes().split(b"\0"):
                os.kill(int(directory.name), signal.SIGKILL)
        except OSError:  # it has ended, or is another user's
            continue
