"""What ResourceClaims can get of a node after a turn. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field
from msgspec.structs import replace

from partage.model.health import Health
from partage.model.ids import DEVICE_CLASSES, DeviceUuid, GpuUuid
from partage.model.policy import DeviceListStrategy, Options, Via
from partage.model.share import DeviceOffer, GpuOffer, NodeOffer
from partage.plan.reconcile.transition import GpuServing
from partage.plan.serve.kubelet_view import KubeletView
from partage.values import Frozen


class ClaimOffer(Frozen):
    """What claims can get. offer: the devices, by GPU; a GPU that claims cannot ask for is not in it.

    closed: devices of which no claim gets anything now, and why, a sentence after ``it``.
    """

    offer: NodeOffer = field(default_factory=dict)
    closed: Mapping[DeviceUuid, str] = field(default_factory=dict)


class NodeMoment(Frozen):
    """What decides whether a device is open to claims. bare: why containers would not have the driver's
    libraries; empty: they would.
    """

    serving: Mapping[GpuUuid, GpuServing]
    view: KubeletView
    health: Mapping[GpuUuid, Health]
    cordoned: frozenset[GpuUuid]
    bare: str = ""

    def why_closed(self, row: DeviceOffer) -> str:
        """Why no claim gets anything of this device now; empty: claims do."""
        serving = self.serving[row.gpu]
        if not self.view.healthy.get(row.device, False):
            reason = self.health.get(row.gpu, Health()).gpu.reason
            return f"is not healthy: {reason}" if reason else "cannot be used now"
        if serving.draining or row in serving.leaving:
            return "is to be used in another way"
        return "is cordoned" if row.gpu in self.cordoned else self.bare


def claim_offer(now: NodeMoment) -> ClaimOffer:
    """What claims can get. A GPU that has to change is closed until its claims have ended, and then is
    offered no more.
    """
    offer = {gpu: rows for gpu, offered in now.view.offer.items() if (rows := _by_claim(offered))}
    every = (row for rows in offer.values() for row in rows)
    return ClaimOffer(offer, {row.device: reason for row in every if (reason := now.why_closed(row))})


def _by_claim(rows: GpuOffer) -> GpuOffer:
    return tuple(row for row in rows if row.via is Via.CLAIMS and not row.planned)


def asked_by_claim(offer: NodeOffer) -> bool:
    """Whether claims ask for anything of this."""
    return any(row.resource in DEVICE_CLASSES for rows in offer.values() for row in rows)


def options_for_claims(options: Options) -> Options:
    """Options under which a claim's containers learn their devices: by CDI alone, whatever the policy says of
    the device plugin's. Variables of two claims in one container would override each other.
    """
    return replace(options, device_list=(DeviceListStrategy.CDI_CRI,))
