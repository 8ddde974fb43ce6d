"""Why the claims of a pod get nothing of a node or of a GPU: each reason a sentence."""

from __future__ import annotations

from partage.text import listed
from partage.values import Tagged


class ClaimMissing(Tagged):
    """There is no object from which the claim could be. source: ``ResourceClaimTemplate ten-gib``."""

    claim: str
    source: str
    namespace: str

    def __str__(self) -> str:
        where = f" in the namespace {self.namespace}" if self.namespace else ""
        return f"there is no {self.source}{where}, from which the pod's claim {self.claim} is to be"


class ClassUnknown(Tagged):
    """A request names a class that is not there."""

    request: str
    device_class: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        known = listed(self.known) or "none"
        return f"request {self.request}: there is no DeviceClass {self.device_class}; there are {known}"


class NoDevicesForClaims(Tagged):
    """Nothing of the node is published for claims."""

    request: str
    why: str

    def __str__(self) -> str:
        return f"request {self.request}: {self.why}"


class ClaimElsewhere(Tagged):
    """The claim has devices of another node, and so binds its pods to that one. pool: of the devices."""

    claim: str
    pool: str

    def __str__(self) -> str:
        return f"{self.claim} has devices of the pool {self.pool}, and binds its pods to that node"


class NoDeviceEver(Tagged):
    """No device of the node could give it, even with nobody on it. nearest: why the nearest one cannot."""

    request: str
    asks: str
    nearest: str

    def __str__(self) -> str:
        return f"request {self.request} ({self.asks}): {self.nearest}"


class NoDeviceNow(Tagged):
    """No device of the node can give it now. nearest: why the nearest one cannot."""

    request: str
    asks: str
    nearest: str

    def __str__(self) -> str:
        return f"request {self.request} ({self.asks}): {self.nearest}"


class NodeRefusesClaim(Tagged):
    """The scheduler would send the pod, and the node would refuse the claim. text: the node's answer."""

    reason: str
    text: str

    def __str__(self) -> str:
        return self.text


class GpuForClaim(Tagged):
    """Why a GPU is not enough for a request by claim."""

    gpu: int
    text: str

    def __str__(self) -> str:
        return self.text


ClaimReason = (
    ClaimMissing
    | ClassUnknown
    | NoDevicesForClaims
    | ClaimElsewhere
    | NoDeviceEver
    | NoDeviceNow
    | NodeRefusesClaim
)
