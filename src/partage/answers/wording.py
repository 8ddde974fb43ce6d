"""The wording of answers: guarantees, strategies, products. Text only."""

from __future__ import annotations

from collections.abc import Iterable

from partage.model.gpu import Inventory
from partage.model.share import DeviceOffer, Guarantee
from partage.plan.reconcile.node_plan import Phase
from partage.plan.serve.ledger_entry import Holder
from partage.text import listed

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
    said = reason.removeprefix(f"GPU {gpu_index} ").removeprefix(f"GPU {gpu_index}: ")
    word = "not known yet" if phase is Phase.UNKNOWN else str(phase)
    return f"{word}: {said}" if said else word


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
    """The product without the maker's name, which is the same on every card."""
    return product.removeprefix("NVIDIA ")
