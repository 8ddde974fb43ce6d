"""What a driver of claims needs: the API server, and two places on the disk; and the moments between its
steps, at each of which the agent can be killed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Protocol

from partage.claims.decide.cdi import ClaimCdi
from partage.claims.model.claim import Claim
from partage.claims.model.grant import ClaimRecord
from partage.model.claim import ClaimRef


class ClaimReader(Protocol):
    """The API server, as far as it is asked for one claim."""

    async def claim(self, namespace: str, name: str) -> Claim:
        """As it is now. Raises Absent, Unreachable, Rejected; CodecError for what is no claim."""


class ClaimRecords(Protocol):
    """What is kept of claims on the disk. The calls block: call them in a thread."""

    def save(self, record: ClaimRecord) -> None:
        """Keep this of its claim. Raises HardwareError: then what was there before is there."""

    def flush(self) -> None:
        """What was saved outlives a loss of power. Raises HardwareError."""

    def remove(self, uid: str) -> None:
        """Keep nothing of this claim. Raises HardwareError: then it is still there."""


class CdiFiles(Protocol):
    """The CDI files of claims. The calls block: call them in a thread."""

    def write(self, record: ClaimRecord, cdi: ClaimCdi) -> None:
        """record: once this is done. Raises HardwareError: then there is none, or the one before."""

    def remove(self, uid: str) -> None:
        """If it is there. Raises HardwareError."""

    def has(self, uid: str) -> bool:
        """Whether it is there. Raises HardwareError."""


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
