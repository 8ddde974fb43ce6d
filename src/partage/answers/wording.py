"""The wording of answers: guarantees, strategies, products, figures of use, the ids of shares for people.
Text only.
"""

from __future__ import annotations

from collections.abc import Iterable

from partage.model.gpu import Inventory
from partage.model.ids import ShareId, parse_share_id
from partage.model.share import DeviceOffer, Guarantee, NodeOffer
from partage.plan.reconcile.node_plan import Phase
from partage.plan.serve.ledger_entry import Holder
from partage.text import listed
from partage.values import Frozen

_PLAIN_PHASES = {
    Phase.WITHDRAWING: "withdrawing its shares before it changes",
    Phase.READY: "about to change",
    Phase.CHANGING: "changing",
    Phase.VERIFYING: "changed, and being read back",
}
"""Phases that need no reason."""


def guarantee_words(guarantee: Guarantee) -> str:
    """``guarded: the MPS daemon refuses more``."""
    return f"{guarantee}: {guarantee.means}"


def sharing_text(offering: DeviceOffer) -> str:
    """How a device is shared: ``MPS x 4``, ``MPS by memory``, ``MIG``, ``MIG, time-slicing x 4``."""
    strategy, shared = offering.strategy, offering.shared
    if not shared.traits.in_shares:
        return strategy.traits.word
    into = "by memory" if offering.by_memory else f"x {offering.replicas}"
    parts = f"{shared.traits.word} {into}"
    return parts if strategy is shared else f"{strategy.traits.word}, {parts}"


def pod_name(holder: Holder) -> str:
    """``namespace/pod``."""
    return f"{holder.namespace}/{holder.pod}"


def container_name(holder: Holder) -> str:
    """``namespace/pod/container``."""
    return f"{pod_name(holder)}/{holder.container}"


def who_holds(holders: Iterable[Holder], claim: str | None) -> tuple[str, ...]:
    """The containers that hold a share; the claim where none is named. claim: ``namespace/name``, or none."""
    names = tuple(map(container_name, holders))
    return names if names or not claim else (f"claim {claim}",)


def standing(
    gpu_index: int, phase: Phase | None, reason: str, pods: Iterable[str], processes: Iterable[str]
) -> str:
    """How a GPU stands that is not settled: ``waiting for pod a/train``; empty if it is.

    reason: of its plan. pods, processes: what it waits for.
    """
    if phase is None or phase is Phase.SETTLED:
        return ""
    names = sorted(set(pods))
    awaited = [f"{'pod' if len(names) == 1 else 'pods'} {listed(names, 3)}"] if names else []
    awaited += processes
    if phase is Phase.WAITING and awaited:
        return f"waiting for {listed(awaited, 3)}"
    if phase in _PLAIN_PHASES:
        return _PLAIN_PHASES[phase]
    text = reason.removeprefix(f"GPU {gpu_index} ").removeprefix(f"GPU {gpu_index}: ")
    word = "not known yet" if phase is Phase.UNKNOWN else str(phase)
    return f"{word}: {text}" if text else word


def lost_sentences(inventory: Inventory) -> list[str]:
    """``GPU 2 is lost: fallen off the bus``, of each GPU that does not answer."""
    return [f"GPU {lost.index} is lost: {lost.reason}" for lost in inventory.lost]


def shorten(text: str, width: int) -> str:
    """At most ``width`` characters, the end cut off visibly."""
    if len(text) <= width:
        return text
    return text[: width - 1] + "…" if width > 1 else text[:width]


def abridge(text: str, width: int) -> str:
    """At most ``width`` characters; the last one stays, to tell copies apart: ``not…3``."""
    if len(text) <= width or width < 3:
        return text[: max(width, 0)]
    return f"{text[: width - 2]}…{text[-1]}"


def product_word(product: str) -> str:
    """The product without the maker's name, which is the same on every GPU."""
    return product.removeprefix("NVIDIA ")


UNKNOWN = "not known"
WHEN_SAMPLED = "The agent samples while a share is held, its metrics are scraped, or its page is open."


def part(value: float | None) -> str:
    """``43 %``, of a part from 0 to 1. What is more than nothing is not called 0."""
    if value is None:
        return UNKNOWN
    return "<1 %" if 0 < value < 0.005 else f"{value:.0%}".replace("%", " %")


def degrees(value: float | None) -> str:
    """``61 °C``."""
    return UNKNOWN if value is None else f"{value:.0f} °C"


def watts(value: float | None) -> str:
    """``250 W``."""
    return UNKNOWN if value is None else f"{value:.0f} W"


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
