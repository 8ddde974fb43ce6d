"""What is kept of each claim of a node: the API server may be away, and the claim be deleted, when it ends.

Written as ``started`` before anything is changed for a claim, and as ``prepared`` with the answer to the
kubelet. So after ``kill -9`` at any moment, what is begun is known, and can be undone or finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec.structs import replace

from partage.claims.model.grant import Granted, GrantedShare
from partage.model.claim import ClaimRef, PreparedDevice
from partage.model.ids import GpuUuid, PodUid
from partage.values import Frozen


class ClaimState(StrEnum):
    """started: its effects may be there in part. prepared: all of them are there."""

    STARTED = "started"
    PREPARED = "prepared"


class ClaimRecord(Frozen):
    """What is kept of a claim.

    boot_id: of the node, when it was written: settings of GPUs, daemons and CDI files end with a boot.
    shares: what it holds. answer: to the kubelet, given again when it asks again, one row for each share; ()
    while it is started. pods: that the claim was reserved for when it was prepared.

    Raises ValueError for another number of rows.
    """

    claim: ClaimRef
    state: ClaimState
    boot_id: str
    shares: tuple[GrantedShare, ...]
    answer: tuple[PreparedDevice, ...] = ()
    pods: tuple[PodUid, ...] = ()

    def __post_init__(self) -> None:
        if len(self.answer) != (len(self.shares) if self.state is ClaimState.PREPARED else 0):
            raise ValueError(f"{len(self.answer)} answers of {len(self.shares)} shares, {self.state}")

    @property
    def granted(self) -> Granted:
        """What it holds."""
        return Granted(self.claim, self.shares)

    @property
    def gpus(self) -> Mapping[str, GpuUuid]:
        """The GPUs of the devices that it was given, by name: a name can mean another GPU later. A MIG device
        has another UUID each time it is made, also after a boot."""
        return {share.device: share.gpu for share in self.shares}


def prepared(started: ClaimRecord, cdi_ids: Iterable[tuple[str, ...]]) -> ClaimRecord:
    """The record of a claim of which all is done. cdi_ids: of each share, in their order."""
    answer = tuple(
        PreparedDevice(share.asked, share.pool, share.device, ids, share.share_id)
        for share, ids in zip(started.shares, cdi_ids, strict=True)
    )
    return replace(started, state=ClaimState.PREPARED, answer=answer)


def by_boot(
    records: Iterable[ClaimRecord], boot_id: str
) -> tuple[dict[str, ClaimRecord], dict[str, ClaimRecord]]:
    """The records of this boot, and those of an earlier one, which hold nothing any more; both by the
    claim's UID. boot_id: empty: not known, then all are of this one.
    """
    now: dict[str, ClaimRecord] = {}
    before: dict[str, ClaimRecord] = {}
    for record in records:
        of_now = not boot_id or record.boot_id == boot_id
        (now if of_now else before)[record.claim.uid] = record
    return now, before
