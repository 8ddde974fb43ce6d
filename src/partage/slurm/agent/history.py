"""What the jobs of a compute node use, for its history and metrics. Slurm is asked for a job's name once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field

from partage.agent.observers.usage import answer_in
from partage.agent.status.status import UsageObservation, UseSeen
from partage.edges.hardware.port import Hardware
from partage.errors import HardwareError, PartageError
from partage.model.driver_limit import LimitAt
from partage.plan.history.evidence import JobName
from partage.plan.serve.watchdog import ShareGrants
from partage.plan.usage import usage_of, with_samples
from partage.slurm.host.control import SlurmControl
from partage.slurm.host.job_records import read_records

log = logging.getLogger(__name__)

_ASKED_AGAIN_S = 600.0
"""How soon Slurm is asked again for a job whose name it did not say."""
_NO_SHARES = ShareGrants({}, frozenset(), frozenset())


class JobUsageObserver(Struct):
    """What the jobs use now, and the names of those that do. run_dir: where the prolog's records are.
    counted: what is counted for their cgroups (``MemoryLimitsObserver.used``).

    names: by what cgroups call a job. seen: the last answer, and the last hour.
    """

    hardware: Hardware
    control: SlurmControl
    node: str
    run_dir: Path
    counted: Callable[[], Mapping[LimitAt, int]] = dict
    names: dict[str, JobName] = field(default_factory=dict)
    seen: UseSeen = field(default_factory=lambda: UseSeen(began_s=time.monotonic()))
    _asked_s: dict[str, float] = field(default_factory=dict)

    def wanted(self) -> bool:
        """Whether a job has GPUs, by the records of the prolog."""
        found = read_records(self.run_dir)
        return bool(found.jobs or found.unreadable)

    def names_now(self) -> Mapping[str, JobName]:
        """``names`` as they are now, for another thread."""
        return self.names.copy()

    async def look(self) -> UsageObservation | None:
        """What is used; None: the hardware does not answer."""
        at_s = time.monotonic()
        try:
            samples = await self.hardware.samples()
        except HardwareError:
            return None
        use = usage_of(samples, {}, _NO_SHARES, counted=self.counted())
        found, hour = UsageObservation(at_s, samples, use), with_samples(self.seen.hour, samples, at_s)
        self.seen = UseSeen(self.seen.began_s, at_s, found, hour)
        await self._learn_names({job.job for job in use.jobs})
        return found

    def fresh(self, wait_s: float, loop: asyncio.AbstractEventLoop) -> UsageObservation | None:
        """As ``look``, from another thread; the last answer where that takes longer."""
        return answer_in(wait_s, loop, self.look()) or self.seen.found

    async def _learn_names(self, jobs: set[str]) -> None:
        self.names = {job: name for job, name in self.names.items() if job in jobs}
        self._asked_s = {job: at_s for job, at_s in self._asked_s.items() if job in jobs}
        now_s = time.monotonic()
        unknown = {
            job for job in jobs - self.names.keys() if now_s - self._asked_s.get(job, -1e9) > _ASKED_AGAIN_S
        }
        if unknown:
            self._asked_s |= dict.fromkeys(unknown, now_s)
            self.names |= await asyncio.to_thread(self._ask, unknown)

    def _ask(self, unknown: set[str]) -> Mapping[str, JobName]:
        """What Slurm says; else the user, whom the prolog has written down."""
        users = {
            str(cgroup): JobName(record.user, "")
            for record in read_records(self.run_dir).jobs
            if record.user
            for cgroup in record.cgroups
        }
        try:
            said = {
                str(cgroup): JobName(live_job.user, live_job.name)
                for live_job in self.control.jobs(self.node)
                if live_job.user
                for cgroup in live_job.cgroups
            }
        except PartageError as error:
            log.info("names of jobs are not known", extra={"reason": str(error)})
            said = {}
        known = users | said
        return {job: known[job] for job in unknown & known.keys()}
