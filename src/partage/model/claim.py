"""Which ResourceClaim of the cluster is meant."""

from __future__ import annotations

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


class PreparedDevice(Frozen):
    """A device of a claim, ready for containers.

    request: name of the request that pods name. cdi_devices: names that the container runtime gets. share_id:
    of a device that is shared; None: it is not.
    """

    request: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...]
    share_id: str | None = None


class DeviceCondition(Frozen):
    """The health of a device of the pool. message: why it is not healthy; empty if it is."""

    pool: str
    device: str
    healthy: bool
    message: str = ""
