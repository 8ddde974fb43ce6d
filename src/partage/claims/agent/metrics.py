"""What is counted of claims, for metrics."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field

from partage.claims.model.grant import RefusalReason


class ClaimCounts(Struct):
    """Since the start. refused: by reason. prepares: calls of the kubelet; prepare_s: their duration in all,
    in seconds.
    """

    refused: Counter[RefusalReason] = field(default_factory=Counter)
    prepares: int = 0
    prepare_s: float = 0.0

    def took(self, seconds: float) -> None:
        """A call has ended."""
        self.prepares += 1
        self.prepare_s += seconds
