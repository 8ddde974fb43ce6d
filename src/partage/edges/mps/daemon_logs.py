"""The logs of a daemon: what it was told, and whether somebody else than Partage has set its limits; and how
they are kept small. Blocking.

NVIDIA's daemon (535, 550, 555) writes a line with ``Cmd:`` and the command before it answers, also for
commands that it refuses, and not who gave it. The log's directory is mounted into no container. A limit that
reads back as ``3G`` may be 3 GiB or nearly 4, and the percentage of a single server is not read back at all:
the log shows such a change.

A daemon writes four lines (220 bytes) for each command, also for Partage's own. It keeps its log open and
appends (535, 550, 555), so the log cannot be replaced. A hole is punched: the size stays what it was and only
grows, the space is free again, and who reads on from where they were misses nothing new.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import stat
from pathlib import Path

from msgspec import Struct, field

from partage.edges.host.read_file import open_of_kind
from partage.edges.mps.paths import DaemonPaths
from partage.model.ids import DeviceUuid
from partage.units import KIB, MIB
from partage.values import Frozen

_COMMAND = re.compile(rb"Cmd:([^\n]*)$", re.MULTILINE)
_HARMLESS = re.compile(
    r"(?:get_[a-z_]+|ps|lspart|start_server|shutdown_server|terminate_client|quit)(?: [ -~]*)?", re.ASCII
)
"""Commands that change no limit. Everything else may, also what is not understood."""

_FAILED_SERVER = re.compile(rb"(Server \d+ exited with status [1-9]\d*)$", re.MULTILINE)

_MOST_BYTES = 8 * MIB
"""Read at once: what a daemon writes within hours."""

_LEAST_ROOM_BYTES = 64 * KIB
_SHOWN = 80


class LogMark(Frozen):
    """A place in a log. file: device and inode."""

    file: tuple[int, int]
    bytes: int


class LogNews(Frozen):
    """What stands after a mark. changes: commands that may change limits. asked: there is any command.

    lost: why not all can be known, a clause. end: where to read on; None: the log cannot be read.
    """

    end: LogMark | None = None
    changes: tuple[str, ...] = ()
    asked: bool = False
    lost: str = ""


def end_of_log(log: Path) -> LogMark | None:
    """Its end now; None if it cannot be read."""
    try:
        status = log.lstat()
    except OSError:
        return None
    return LogMark((status.st_dev, status.st_ino), status.st_size)


def read_log(log: Path, since: LogMark) -> LogNews:
    """What was written since. The last line may still be under way: it is read the next time."""
    try:
        handle = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return LogNews(lost=f"its control.log cannot be read ({error.strerror})")
    with os.fdopen(handle, "rb"):
        status = os.fstat(handle)
        start, here = since.bytes, (status.st_dev, status.st_ino)
        if here != since.file or status.st_size < start:
            end = LogMark(here, status.st_size)
            return LogNews(end, lost="its control.log was replaced or cut")
        if status.st_size - start > _MOST_BYTES:
            return LogNews(LogMark(here, status.st_size), lost="its control.log grew too fast to be read")
        try:
            text = os.pread(handle, status.st_size - start, start)
        except OSError as error:
            return LogNews(lost=f"its control.log cannot be read ({error.strerror})")
    text = text[: text.rfind(b"\n") + 1]
    commands = [match.decode(errors="replace") for match in _COMMAND.findall(text)]
    return LogNews(
        LogMark(here, start + len(text)),
        tuple(command for command in commands if not _HARMLESS.fullmatch(command)),
        bool(commands),
        "its control.log was let go before it was read" if b"\0" in text else "",
    )


def failed_server(log: Path, since: LogMark) -> str:
    """Which server ended with an error after a mark, as the daemon wrote it; empty: none.

    Also a server whose program is missing ends like this; one that was killed has status 0.
    """
    try:
        with log.open("rb") as file:
            file.seek(since.bytes)
            found = _FAILED_SERVER.findall(file.read(_MOST_BYTES))
    except OSError:
        return ""
    return found[-1].decode() if found else ""


def no_room(log: Path) -> str:
    """Why the daemon may not be able to write to its log, a clause; empty if it is."""
    try:
        found = os.statvfs(log.parent)
    except OSError as error:
        return f"its control.log cannot be read ({error.strerror})"
    full = found.f_bavail * found.f_frsize < _LEAST_ROOM_BYTES
    return "the file system of its control.log is full" if full else ""


class _Followed(Struct):
    """How far a log was read. settled: from where on; changed: what has been found since, a sentence."""

    settled: LogMark
    end: LogMark
    changed: str = ""


class Commands(Struct):
    """What daemons have been told since their limits were set. It remembers how far it has read."""

    _followed: dict[DeviceUuid, _Followed] = field(default_factory=dict)

    def look(self, paths: DaemonPaths, settled: LogMark | None) -> tuple[str, str]:
        """``DaemonState.unsettled`` and ``doubt``. Call it after the daemon has answered a question: that has
        to stand in its log. settled: the end of the log when its limits were set and read back.
        """
        if settled is None:
            trouble = self._trouble(paths)
            return ("", trouble) if trouble else ("it is not known what it was told", "")
        now = self._followed.get(paths.device)
        if now is None or now.settled != settled:
            now = self._followed[paths.device] = _Followed(settled, settled)
        news = read_log(paths.log / "control.log", now.end)
        trouble = self._trouble(paths, news)
        if news.end is not None:
            now.end = news.end
        if lost := news.lost or trouble:
            now.changed = now.changed or f"{lost}: nobody knows what it was told"
        if news.changes:
            now.changed = f"somebody else told it {shown(news.changes[-1])}"
        return ("", f"{trouble}: nobody knows what it is told") if trouble else (now.changed, "")

    def _trouble(self, paths: DaemonPaths, news: LogNews | None = None) -> str:
        """Why its log says nothing now, whatever is set, a clause."""
        log = paths.log / "control.log"
        if full := no_room(log):
            return full
        if news is None:
            return "" if end_of_log(log) else "its control.log cannot be read"
        if news.end is None:
            return news.lost
        return "" if news.asked or news.lost else "it does not write to its control.log"


def shown(command: str) -> str:
    """A command in quotation marks, cut where it is long."""
    return repr(command[:_SHOWN])


LARGEST_BYTES = 4 * MIB
"""A log that takes more space than this is cut."""
KEPT_BYTES = MIB
"""What stays of it, its end."""

_READ_BYTES, _MOST_READS = 2**16, 64
"""More than a pipe holds (1 MiB), and not for ever."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK_BYTES = 512
"""The unit of ``st_blocks``, whatever the file system."""


