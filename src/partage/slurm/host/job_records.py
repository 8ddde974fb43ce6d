"""The records of a node's jobs: ``<run-dir>/jobs/<job id>.json``. Root writes them, everyone may read them.

Beside that of a job with memory limits are ``<job id>.limits``, for the plugin that sets them, and
``<job id>.held``, which the plugin makes once they are in force.

They are gone after a reboot, as the jobs are.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from msgspec import field

from partage.codec.values import CodecError, decode, encode
from partage.slurm.host.root_directory import RootDirectory
from partage.slurm.model import RECORD_VERSION, JobId, JobRecord
from partage.slurm.text.limits import limits_text
from partage.values import Frozen

_LOCK = ".lock"
_NAME = re.compile(r"([1-9]\d{0,9})\.json", re.ASCII)
_HELD = re.compile(r"([1-9]\d{0,9})\.held", re.ASCII)
_LARGEST_BYTES = 256 * 2**10
_BETWEEN_S = 0.005


def read_records(run_dir: Path) -> Records:
    """All records, with those that cannot be read; none where there is no directory. Never raises."""
    try:
        with JobRecords(run_dir) as records:
            return records.read()
    except OSError:
        return Records()


class Records(Frozen):
    """jobs: by number. unreadable: why a record cannot be read, a sentence with its path. Such a job has
    GPUs, and nobody knows which.
    """

    jobs: tuple[JobRecord, ...] = ()
    unreadable: Mapping[JobId, str] = field(default_factory=dict)

    def without(self, *jobs: JobId) -> Records:
        """The others."""
        left = {job: why for job, why in self.unreadable.items() if job not in jobs}
        return Records(tuple(job for job in self.jobs if job.job not in jobs), left)

    def same(self, job: JobId, others: Records) -> bool:
        """Whether these have the same of a job as ``others``."""
        return self.of(job) == others.of(job)

    def of(self, job: JobId) -> JobRecord | str | None:
        """The record of a job; a sentence: why it cannot be read; None: there is none."""
        return next((record for record in self.jobs if record.job == job), None) or self.unreadable.get(job)


class JobRecords:
    """The directory of the records; use as a context manager. All calls block, and raise OSError.

    make: create the directory. PermissionError: another user could have written in it.
    """

    def __init__(self, run_dir: Path, *, make: bool = False) -> None:
        self._directory = RootDirectory(run_dir / "jobs", make=make)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._directory.__exit__()

    @contextlib.contextmanager
    def locked(self, limit_s: float) -> Iterator[None]:
        """Hold the records: one prolog or epilog at a time. Raises TimeoutError after ``limit_s``."""
        handle = self._directory.open_lock(_LOCK)
        try:
            _take(handle, limit_s)
            yield
        finally:
            os.close(handle)

    def asked_within(self, pause_s: float) -> bool:
        """Whether this was called in the last ``pause_s``, by any process. The lock's own time says it."""
        handle = self._directory.open_lock(_LOCK)
        try:
            if abs(time.time() - os.fstat(handle).st_mtime) < pause_s:
                return True
            os.utime(handle)
        finally:
            os.close(handle)
        return False

    def read(self) -> Records:
        """All of them."""
        names = self._directory.names()
        return self._records(JobId(int(match[1])) for name in names if (match := _NAME.fullmatch(name)))

    def of_task(self, job: JobId) -> Records:
        """Those for a task with this SLURM_JOB_ID: the job's own, else those of components that it leads."""
        own = self._records([job])
        if own.jobs or own.unreadable:
            return own
        return Records(tuple(record for record in self.read().jobs if record.leader == job))

    def _records(self, jobs: Iterable[JobId]) -> Records:
        records: list[JobRecord] = []
        unreadable: dict[JobId, str] = {}
        for job in sorted(jobs):
            try:
                records.append(self._read(job))
            except FileNotFoundError:
                continue  # its job has ended meanwhile
            except (OSError, CodecError) as error:
                why = getattr(error, "strerror", None) or error
                unreadable[job] = f"{self._directory.path / _file(job)} cannot be read: {why}"
        return Records(tuple(records), unreadable)

    def _read(self, job: JobId) -> JobRecord:
        # Not strict: a job that an older Partage started may still run, and its record has no later keys.
        record = decode(JobRecord, self._directory.read(_file(job), _LARGEST_BYTES), strict=False)
        if record.version != RECORD_VERSION:
            raise CodecError(f"its version is {record.version}, not {RECORD_VERSION}")
        if record.job != job:
            raise CodecError(f"it is the record of job {record.job}")
        return record

    def put(self, record: JobRecord) -> None:
        """Write one, with the job's memory limits. That they are in force is to be seen anew."""
        self._remove_limits(record.job)
        if text := limits_text(record):
            self._directory.write(f"{record.job}.limits", text.encode())
        self._directory.write(_file(record.job), encode(record))

    def remove(self, job: JobId) -> bool:
        """Remove one, with the job's memory limits; whether there was one."""
        self._remove_limits(job)
        return self._directory.remove(_file(job))

    def limits_held(self) -> frozenset[JobId]:
        """The jobs whose memory limits were set and read back. The directory is root's."""
        found = (_HELD.fullmatch(name) for name in self._directory.names())
        return frozenset(JobId(int(match[1])) for match in found if match)

    def _remove_limits(self, job: JobId) -> None:
        for name in (f"{job}.held", f"{job}.limits"):
            self._directory.remove(name)


def _file(job: JobId) -> str:
    return f"{job}.json"


def _take(handle: int, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise TimeoutError(f"another prolog or epilog holds the records for {limit_s:g} s") from None
            time.sleep(_BETWEEN_S)
        else:
            return
