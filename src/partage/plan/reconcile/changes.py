"""What would have to be done to a node before it is as its policy wants it. Pure: nobody acts here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from partage.model.gpu import ComputeMode, Gpu, Inventory
from partage.model.policy import Interval, Mps, TimeSlicing
from partage.plan.offer.assign import Assignment, Target


class Act(StrEnum):
    """What kind of thing is done to a GPU."""

    MIG_LAYOUT = "mig-layout"
    COMPUTE_MODE = "compute-mode"
    MPS_DAEMON = "mps-daemon"
    TIME_SLICE = "time-slice"


_ORDER = {act: position for position, act in enumerate(Act)}
"""A layout first: modes and slices are set on what it made."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to do to one GPU. detail: a sentence for people."""

    gpu: Gpu
    act: Act
    detail: str


def changes(assignment: Assignment, inventory: Inventory) -> tuple[Change, ...]:
    """What has to be done, GPU by GPU, each thing once."""
    found = [
        Change(gpu, Act.MIG_LAYOUT, sentence)
        for uuid, sentence in assignment.pending.items()
        if (gpu := inventory.gpu(uuid)) is not None
    ]
    for target in assignment.targets:
        found.extend(_sharing_changes(target))
    return tuple(sorted(dict.fromkeys(found), key=lambda change: (change.gpu.index, _ORDER[change.act])))


def _sharing_changes(target: Target) -> Iterator[Change]:
    gpu, sharing = target.gpu, target.sharing
    if isinstance(sharing, Mps):
        if sharing.exclusive_process and gpu.compute_mode is not ComputeMode.EXCLUSIVE_PROCESS:
            mode = gpu.compute_mode.name.lower().replace("_", "-")
            yield Change(gpu, Act.COMPUTE_MODE, f"compute mode from {mode} to exclusive-process")
        language = f", protocol {sharing.protocol}" if sharing.protocol > 2 else ""
        yield Change(gpu, Act.MPS_DAEMON, f"an MPS control daemon for {sharing.replicas} clients{language}")
    if isinstance(sharing, TimeSlicing) and sharing.interval not in (None, Interval.DEFAULT):
        yield Change(gpu, Act.TIME_SLICE, f"time slice to {sharing.interval}")
