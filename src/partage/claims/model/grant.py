"""What a claim has on this node, or why it has nothing; and what is kept of it, because the API server may be
away, and the claim be deleted, when it ends.

A record is written as ``started`` before anything is changed for a claim, and as ``prepared`` with the answer
to the kubelet. So after ``kill -9`` at any moment, what is begun is known, and can be undone or finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import field
from msgspec.structs import replace

from partage.model.claim import AllottedDevice, ClaimRef, PreparedDevice
from partage.model.ids import DeviceUuid, GpuUuid, PodUid, ResourceName, ShareId
from partage.model.layout import LayoutItem
from partage.model.policy import WatchAction
from partage.model.share import Guarantee
from partage.model.strategy import Interval, Strategy
from partage.values import Frozen


class ShareConfig(Frozen):
    """What a class or a claim asks of its shares, beside amounts. None: as the policy has it.

    interval: of time slices. guard: the guard comes into the containers. watch: what happens to one that
    exceeds its share. need: a share with a weaker guarantee is refused. strategy: a device that is shared in
    another way is refused. client_threads_percent, client_memory_bytes: at most so much for each process,
    within what the share has, on a device that is shared through MPS.
    """

    interval: Interval | None = None
    guard: bool | None = None
    watch: WatchAction | None = None
    need: Guarantee | None = None
    strategy: Strategy | None = None
    client_threads_percent: int | None = None
    client_memory_bytes: int | None = None


class EnforcedBy(StrEnum):
    """What holds a share to its memory.

    gpu: nobody else has the GPU. mig: a MIG device. mps-namespace: a namespace of the GPU's MPS daemon that
    no other claim has. mps-daemon: one limit for all clients of the daemon. driver-limit: the driver's limit
    of each container's cgroup. environment: variables of the container. guard: a framework's own limit.
    nothing: a neighbour can use all memory.
    """

    GPU = "gpu"
    MIG = "mig"
    NAMESPACE = "mps-namespace"
    DAEMON = "mps-daemon"
    DRIVER_LIMIT = "driver-limit"
    ENVIRONMENT = "environment"
    GUARD = "guard"
    NOTHING = "nothing"


class GrantedShare(AllottedDevice):
    """What a claim has of one device.

    share_id: the scheduler's; None: the device is not shared. uuid: of the device. resource, ids: what it
    holds, as a container of the device plugin would; () with admin_access, which holds nothing, and while a
    device that is made on demand is not there. memory_bytes: of all ids together. cores: percent of the
    multiprocessors, a ceiling; 0: none was named. slot: the namespace of the GPU's MPS daemon that it alone
    has; empty: none. enforced: what holds it to its memory. place: of a MIG device that is made on demand,
    ``3g.40gb@4``; else empty. Raises ValueError for a place of another form.
    """

    share_id: str | None
    uuid: DeviceUuid
    gpu: GpuUuid
    resource: ResourceName
    ids: tuple[ShareId, ...]
    memory_bytes: int
    cores: int
    guarantee: Guarantee
    admin_access: bool = False
    config: ShareConfig = field(default_factory=ShareConfig)
    slot: str = ""
    enforced: EnforcedBy = EnforcedBy.NOTHING
    place: str = ""

    def __post_init__(self) -> None:
        if self.place:
            LayoutItem.parse(self.place)

    @property
    def whole(self) -> bool:
        """All of a GPU is promised, or an amount of it: nobody else can have a MIG device of it."""
        return self.uuid == self.gpu and not (self.place or self.admin_access)

    @property
    def limit_bytes(self) -> int | None:
        """The driver's limit for each container that has the claim, whole MiB; None: it sets none."""
        return self.memory_bytes if self.enforced is EnforcedBy.DRIVER_LIMIT else None


class Granted(Frozen):
    """What a claim has on this node, in the order of its allocation."""

    claim: ClaimRef
    shares: tuple[GrantedShare, ...]


class RefusalReason(StrEnum):
    """Why a claim is refused, as metrics count it.

    unreadable: the API server's answer. not-allocated: by the scheduler. replaced: another claim has the name
    now. not-ours: no device of this driver. pool, device: unknown. other-gpu: the device's name means another
    GPU now. kind: the device is shared in another way now. amount: of no possible size. sum: more than other
    claims leave. held: by others than claims. together: shares that one container cannot use together.
    config: wrong. need: the guarantee is too weak. step: something on the node failed.
    """

    UNREADABLE = "unreadable"
    NOT_ALLOCATED = "not-allocated"
    REPLACED = "replaced"
    NOT_OURS = "not-ours"
    POOL = "pool"
    DEVICE = "device"
    OTHER_GPU = "other-gpu"
    KIND = "kind"
    AMOUNT = "amount"
    SUM = "sum"
    HELD = "held"
    TOGETHER = "together"
    CONFIG = "config"
    NEED = "need"
    STEP = "step"


ANEW = "delete the pod, so that it is scheduled anew"
LATER = "it is tried again by itself, and succeeds once that has ended"
"""What helps, at the end of a refusal."""


class RefusedClaim(Frozen):
    """text: one sentence or two, for the events of the pod: why, and what helps."""

    reason: RefusalReason
    text: str


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
