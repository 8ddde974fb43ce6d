"""The wording of answers: guarantees, strategies, products. Text only."""

from __future__ import annotations

from partage.model.policy import Strategy
from partage.model.share import Guarantee
from partage.plan.serve.ledger import Holder

GUARANTEES = {
    Guarantee.HARD: "the hardware holds it",
    Guarantee.GUARDED: "the MPS daemon refuses more",
    Guarantee.ADVISORY: "a tenant can drop it",
    Guarantee.NONE: "a neighbour can take it all",
}
"""What each guarantee means for the memory of a share, in words that follow its name."""

_STRATEGIES = {
    Strategy.EXCLUSIVE: "exclusive",
    Strategy.TIME_SLICING: "time-slicing",
    Strategy.MPS: "MPS",
    Strategy.MIG: "MIG",
}


def strategy_word(strategy: Strategy) -> str:
    """The strategy as people write it."""
    return _STRATEGIES[strategy]


def guarantee_words(guarantee: Guarantee) -> str:
    """``guarded: the MPS daemon refuses more``."""
    return f"{guarantee}: {GUARANTEES[guarantee]}"


def sharing_text(strategy: Strategy, shared: Strategy, replicas: int) -> str:
    """How a device is shared: ``MPS x 4``, ``MIG``, ``MIG, time-slicing x 4``."""
    if shared is Strategy.EXCLUSIVE:
        return strategy_word(strategy)
    parts = f"{strategy_word(shared)} x {replicas}"
    return parts if strategy is shared else f"{strategy_word(strategy)}, {parts}"


def pod_name(holder: Holder) -> str:
    """``namespace/pod``."""
    return f"{holder.namespace}/{holder.pod}"


def container_name(holder: Holder) -> str:
    """``namespace/pod/container``."""
    return f"{pod_name(holder)}/{holder.container}"


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
