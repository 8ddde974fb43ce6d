"""The ids of shares, for people: ``GPU-...::3`` is ``GPU 2 #3``. Text and numbers only."""

from __future__ import annotations

from partage.model.ids import ShareId, parse_share_id
from partage.model.share import DeviceOffer, NodeOffer
from partage.values import Frozen


class NamedShare(Frozen):
    """One share. words: ``GPU 0``, ``GPU 2 #3``, ``GPU 6 3g.40gb``, ``GPU 6 3g.40gb #1``."""

    offering: DeviceOffer
    words: str

    @property
    def gpu_index(self) -> int:
        """NVML index of the GPU."""
        return self.offering.gpu_index


def shares_of(offer: NodeOffer) -> dict[ShareId, NamedShare]:
    """Every share that is offered, by id."""
    return {
        share: NamedShare(offering, _words(offering, share))
        for offerings in offer.values()
        for offering in offerings
        for share in offering.share_ids
    }


def _words(offering: DeviceOffer, share: ShareId) -> str:
    device = f"GPU {offering.gpu_index}" + (f" {offering.profile}" if offering.profile else "")
    _, replica = parse_share_id(share)
    return device if replica is None else f"{device} #{replica}"