def cut_logs(paths: DaemonPaths) -> None:
    """Let go of the beginning of each log that has grown. A log that cannot be cut stays as it is: that its
    file system is full is said elsewhere.
    """
    for log in (paths.log / "control.log", paths.log / "server.log", paths.server_log):
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = open_of_kind(log, stat.S_ISREG, flags)
            try:
                _cut(handle)
            finally:
                os.close(handle)


def empty_full_pipe(paths: DaemonPaths, descriptors: Path) -> bool:
    """Empty ``pipe/log`` if it is full; whether it was. descriptors: ``/proc/PID/fd`` of the daemon.

    A daemon (535, 550, 555) writes each line of its log into that pipe and reads it there again; so do
    clients, and everybody who has the directory may. Where a tenant fills it, the daemon waits for ever. Root
    of a container can also remove its name, and keep it open: only the daemon's own descriptor leads there.
    """
    try:
        device = paths.pipe.stat().st_dev
        opened = [path for path in descriptors.iterdir() if _is_pipe_on(path, device)]
    except OSError:
        return False
    return True in [_emptied(path) for path in opened]  # each, also after one that was full


def _is_pipe_on(descriptor: Path, device: int) -> bool:
    """Whether it is a pipe with a name on this file system; those without have one of their own."""
    try:
        status = descriptor.stat()
    except OSError:
        return False
    return stat.S_ISFIFO(status.st_mode) and status.st_dev == device


def _emptied(pipe: Path) -> bool:
    try:
        handle = open_of_kind(pipe, stat.S_ISFIFO, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if select.select((), (handle,), (), 0)[1]:
            return False
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_READS):
                os.read(handle, _READ_BYTES)
    finally:
        os.close(handle)
    return True


def _cut(handle: int) -> None:
    status = os.fstat(handle)
    if status.st_blocks * _BLOCK_BYTES <= LARGEST_BYTES:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    end = ctypes.c_int64(max(0, status.st_size - KEPT_BYTES))
    if libc.fallocate64(handle, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(0), end):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_TAIL_BYTES = 16384
_CHATTER = re.compile(
    r"(?:\] |^)(?:Accepting connection\.\.\.|User did not send valid credentials|NEW UI|Removed Shm file .*)$"
)
_ASKED = re.compile(r"(?:\] |^)Cmd:")
_ANSWERED = re.compile(r"(?:\] |^)UI closed$")
_EVENT = re.compile(r"exited with|[Ff]ail|[Ee]rror")
"""What happened while the connection was open, such as the end of a server that was to be started."""


def last_line(path: Path, otherwise: str = "no reason given") -> str:
    """The last useful line of a log, or another text if there is none.

    What is between a command and the end of its connection is mostly its answer; Partage asks again and
    again.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return otherwise
    found, asked = otherwise, False
    for line in text.splitlines():
        if _ASKED.search(line) or _ANSWERED.search(line):
            asked = _ASKED.search(line) is not None
        elif line.strip() and (_EVENT.search(line) or not (asked or _CHATTER.search(line))):
            found = line.strip()[:400]
    return found
