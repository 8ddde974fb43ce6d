"""What a driver of claims needs: the API server, and two places on the disk."""

from __future__ import annotations

from typing import Protocol

from partage.claims.decide.cdi import ClaimCdi
from partage.claims.model.claim import Claim
from partage.claims.model.record import ClaimRecord


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
