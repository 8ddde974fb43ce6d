"""What attacks have in common: how far beyond a limit is tried, and what it means to get there."""

from __future__ import annotations

from partage.faces.prove.model import Outcome, broken, kept, not_tried, weaker
from partage.faces.prove.share import Share
from partage.faces.prove.stage import Got
from partage.faces.prove.tenant import OK, OUT_OF_MEMORY
from partage.model.policy import Strategy
from partage.model.share import Guarantee
from partage.units import format_bytes


def shared_by(strategy: Strategy, share: Share) -> bool:
    """Whether the device is shared so, a whole GPU or a MIG device."""
    return share.offering.shared is strategy


def beyond(limit_bytes: int, device_bytes: int) -> int | None:
    """How much to ask for so that the limit and not the device says no; None where it cannot be told apart.

    A quarter more than the limit, if that is at most nine tenths of the device.
    """
    most = limit_bytes * 5 // 4
    return most if most <= device_bytes * 9 // 10 else None


NO_ROOM = not_tried("the share is so large a part of the device that its limit cannot be told from the end")


def was_held(got: Got, limit_bytes: int) -> bool:
    """It got no more than the limit, and was told what a tenant can understand."""
    return got.bytes <= limit_bytes and got.answer == OUT_OF_MEMORY


def amount(got: Got) -> str:
    """``it got 18.6 GiB, then CUDA_ERROR_OUT_OF_MEMORY``."""
    end = "and was not stopped" if got.answer == OK else f"then {got.answer}"
    return f"it got {format_bytes(got.bytes)}, {end}"


def got_around(share: Share, seen: str) -> Outcome:
    """A tenant who meant to did: as stated where the share is advisory, else weaker than that."""
    if share.offering.guarantee.strength > Guarantee.ADVISORY.strength:
        return weaker(seen)
    return kept(f"{seen}: no more is stated than {share.offering.guarantee}")


def merely_worked(got: Got, limit_bytes: int, limit_words: str) -> Outcome:
    """What it means that a tenant got so much who did nothing but allocate."""
    if got.bytes > limit_bytes:
        return broken(f"{amount(got)}, over {limit_words} of {format_bytes(limit_bytes)}")
    if got.answer != OUT_OF_MEMORY:
        return not_tried(f"it did not come to the limit: {amount(got)}")
    return kept(f"{amount(got)}; {limit_words} is {format_bytes(limit_bytes)}")
