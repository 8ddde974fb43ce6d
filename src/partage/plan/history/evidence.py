"""What was observed of a workload: from what is used now to samples, and from what its containers used over
time to one summary. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil

from partage.model.ids import DeviceUuid
from partage.model.samples import Samples
from partage.model.share import Guarantee
from partage.plan.usage import ContainerUse, DeviceUse, NodeUse
from partage.values import Frozen, grouped

UNSETTLED = 0.25
"""The lowest part of a run does not count for steadiness: programs load first, some for long, and a container
that was restarted loads again."""
TAKEN_FOR_ALL = (Guarantee.HARD, Guarantee.GUARDED, Guarantee.ADVISORY)
"""Guarantees under which a program takes its share for the whole memory: a limit, or a framework's cap."""
BUSY_PART = 0.95
"""The part of the samples that is not above the activity by which a share is sized."""
_LETTERS = "[bcdfghjklmnpqrstvwxz2456789]"
_HASHES = re.compile(rf"(-{_LETTERS}{{6,10}}|-\d{{8}})?-{_LETTERS}{{5}}$|-\d+$", re.ASCII)
"""What controllers add to their own name: a Deployment two hashes, a DaemonSet or Job one, a CronJob the
minute since 1970 and a hash, a StatefulSet a number. The letters are those that Kubernetes uses
(apimachinery: rand.SafeEncodeString)."""
JOB = "slurm:"
"""How the workload of a Slurm job begins; no namespace has a colon."""


class OfWorkload(Frozen, kw_only=True):
    """What was seen of a workload. share_bytes: memory of the shares of one container; None: not known.
    processes: the most at a time.
    """

    workload: str
    share_bytes: int | None = None
    processes: int = 1


class Run(OfWorkload, kw_only=True):
    """What one container used of one GPU or MIG device.

    at_s, used_bytes: the samples, by time; equally many. peak_bytes: the highest since the container began,
    as the exporter saw it every second; None: only the samples are known. sm: part of the GPU's time, where
    it is known. device_bytes: memory of the device. limited: a program takes the share for the whole memory
    (``TAKEN_FOR_ALL``). container: the same for what one container used of several devices; empty: nothing
    else is of it.
    """

    at_s: tuple[float, ...]
    used_bytes: tuple[int, ...]
    device_bytes: int
    peak_bytes: int | None = None
    sm: tuple[float, ...] = ()
    limited: bool = False
    container: str = ""

    @property
    def visible_bytes(self) -> int:
        """What a program in it takes for the whole memory."""
        return self.share_bytes if self.limited and self.share_bytes else self.device_bytes


class Evidence(OfWorkload, kw_only=True):
    """What was observed of one workload.

    runs: containers. samples: of all of them. span_s: from the first to the last sample. coverage: part of
    the time between them that has samples. peak_bytes: the highest that a container used; peak_at_s: when;
    steady: relative distance of the highest use and the one that three quarters of the samples reach, in the
    run with the peak. exact: the peaks are those of the exporter; else a spike between two samples may be
    missing. growing: the last quarter of the longest run is its highest, and rises. sm_p95: None: not known.
    full: highest part of the visible memory that was used. coarse: the samples were not kept, only what they
    came to. at_once: the most containers at the same time. devices: the most that one of them used at the
    same time.
    """

    runs: int
    samples: int
    span_s: float
    coverage: float
    peak_bytes: int
    peak_at_s: float
    steady: float
    exact: bool
    growing: bool
    full: float
    sm_p95: float | None = None
    coarse: bool = False
    at_once: int = 1
    devices: int = 1


def workload_of(pod: str) -> str:
    """The name of the controller that probably made the pod: ``train-7d4b9c6f5d-x2x4k`` is of ``train``."""
    return _HASHES.sub("", pod) or pod


def workload_of_job(user: str, name: str) -> str:
    """The name of a Slurm job's workload: ``slurm:alice/train``. Jobs of a user whose names are not known are
    one: ``slurm:alice/*``."""
    return f"{JOB}{user}/{name or '*'}"


def gather(runs: Iterable[Run], step_s: float | None = None) -> tuple[Evidence, ...]:
    """The evidence of each workload, by name. step_s: usual distance of samples; None: taken from them."""
    by_name = grouped((run.workload, run) for run in runs if run.used_bytes)
    return tuple(_evidence(name, by_name[name], step_s) for name in sorted(by_name))


