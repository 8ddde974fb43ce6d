"""Children that can always be ended, with everything that they have started, wherever it has gone.

A step runs in a session of its own. What it starts may leave that session: helpers and MPS daemons do. So
this
process becomes the parent of all orphans below it (PR_SET_CHILD_SUBREAPER), and every child has a mark in its
environment, by which the next run finds what a killed run has left.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from partage.edges.host import procfs
from partage.values import Frozen

MARK = "PARTAGE_ON_GPU"
"""Variable of every process of a run: the name of its working directory."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PROC = Path("/proc")
_POLL_S = 0.05
_GONE_S = 5.0
_TAIL_BYTES = 4000


class ChildEnd(Frozen):
    """How a child ended. code: None at its time limit. tail: the end of what it said on stderr."""

    code: int | None
    tail: str
    left: tuple[str, ...]


def become_reaper() -> None:
    """Orphans of our children become our children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
    log: Path,
    tidy: Callable[[], None],
) -> ChildEnd:
    """Run a child to its end or to its limit; then nothing that it has started is left.

    log: receives what it says. tidy: ends daemons in an orderly way, before what is left is killed.
    A process that hangs in the driver cannot be killed: it is named in ``left``, and nobody waits for it.
    """
    ours = os.getpid()
    with log.open("wb") as output:
        child = subprocess.Popen(  # noqa: S603 - our own Python
            list(argv),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _end_with(ours),  # noqa: PLW1509 - this process has one thread
        )
        try:
            code: int | None = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GONE_S)
            tidy()
            left = end_all()
    tail = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
    return ChildEnd(code, tail, left)


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def end_all(mark: str = "") -> tuple[str, ...]:
    """Kill everything below this process, and what has the mark; what does not end, in words."""
    give_up_s = time.monotonic() + _GONE_S
    while True:
        # Looked for anew each time: one of them may have started another before its own end.
        found = {*descendants(os.getpid()), *(marked(mark) if mark else ())}
        left = {pid for pid in found if procfs.runs(_PROC, pid)}
        if not left:
            _reap()
            return ()
        if time.monotonic() > give_up_s:
            return tuple(f"process {pid} ({procfs.name_of(_PROC, pid)}) does not end" for pid in sorted(left))
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def descendants(ancestor: int) -> set[int]:
    """All processes below one, by /proc."""
    parents = {pid: procfs.parent_of(_PROC, pid) for pid in procfs.pids(_PROC)}
    found: set[int] = set()
    below = {ancestor}
    while below:
        below = {pid for pid, parent in parents.items() if parent in below} - found
        found |= below
    return found


def marked(mark: str) -> set[int]:
    """Processes of a run, by their environment; without this process."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for pid in procfs.pids(_PROC):
        with suppress(OSError):
            if wanted in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found - {os.getpid()}


def _reap() -> None:
    """Take the exit codes of children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
