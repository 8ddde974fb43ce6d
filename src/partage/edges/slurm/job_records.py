"""The records of a node's jobs: ``<run-dir>/jobs/<job id>.json``. Root writes them, everyone may read them.

They are gone after a reboot, as the jobs are.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from partage.codec.values import CodecError, decode, encode
from partage.edges.slurm.root_directory import RootDirectory
from partage.model.slurm_job import RECORD_VERSION, JobId, JobRecord

_LOCK = ".lock"
_NAME = re.compile(r"([1-9]\d{0,9})\.json", re.ASCII)
_LARGEST_BYTES = 256 * 2**10
_BETWEEN_S = 0.005


def read_jobs(run_dir: Path) -> tuple[JobRecord, ...]:
    """The jobs on this node that have GPUs, by number; none where there is no directory. Never raises: what
    cannot be read is left out.
    """
    try:
        with JobRecords(run_dir) as records:
            return records.all()
    except OSError:
        return ()


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

    def all(self) -> tuple[JobRecord, ...]:
        """All that can be read, by number."""
        ids = sorted(
            JobId(int(match[1])) for name in self._directory.names() if (match := _NAME.fullmatch(name))
        )
        return tuple(found for job in ids if (found := self.get(job)) is not None)

    def get(self, job: JobId) -> JobRecord | None:
        """One of them; None: there is none that can be read."""
        try:
            found = decode(JobRecord, self._directory.read(_file(job), _LARGEST_BYTES))
        except (OSError, CodecError):
            return None
        return found if found.version == RECORD_VERSION and found.job == job else None

    def put(self, record: JobRecord) -> None:
        """Write one."""
        self._directory.write(_file(record.job), encode(record))

    def remove(self, job: JobId) -> bool:
        """Remove one; whether there was one."""
        return self._directory.remove(_file(job))


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
