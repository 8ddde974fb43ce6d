"""What the agent keeps of the use of GPUs: for each day, a summary of each workload.

The documents are tables: a row is a list of values, in the order of the fields, so that a day of two hundred
workloads takes 30 KiB.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from partage.values import Frozen

Number = Annotated[int, Meta(ge=0, le=2**60)]
Seconds = Annotated[int, Meta(ge=0, le=2**35)]
Part = Annotated[float, Meta(ge=0, le=86_400)]
"""Files come from other nodes: a figure beyond these is refused where it is read."""
VERSION: Literal[1] = 1
BUSY_UP_TO = (
    *(percent / 100 for percent in range(11)),
    *(percent / 100 for percent in range(12, 20, 2)),
    *(percent / 100 for percent in range(20, 101, 5)),
)
"""Activity is counted in classes; these are their upper ends, parts of the GPU's time. They are narrow where
a GPU can be shared by many."""


class WorkloadDay(Frozen, array_like=True):
    """What one workload used of the GPUs of a node on one day. In JSON a list of these values, in this order.

    workload: ``namespace/name/container``, or ``slurm:user/job``. first_s, last_s: of its samples, seconds
    since 1970. seen_s, run_s: how long its containers were sampled, and how long they ran, added up.
    samples: of all of them. runs: containers that ran on that day; started: those of them that had not been
    seen before; at_once: the most in one sample.
    peak_bytes: the highest since the container began, of samples one second apart; peak_at_s: when that was
    first seen. spread: relative distance of the highest use and the one that three quarters of that
    container's run reach. longest_s: of the longest run so far; growing: whether it still grows. full: the
    highest part of the visible memory.
    exact: every peak is of samples one second apart, and every process has a figure. processes: the most at a
    time. share_bytes: of its shares; None: not known. busy: samples in each class of activity (up to 0, 1, 2
    to 10, 12, 14 to 20, 25, 30 to 100 % of the GPU's time), without the zeros at the end. devices: the most
    that one container used at the same time; runs, started and at_once count it on each of them.
    """

    workload: str
    first_s: Seconds
    last_s: Seconds
    seen_s: Seconds
    run_s: Seconds
    samples: Number
    runs: Number
    started: Number
    at_once: Number
    peak_bytes: Number
    peak_at_s: Seconds
    spread: Part
    longest_s: Seconds
    growing: bool
    full: Part
    exact: bool
    processes: Number
    share_bytes: Number | None
    busy: tuple[Number, ...]
    devices: Number = 1


class RunNow(Frozen, array_like=True):
    """A container that still ran when the file was written, for the agent that runs next. In JSON a list.

    run: its device and names. lows, highs: the course of its use, in parts of equally many samples (width);
    the last part has fewer (last). has_peak, is_longest: its workload's row of the day has its peak, its
    length.
    """

    run: str
    workload: str
    first_s: Seconds
    last_s: Seconds
    peak_bytes: Number
    peak_at_s: Seconds
    width: Number
    last: Number
    lows: tuple[Number, ...]
    highs: tuple[Number, ...]
    has_peak: bool
    is_longest: bool


class GpuSeen(Frozen):
    """A model of GPU that the node had, and its memory."""

    product: str
    memory_bytes: Number


class UsageDay(Frozen):
    """One day (UTC) of one node. date: ``2026-11-22``. step_s: usual distance of samples. version: of this
    form.

    used_bytes, rest_bytes: means over the day of all memory that was used, and of that which belongs to no
    container and no job; samples: over how many. left_out: workloads that had to go because there were too
    many. running: only of the day that still runs.
    """

    date: str
    node: str
    step_s: Part
    gpus: tuple[GpuSeen, ...] = ()
    samples: Number = 0
    used_bytes: Number = 0
    rest_bytes: Number = 0
    left_out: Number = 0
    workloads: tuple[WorkloadDay, ...] = ()
    running: tuple[RunNow, ...] = ()
    version: Literal[1] = VERSION
