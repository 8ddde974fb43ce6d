"""The jobs of a compute node whose memory the driver limits, for the agent's ``MemoryLimitsObserver``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from msgspec import Struct, field

from partage.agent.observers.memory_limits import LimitPlaces
from partage.model.driver_limit import LimitAt, SeenLimit
from partage.model.ids import GpuUuid
from partage.plan.report import JobLimit
from partage.slurm.decide.job_limits import counted_of_jobs, job_limits, places_of_waiting, wanted_of_jobs
from partage.slurm.host.job_records import JobRecords, Records
from partage.slurm.model import JobId

log = logging.getLogger(__name__)


class JobHolders(Struct):
    """The prolog's records, read anew at each look. run_dir: where they are. counted: GPUs whose memory the
    kernel counts for each cgroup. changed: called when something else is to be said. rows: what was read.
    """

    run_dir: Path
    counted: Callable[[], Collection[GpuUuid]]
    changed: Callable[[], None]
    rows: tuple[JobLimit, ...] = ()
    _records: Records = field(default_factory=Records)
    _begun: frozenset[JobId] = frozenset()
    _blind: bool = False

    def held(self) -> bool:
        """Nobody says when a job begins, so it is looked at regularly."""
        return True

    async def places(self) -> LimitPlaces:
        """See ``LimitHolders``."""
        try:
            self._records, self._begun = await asyncio.to_thread(self._read)
            self._blind = False
        except OSError as error:  # the jobs of the look before are still said, and nothing of them is hard
            if not self._blind:
                log.warning("records of jobs cannot be read", extra={"reason": error.strerror})
            self._blind = True
        jobs = self._records.jobs
        others = places_of_waiting(jobs, self._begun) | counted_of_jobs(jobs, self.counted())
        return LimitPlaces(wanted_of_jobs(jobs, self._begun), others)

    def note(self, seen: Mapping[LimitAt, SeenLimit], late: Collection[LimitAt]) -> None:
        """See ``LimitHolders``."""
        unknown = self._blind or bool(self._records.unreadable)
        rows = job_limits(self._records.jobs, self._begun, seen, late, unknown=unknown)
        if rows != self.rows:
            self.rows = rows
            self.changed()

    def _read(self) -> tuple[Records, frozenset[JobId]]:
        """Without the directory there is no job. Raises OSError where it cannot be read."""
        try:
            with JobRecords(self.run_dir) as records:
                begun = records.limits_held()  # first: a job that begins meanwhile counts the next time
                return records.read(), begun
        except FileNotFoundError:
            return Records(), frozenset()
