"""The moments between the steps of a prepare and of an unprepare. At each of them the agent can be killed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum

from partage.model.claim import ClaimRef


class ClaimStep(StrEnum):
    """What was done last, in the order in which it is done.

    place-noted: where a MIG device will be made for it is written down; then its first record follows.
    made: all devices that had to be made for it are there. judged: nothing; what the claim gets is known.
    held: its shares are held, and nothing is on the disk. started: its first record is written. limited: its
    limits are in force. file-written: its CDI file is there. prepared: its record has the answer, and the
    kubelet has none yet. file-removed: the CDI file is gone, and the record there. forgotten: the record is
    gone, too.
    """

    PLACE_NOTED = "place-noted"
    MADE = "made"
    JUDGED = "judged"
    HELD = "held"
    STARTED = "started"
    LIMITED = "limited"
    FILE_WRITTEN = "file-written"
    PREPARED = "prepared"
    FILE_REMOVED = "file-removed"
    FORGOTTEN = "forgotten"


StepTaken = Callable[[ClaimStep, ClaimRef], Awaitable[None]]
"""Awaited after each step, before the next: tests stop there, or kill."""


async def go_on(step: ClaimStep, claim: ClaimRef) -> None:
    """Nothing is between two steps."""
    del step, claim
