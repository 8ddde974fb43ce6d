"""The last hour of each GPU, one row a minute, made of samples that were taken anyway. Pure.

Nothing is asked for it, and nothing is stored: it is gone with the agent. Minutes in which nobody took a
sample have no row, so that "not sampled" is never shown as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from partage.model.ids import GpuUuid
from partage.model.samples import GpuSample, Samples
from partage.values import Frozen

MINUTES = 60
"""Rows of one GPU at most: what one GPU costs in memory is bounded by it, about 10 KiB."""

N = TypeVar("N", int, float)


class UseMinute(Frozen):
    """The highest figures of the samples of one minute; None: not measured. minute: number of the minute, on
    the clock of the samples. utilisation: as in ``busy_of``.
    """

    minute: int
    utilisation: float | None = None
    memory_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None


LastHour = Mapping[GpuUuid, tuple[UseMinute, ...]]
"""The rows of each GPU, the oldest first, at most one for each minute of the last hour."""


def with_samples(hour: LastHour, samples: Samples, now_s: float) -> LastHour:
    """The hour until ``now_s``, with these samples in it. GPUs without a row any more are left out."""
    minute = int(now_s // 60)
    oldest = minute - MINUTES + 1
    found = {gpu: tuple(row for row in rows if oldest <= row.minute <= minute) for gpu, rows in hour.items()}
    for sample in samples.gpus:
        new = UseMinute(
            minute,
            busy_of(sample, samples),
            None if sample.memory is None else sample.memory.used_bytes,
            sample.temperature_c,
            sample.power_w,
        )
        rows = found.get(sample.gpu, ())
        before = rows[-1] if rows and rows[-1].minute == minute else None
        found[sample.gpu] = (*rows, new) if before is None else (*rows[:-1], _highest(before, new))
    return {gpu: rows for gpu, rows in found.items() if rows}


def busy_of(sample: GpuSample, samples: Samples) -> float | None:
    """The part of the time in which a GPU worked, 0 to 1; None: nobody measures it.

    A GPU in MIG mode has no figure of its own: then it is that of its busiest GPU instance, which Hopper and
    later have.
    """
    if sample.utilisation is not None:
        return sample.utilisation
    instances = (
        mig.activity.graphics
        for mig in samples.migs
        if mig.gpu == sample.gpu and mig.activity is not None and mig.activity.graphics is not None
    )
    return max(instances, default=None)


def _highest(minute: UseMinute, other: UseMinute) -> UseMinute:
    return UseMinute(
        minute.minute,
        _most(minute.utilisation, other.utilisation),
        _most(minute.memory_bytes, other.memory_bytes),
        _most(minute.temperature_c, other.temperature_c),
        _most(minute.power_w, other.power_w),
    )


def _most(one: N | None, other: N | None) -> N | None:
    return other if one is None else one if other is None else max(one, other)
