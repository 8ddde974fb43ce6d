"""How many examples a test of a law tries."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

_Case = TypeVar("_Case")
_STEP = 4 if "PARTAGE_QUICK" in os.environ else 1


def examples(count: int) -> int:
    """All of them, as ``make check`` tries; one in four in ``make test``, for which a person waits."""
    return max(1, round(count / _STEP))


def some(cases: Sequence[_Case], at: int) -> list[_Case]:
    """What is tried at one place of many, by its number: all, or one in four, others at the next place."""
    return [case for number, case in enumerate(cases) if (at + number) % _STEP == 0]


def variants(cases: Iterable[Any], every: int) -> list[Any]:
    """Parameters of a test that plays one rule in many variants: the first of each so many, the others
    marked ``real``.
    """
    marked = [case if hasattr(case, "marks") else pytest.param(*_values(case)) for case in cases]
    return [
        case if number % every == 0 else case._replace(marks=(*case.marks, pytest.mark.real))
        for number, case in enumerate(marked)
    ]


def _values(case: Any) -> Sequence[Any]:
    return case if isinstance(case, tuple) and type(case) is tuple else (case,)
