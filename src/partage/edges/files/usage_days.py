"""The agent's history of use on disk: ``<state-dir>/history``, a file for each day. All calls block.

A file is replaced atomically: an agent that is killed leaves the old or the new one. One that cannot be used
is set aside as ``<name>.corrupt`` (the last of them is kept), and costs a day.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from pathlib import Path

from msgspec import Raw

from partage.codec.values import CodecError, decode
from partage.edges.host.read_file import files_below, read_regular
from partage.edges.host.replace_file import replace_file
from partage.errors import InputError, Problem, wrong_input
from partage.model.usage_day import UsageDay
from partage.plan.history.fitting import LIMIT_BYTES, RUNNING_LIMIT_BYTES, fitting
from partage.values import Frozen

DIRECTORY = "history"
_NAME = re.compile(r"\d{4}-\d\d-\d\d\.json", re.ASCII)
_LARGEST_BYTES = LIMIT_BYTES + RUNNING_LIMIT_BYTES
_WHERE = "an agent keeps one unless it runs with --history 0; --state-dir says where"
_LARGEST_ANSWER_BYTES = 64 * 2**20


def date_of(now_s: float) -> str:
    """The day (UTC) of a moment: ``2026-11-22``."""
    return time.strftime("%Y-%m-%d", time.gmtime(now_s))


class LoadedDay(Frozen):
    """day: None: there is none that can be used. problem: a sentence for the log; empty: all is well."""

    day: UsageDay | None = None
    problem: str = ""


class UsageDays:
    """The days of this node. keep_days: today included."""

    def __init__(self, state_dir: Path, keep_days: int) -> None:
        self.directory = state_dir / DIRECTORY
        self._keep_days = keep_days

    def last(self) -> LoadedDay:
        """The latest day, for the agent that runs next."""
        names = _names(self.directory)
        return self.read(names[-1].removesuffix(".json")) if names else LoadedDay()

    def read(self, day: str) -> LoadedDay:
        """A day. A file that cannot be used is set aside. Never raises."""
        path = self.directory / f"{day}.json"
        try:
            return LoadedDay(_decode(read_regular(path, _LARGEST_BYTES + 1)))
        except FileNotFoundError:
            return LoadedDay()
        except OSError as error:
            return LoadedDay(problem=f"cannot read {path}: {error.strerror}")
        except ValueError as error:
            aside = path.with_suffix(".corrupt")
            try:
                path.replace(aside)
            except OSError as failed:
                return LoadedDay(
                    problem=f"{path} cannot be used: {error}; it cannot be set aside: {failed.strerror}"
                )
            return LoadedDay(problem=f"{path} cannot be used: {error}; it was set aside as {aside.name}")

    def write(self, day: UsageDay) -> str:
        """Replace the file of a day, and remove what is too old. Why that failed; empty if it did not."""
        path = self.directory / f"{day.date}.json"
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, fitting(day))
        except CodecError as error:
            return f"the history of {day.date} cannot be written: {error}"
        except OSError as error:
            return f"cannot write {path}: {error.strerror}"
        self.prune(day.date)
        return ""

    def prune(self, today: str) -> None:
        """Remove what is older than the days that are kept, and what is more than them: a clock that was
        wrong leaves files of days to come."""
        others = [name for name in _names(self.directory) if name != f"{today}.json"]
        fresh = [name for name in others if _age(name, today) < self._keep_days]
        kept = fresh[max(0, len(fresh) - self._keep_days + 1) :]
        for name in set(others).difference(kept):
            with suppress(OSError):
                (self.directory / name).unlink()

    def texts(self) -> Iterable[Raw]:
        """The files as they are, the oldest first. Those that cannot be used are left out."""
        for name in _names(self.directory):
            with suppress(OSError, ValueError):
                content = read_regular(self.directory / name, _LARGEST_BYTES + 1)
                _decode(content)
                yield Raw(content)


def read_usage_days(path: Path) -> tuple[UsageDay, ...]:
    """The days of a file or of a directory and those below it: files of days, and answers of
    ``/history.json``. Raises InputError with everything that cannot be used.
    """
    files = _files_of(path)
    days: list[UsageDay] = []
    problems: list[Problem] = []
    for file in files:
        try:
            days += _days_of(read_regular(file, _LARGEST_ANSWER_BYTES))
        except FileNotFoundError:
            problems.append(Problem(str(file), "", "error", "there is no such file or directory", _WHERE))
        except OSError as error:
            problems.append(Problem(str(file), "", "error", f"cannot be read: {error.strerror}"))
        except ValueError as error:
            hint = "take the files of <state-dir>/history, or answers of /history.json"
            problems.append(Problem(str(file), "", "error", f"is no history of use: {error}", hint))
    if problems:
        raise InputError(problems)
    return tuple(days)


class _Answer(Frozen):
    """The part of ``/history.json`` that counts."""

    days: tuple[UsageDay, ...]


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    inner = path / DIRECTORY  # of a state directory
    files = files_below(inner if inner.is_dir() else path, ".json")
    if not files:
        raise wrong_input(path, "has no history in it", _WHERE)
    return files


def _days_of(content: bytes) -> tuple[UsageDay, ...]:
    """Raises ValueError."""
    try:
        return decode(_Answer, content, strict=False).days
    except CodecError:
        return (_decode(content),)


def _decode(content: bytes) -> UsageDay:
    """Raises ValueError."""
    if len(content) > _LARGEST_BYTES:
        raise ValueError(f"it is longer than {_LARGEST_BYTES} bytes")
    return decode(UsageDay, content, strict=False)


def _names(directory: Path) -> list[str]:
    """Of the files of days, the oldest first."""
    with suppress(OSError):
        return sorted(path.name for path in directory.iterdir() if _NAME.fullmatch(path.name))
    return []


def _age(name: str, today: str) -> int:
    """Days from one to the other; that of no date is old."""
    try:
        return (date.fromisoformat(today) - date.fromisoformat(name.removesuffix(".json"))).days
    except ValueError:
        return 10**6
