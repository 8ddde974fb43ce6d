"""Which shares one request should get. Pure, deterministic, no search over partitions."""

from __future__ import annotations

from collections.abc import Sequence

from partage.model.gpu import Link
from partage.model.policy import AllocationPolicy
from partage.model.share import Resource


class Chooser:
    """Preferred allocation for one resource. Built when the resource changes; asked on the admission path.

    links: of the node; whole GPUs are chosen by them (GPUs in MIG mode are no part of it).
    """

    def __init__(self, resource: Resource, links: Sequence[Link], policy: AllocationPolicy) -> None:
        raise NotImplementedError

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """``size`` ids out of ``available``, ``must_include`` among them.

        Raises AllocationRefused: not enough available, ids unknown or not available.
        """
        raise NotImplementedError