def _evidence(name: str, runs: Sequence[Run], step_s: float | None) -> Evidence:
    highest = max(runs, key=_peak)
    longest = max(runs, key=lambda run: run.at_s[-1] - run.at_s[0])
    first, last = min(run.at_s[0] for run in runs), max(run.at_s[-1] for run in runs)
    activity = sorted(value for run in runs for value in run.sm)
    shares = [run.share_bytes for run in runs if run.share_bytes is not None]
    top = max(range(len(highest.used_bytes)), key=highest.used_bytes.__getitem__)
    devices = max(_at_once(container) for container in _containers(runs))
    return Evidence(
        workload=name,
        runs=sum(-(-len(container) // _at_once(container)) for container in _containers(runs)),
        samples=sum(len(run.at_s) for run in runs),
        span_s=last - first,
        coverage=_coverage(runs, step_s),
        peak_bytes=_peak(highest),
        peak_at_s=highest.at_s[top],
        steady=spread(highest.used_bytes, highest.used_bytes, highest.peak_bytes or 0),
        exact=all(run.peak_bytes is not None for run in runs),
        growing=grows(longest.used_bytes),
        full=max(_peak(run) / run.visible_bytes for run in runs if run.visible_bytes),
        sm_p95=quantile(activity, BUSY_PART),
        share_bytes=max(shares, default=None),
        processes=max(run.processes for run in runs),
        at_once=-(-_at_once(runs) // devices),
        devices=devices,
    )


def _containers(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs of each container; those that used nothing only where there are no others."""
    found = grouped((run.container or str(number), run) for number, run in enumerate(runs))
    return [[run for run in some if _peak(run)] or some[:1] for some in found.values()]


def _at_once(runs: Sequence[Run]) -> int:
    begins, ends = sorted(run.at_s[0] for run in runs), sorted(run.at_s[-1] for run in runs)
    return max(number - bisect_left(ends, at_s) for number, at_s in enumerate(begins, 1))


def _peak(run: Run) -> int:
    return max(run.peak_bytes or 0, *run.used_bytes)


def spread(lows: Sequence[int], highs: Sequence[int], peak_bytes: int) -> float:
    """Relative distance of highest and lowest use of a run, without its lowest part (``UNSETTLED``). lows,
    highs: of parts of equal length, or twice the samples. peak_bytes: of the whole run; 0: not known.
    """
    highest = max(peak_bytes, 0, *highs)
    lowest = sorted(lows)[int(len(lows) * UNSETTLED)] if lows else highest
    return (highest - lowest) / highest if highest else 0.0


def grows(highs: Sequence[int]) -> bool:
    """Whether a run still grows at its end: its last quarter is higher than the one before, and that is
    higher than the one before it. Programs that have loaded everything do not. highs: as in ``spread``."""
    if len(highs) < 8:
        return False
    part = len(highs) // 4
    second, third, fourth = (max(highs[part * n : part * (n + 1)]) for n in (1, 2, 3))
    return fourth > third * 1.01 and third > second * 1.01


def _coverage(runs: Sequence[Run], step_s: float | None) -> float:
    """Part of the runs' time in which there are samples."""
    expected = present = 0.0
    for run in runs:
        gaps = [after - before for before, after in zip(run.at_s, run.at_s[1:], strict=False)]
        usual = step_s or (sorted(gaps)[len(gaps) // 2] if gaps else 1.0)
        expected += run.at_s[-1] - run.at_s[0] + usual
        present += sum(min(gap, 1.5 * usual) for gap in gaps) + usual
    return min(1.0, present / expected) if expected else 1.0


def quantile(ordered: Sequence[float], part: float) -> float | None:
    """The smallest value that this part of the values (0 to 1) does not exceed; None of no values."""
    return ordered[min(len(ordered) - 1, ceil(part * len(ordered)) - 1)] if ordered else None


class UsePoint(Frozen):
    """What one container or job uses of one device now.

    run: the same for all samples of one container on one device. container: the same on all its devices;
    empty: it has one. amount: its used_bytes are None, too, where it has ended. visible_bytes: what a program
    in it takes for the whole memory; 0: not known.
    """

    run: str
    workload: str
    amount: DeviceUse
    container: str = ""
    share_bytes: int | None = None
    visible_bytes: int = 0


class JobName(Frozen):
    """A job of Slurm as people know it: its user, and the name that the user gave it."""

    user: str
    name: str


def use_points(use: NodeUse, samples: Samples, jobs: Mapping[str, JobName]) -> Iterator[UsePoint]:
    """The samples of a node. jobs: by number; one without a name is left out."""
    sizes = device_sizes(samples)
    for container in use.containers:
        who = container.holder
        name = f"{who.namespace}/{who.pod}/{who.container}"
        yield UsePoint(
            run=f"{container.device} {name}",
            workload=f"{who.namespace}/{workload_of(who.pod)}/{who.container}",
            amount=container.amount,
            container=name,
            share_bytes=container.share_bytes,
            visible_bytes=_visible(container, sizes.get(container.device, 0)),
        )
    for job in use.jobs:
        if (named := jobs.get(job.job)) is not None:
            yield UsePoint(
                run=f"{job.device} job {job.job}",
                workload=workload_of_job(named.user, named.name),
                amount=job.amount,
                container=f"job {job.job}",
                visible_bytes=sizes.get(job.device, 0),
            )


def device_sizes(samples: Samples) -> dict[DeviceUuid, int]:
    """The memory of GPUs and MIG devices."""
    found: dict[DeviceUuid, int] = {
        sample.gpu: sample.memory.total_bytes for sample in samples.gpus if sample.memory is not None
    }
    for mig in samples.migs:
        if mig.memory is not None:
            found[mig.device] = mig.memory.total_bytes
    return found


def _visible(use: ContainerUse, size: int) -> int:
    return use.share_bytes if use.guarantee in TAKEN_FOR_ALL and use.share_bytes else size
