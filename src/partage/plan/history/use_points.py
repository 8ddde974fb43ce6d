"""From what is used now to the samples of the history. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from partage.model.ids import DeviceUuid
from partage.model.samples import Samples
from partage.plan.history.evidence import TAKEN_FOR_ALL, workload_of, workload_of_job
from partage.plan.usage import ContainerUse, DeviceUse, NodeUse
from partage.values import Frozen


class UsePoint(Frozen):
    """What one container or job uses of one device now.

    run: the same for all samples of one container on one device. container: the same on all its devices;
    empty: it has one. used_bytes: None: not known, or it has ended. peak_bytes: as in ``plan.usage.Amount``.
    visible_bytes: what a program in it takes for the whole memory; 0: not known. partly: the figures are a
    minimum.
    """

    run: str
    workload: str
    container: str = ""
    used_bytes: int | None = None
    peak_bytes: int | None = None
    sm: float | None = None
    share_bytes: int | None = None
    visible_bytes: int = 0
    processes: int = 0
    partly: bool = False


class JobName(Frozen):
    """A job of Slurm as people know it: its user, and the name that the user gave it."""

    user: str
    name: str


def use_points(use: NodeUse, samples: Samples, jobs: Mapping[str, JobName]) -> Iterator[UsePoint]:
    """The samples of a node. jobs: by number; one without a name is left out."""
    sizes = device_sizes(samples)
    for container in use.containers:
        size, who = sizes.get(container.device, 0), container.holder
        yield _point(
            container.amount,
            device=container.device,
            container=f"{who.namespace}/{who.pod}/{who.container}",
            workload=f"{who.namespace}/{workload_of(who.pod)}/{who.container}",
            share_bytes=container.share_bytes,
            visible_bytes=_visible(container, size),
        )
    for job in use.jobs:
        if (named := jobs.get(job.job)) is not None:
            yield _point(
                job.amount,
                device=job.device,
                container=f"job {job.job}",
                workload=workload_of_job(named.user, named.name),
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


def _point(
    amount: DeviceUse,
    *,
    device: str,
    container: str,
    workload: str,
    share_bytes: int | None = None,
    visible_bytes: int = 0,
) -> UsePoint:
    return UsePoint(
        run=f"{device} {container}",
        workload=workload,
        container=container,
        used_bytes=amount.used_bytes,
        peak_bytes=amount.peak_bytes,
        sm=amount.sm,
        share_bytes=share_bytes,
        visible_bytes=visible_bytes,
        processes=amount.processes,
        partly=amount.partly,
    )
