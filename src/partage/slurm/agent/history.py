"""What the jobs of a compute node use, for its history and metrics. Slurm is asked for a job's name once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

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
from partage.slurm.model import JobRecord, LiveJob
from partage.values import Frozen

log = logging.getLogger(__name__)

_ASKED_AGAIN_S = 600.0
"""How soon Slurm is asked again for a job whose name it did not say."""
_NO_SHARES = ShareGrants({}, frozenset(), frozenset())


class _KnownJob(Frozen):
    """What is known of a job besides what its cgroup is called by."""

    number: str
    name: JobName


class JobUsageObserver(Struct):
    """What the jobs use now, and the names of those that do. run_dir: where the prolog's records are.
    counted: what is counted for their cgroups (``MemoryLimitsObserver.used``).

    seen: the last answer, and the last hour. A job is told by its number, also where its cgroup is called by
    its SLUID.
    """

    hardware: Hardware
    control: SlurmControl
    node: str
    run_dir: Path
    counted: Callable[[], Mapping[LimitAt, int]] = dict
    seen: UseSeen = field(default_factory=lambda: UseSeen(began_s=time.monotonic()))
    _known: Mapping[str, _KnownJob] = field(default_factory=dict)
    _asked_s: dict[str, float] = field(default_factory=dict)

    def wanted(self) -> bool:
        """Whether a job has GPUs, by the records of the prolog."""
        found = read_records(self.run_dir)
        return bool(found.jobs or found.unreadable)

    def names_now(self) -> Mapping[str, JobName]:
        """By number, of those whose name is known."""
        return {job.number: job.name for job in self._known.values()}

    async def look(self) -> UsageObservation | None:
        """What is used; None: the hardware does not answer."""
        at_s = time.monotonic()
        try:
            samples = await self.hardware.samples()
        except HardwareError:
            return None
        use = usage_of(samples, {}, _NO_SHARES, counted=self.counted())
        await self._learn_names({job.job for job in use.jobs})
        jobs = (
            replace(job, job=known.number) if (known := self._known.get(job.job)) else job for job in use.jobs
        )
        use = replace(use, jobs=tuple(jobs))
        found, hour = UsageObservation(at_s, samples, use), with_samples(self.seen.hour, samples, at_s)
        self.seen = UseSeen(self.seen.began_s, at_s, found, hour)
        return found

    def fresh(self, wait_s: float, loop: asyncio.AbstractEventLoop) -> UsageObservation | None:
        """As ``look``, from another thread; the last answer where that takes longer."""
        return answer_in(wait_s, loop, self.look()) or self.seen.found

    async def _learn_names(self, cgroups: set[str]) -> None:
        known = {cgroup: job for cgroup, job in self._known.items() if cgroup in cgroups}
        self._asked_s = {cgroup: at_s for cgroup, at_s in self._asked_s.items() if cgroup in cgroups}
        now_s = time.monotonic()
        unknown = {
            cgroup
            for cgroup in cgroups - known.keys()
            if now_s - self._asked_s.get(cgroup, -1e9) > _ASKED_AGAIN_S
        }
        if unknown:
            self._asked_s |= dict.fromkeys(unknown, now_s)
            known |= await asyncio.to_thread(self._ask, unknown)
        self._known = known

    def _ask(self, unknown: set[str]) -> dict[str, _KnownJob]:
        """What Slurm says; else the user, whom the prolog has written down."""
        jobs: list[tuple[JobRecord | LiveJob, str]] = [
            (record, "") for record in read_records(self.run_dir).jobs
        ]
        try:
            jobs += [(job, job.name) for job in self.control.jobs(self.node)]
        except PartageError as error:
            log.info("names of jobs are not known", extra={"reason": str(error)})
        return {
            cgroup: _KnownJob(str(job.job), JobName(job.user, name))
            for job, name in jobs
            if job.user
            for cgroup in unknown.intersection(job.cgroups)
        }
