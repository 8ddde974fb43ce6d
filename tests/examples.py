"""How many examples a test of a law tries."""

import os

_SHARE = 0.4 if "PARTAGE_QUICK" in os.environ else 1.0


def examples(count: int) -> int:
    """All of them, as ``make check`` tries; two in five in ``make test``, for which a person waits."""
    return round(count * _SHARE)
