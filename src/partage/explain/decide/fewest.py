"""Who has to end so that enough is free."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

Holder = TypeVar("Holder", bound=Hashable)


def fewest(counts: Mapping[Holder, int], missing: int) -> tuple[Holder, ...] | None:
    """The fewest holders that hold so much together: of single ones the smallest that is enough, else the
    largest ones. None: all of them together are not enough.
    """
    if missing <= 0:
        return ()
    ordered = sorted(counts, key=lambda who: (counts[who], str(who)))
    alone = next((who for who in ordered if counts[who] >= missing), None)
    if alone is not None:
        return (alone,)
    chosen: list[Holder] = []
    for who in reversed(ordered):
        if missing <= 0:
            break
        chosen.append(who)
        missing -= counts[who]
    return tuple(chosen) if missing <= 0 else None
