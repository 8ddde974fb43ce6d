"""ResourceClaims of the cluster: which is meant, what it gets, and what claims want of GPUs whose MIG devices
are made on demand.
"""

from __future__ import annotations

from collections.abc import Mapping

from partage.model.ids import GpuUuid
from partage.model.layout import LayoutItem
from partage.values import Frozen


class ClaimRef(Frozen):
    """A ResourceClaim. uid: a claim that is made again under the same name has another one."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        """``team-a/train``, as people name it."""
        return f"{self.namespace}/{self.name}"


class ClaimHold(Frozen):
    """A container that has devices of a claim, as the kubelet says it. claim: ``namespace/name``."""

    namespace: str
    pod: str
    container: str
    claim: str


class AllottedDevice(Frozen):
    """A device that a request of a claim has. request: its name, ``req``, or of an alternative of it,
    ``req/sub``. device: its name in the pool.
    """

    request: str
    pool: str
    device: str

    @property
    def asked(self) -> str:
        """The request that pods and the kubelet name: ``req`` for ``req/sub``."""
        return self.request.partition("/")[0]


class PreparedDevice(AllottedDevice):
    """It is ready for containers.

    request: the one that pods name. cdi_devices: names that the container runtime gets. share_id: of a device
    that is shared; None: it is not.
    """

    cdi_devices: tuple[str, ...]
    share_id: str | None = None


class DeviceCondition(Frozen):
    """The health of a device of the pool. message: why it is not healthy; empty if it is."""

    pool: str
    device: str
    healthy: bool
    message: str = ""


class GpuDemand(Frozen):
    """What claims want of one GPU.

    whole: all of it, without MIG. parts: MIG devices, each with its start. made: where MIG devices were made
    for claims, also for claims that have ended: only there one is ever destroyed.
    """

    whole: bool = False
    parts: tuple[LayoutItem, ...] = ()
    made: tuple[LayoutItem, ...] = ()


Demands = Mapping[GpuUuid, GpuDemand]
"""By GPU UUID. A GPU that is not in it is wanted by nobody."""

NO_DEMANDS: Demands = {}
