"""How many examples a test of a law tries."""

import os
from collections.abc import Sequence
from typing import TypeVar

_Case = TypeVar("_Case")
_SHARE = 0.4 if "PARTAGE_QUICK" in os.environ else 1.0


def examples(count: int) -> int:
    """All of them, as ``make check`` tries; two in five in ``make test``, for which a person waits."""
    return round(count * _SHARE)


def some(cases: Sequence[_Case], at: int) -> list[_Case]:
    """What is tried at one place of many, by its number: all, or two in five, others at the next place."""
    return [case for number, case in enumerate(cases) if (2 * at + number) % 5 < 5 * _SHARE]
