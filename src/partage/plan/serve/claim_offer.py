"""What ResourceClaims can get of a node after a turn. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import field
from msgspec.structs import replace

from partage.model.claim import Demands, GpuDemand
from partage.model.gpu import Gpu
from partage.model.health import Health
from partage.model.ids import DEVICE_CLASSES, DeviceUuid, GpuUuid
from partage.model.mps import DaemonPhase
from partage.model.policy import DeviceIdStrategy, DeviceListStrategy, Options, WatchAction
from partage.model.share import DeviceOffer, GpuOffer, NodeOffer
from partage.model.strategy import Interval, Via
from partage.plan.reconcile.node_plan import GpuPlan, NodePlan, Observed, Phase
from partage.plan.reconcile.transition import GpuServing
from partage.plan.serve.kubelet_view import KubeletView
from partage.text import listed
from partage.values import Frozen

_MOST_NAMED = 4
_XID = re.compile(r"\bXID (\d+)", re.ASCII)


class Closed(Frozen):
    """Why no claim gets anything of a device now. kind: one word: unhealthy, changing, cordoned or unusable.

    reason: a clause that follows the device, ``is cordoned``. detail: the XID, or another word; or empty.
    """

    kind: str
    reason: str
    detail: str = ""


class OnDemand(Frozen):
    """A GPU whose MIG devices are made on demand.

    demand: what claims want of it, as the planner knew it. settled: it is so, and nothing is under way.
    reason: why it is not, a clause; empty if it is. failed: that will not pass by itself soon.
    """

    demand: GpuDemand
    settled: bool = True
    reason: str = ""
    failed: bool = False


class InForce(Frozen):
    """What a node is set to, as far as it matters to claims.

    watch_of: what the policy says happens to a container that exceeds its share. slices: lengths of time
    slices; fixed_slices: why they cannot be set. open_slots: of each MPS daemon that serves and has slots,
    those that are not closed (``DaemonState.open_slots``). limits_read: devices whose shares have limits of
    the driver's, where the limit of every holder was read.
    """

    watch_of: Mapping[GpuUuid, WatchAction] = field(default_factory=dict)
    slices: Mapping[GpuUuid, Interval] = field(default_factory=dict)
    fixed_slices: Mapping[GpuUuid, str] = field(default_factory=dict)
    open_slots: Mapping[DeviceUuid, tuple[str, ...]] = field(default_factory=dict)
    limits_read: frozenset[DeviceUuid] = frozenset()


def in_force(observed: Observed, watch_of: Mapping[GpuUuid, WatchAction]) -> InForce:
    """What was observed last."""
    slots = {
        daemon.device: daemon.open_slots
        for daemon in observed.daemons or ()
        if daemon.limits.slots and daemon.phase is DaemonPhase.SERVING
    }
    return InForce(watch_of, observed.slices, observed.fixed_slices, slots)


class ClaimOffer(Frozen):
    """What claims can get. offer: the devices, by GPU; a GPU that claims cannot ask for is not in it.

    closed: devices of which no claim gets anything now. on_demand: GPUs whose MIG devices are made on demand;
    ``offer`` has those of their devices that are there. in_force: what the node is set to.
    """

    offer: NodeOffer = field(default_factory=dict)
    closed: Mapping[DeviceUuid, Closed] = field(default_factory=dict)
    on_demand: Mapping[GpuUuid, OnDemand] = field(default_factory=dict)
    in_force: InForce = field(default_factory=InForce)


class NodeMoment(Frozen):
    """What decides whether a device is open to claims. bare: why containers would not have the driver's
    libraries; empty: they would. in_force: see ``ClaimOffer``.
    """

    known: Mapping[GpuUuid, Gpu]
    serving: Mapping[GpuUuid, GpuServing]
    view: KubeletView
    health: Mapping[GpuUuid, Health]
    cordoned: frozenset[GpuUuid]
    bare: str = ""
    on_demand: Mapping[GpuUuid, OnDemand] = field(default_factory=dict)
    in_force: InForce = field(default_factory=InForce)

    def closed(self, row: DeviceOffer, gi_id: int | None) -> Closed | None:
        """Why no claim gets anything of this device now; None: claims do. gi_id: of its GPU instance."""
        serving = self.serving[row.gpu]
        if (ill := self._unhealthy(row.gpu, gi_id)) is not None:
            return ill
        if not self.view.healthy.get(row.device, False):
            return Closed("unusable", "cannot be used now")
        if serving.draining or row in serving.leaving:
            return Closed("changing", "is to be used in another way")
        return self._shut(row.gpu)

    def gpu_closed(self, gpu: GpuUuid) -> Closed | None:
        """The same of a GPU whose MIG devices are made on demand, for all that can be made of it."""
        return self._unhealthy(gpu, None) or self._shut(gpu)

    def open_rows(self, gpu: GpuUuid, offered: GpuOffer) -> GpuOffer:
        """What claims can be given of a GPU. What is made on demand and on its way out is not there any
        more."""
        rows, serving = _by_claim(offered), self.serving[gpu]
        if gpu not in self.on_demand:
            return rows
        return () if serving.draining else tuple(row for row in rows if row not in serving.leaving)

    def _unhealthy(self, gpu: GpuUuid, gi_id: int | None) -> Closed | None:
        status = self.health.get(gpu, Health()).status(gi_id)
        if status.state.offered:
            return None
        xid = _XID.search(status.reason)
        detail = xid[1] if xid else status.state.value
        return Closed("unhealthy", f"is not healthy: {status.reason}", detail)

    def _shut(self, gpu: GpuUuid) -> Closed | None:
        if gpu in self.cordoned:
            return Closed("cordoned", "is cordoned")
        return Closed("unusable", f"cannot be used: {self.bare}") if self.bare else None


def claim_offer(now: NodeMoment) -> ClaimOffer:
    """What claims can get. A GPU that has to change is closed until its claims have ended, and then is
    offered no more.
    """
    offer = {gpu: rows for gpu, offered in now.view.offer.items() if (rows := now.open_rows(gpu, offered))}
    instances: dict[DeviceUuid, int] = {
        mig.uuid: mig.gi_id for gpu in now.known.values() for mig in gpu.mig_devices
    }
    closed = {
        row.device: reason
        for rows in offer.values()
        for row in rows
        if (reason := now.closed(row, instances.get(row.device))) is not None
    }
    closed |= {gpu: reason for gpu in now.on_demand if (reason := now.gpu_closed(gpu)) is not None}
    return ClaimOffer(offer, closed, now.on_demand, now.in_force)


def made_on_demand(demands: Demands, plan: NodePlan) -> Mapping[GpuUuid, OnDemand]:
    """How the GPUs stand whose MIG devices are made on demand. demands: of all of them.

    Without a driver there is no plan; what claims could get stays known.
    """
    return {gpu: _standing(demand, plan.gpus.get(gpu)) for gpu, demand in demands.items()}


def _standing(demand: GpuDemand, plan: GpuPlan | None) -> OnDemand:
    if plan is None:
        return OnDemand(demand, settled=False)
    failed = plan.phase in (Phase.FAILED, Phase.BLOCKED)
    claims = sorted({f"claim {entry.claim}" for entry in plan.waiting_for if entry.claim})
    waits = f"; it waits for {listed(claims, _MOST_NAMED)} to end" if claims else ""
    return OnDemand(demand, plan.phase is Phase.SETTLED, plan.reason + waits, failed)


def _by_claim(rows: GpuOffer) -> GpuOffer:
    return tuple(row for row in rows if row.via is Via.CLAIMS and not row.planned)


def asked_by_claim(offer: NodeOffer) -> bool:
    """Whether claims ask for anything of this."""
    return any(row.resource in DEVICE_CLASSES for rows in offer.values() for row in rows)


def options_for_claims(options: Options) -> Options:
    """Options under which a claim's containers learn their devices: by CDI alone, whatever the policy says of
    the device plugin's, since variables of two claims in one container would override each other; and by
    UUID, since an index moves, and the runtime looks the name up again when a container is started again.
    """
    return replace(options, device_list=(DeviceListStrategy.CDI_CRI,), device_ids=DeviceIdStrategy.UUID)
