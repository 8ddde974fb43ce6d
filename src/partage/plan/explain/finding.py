"""One thing that is in the way of a pod on a node, and what would take it away."""

from __future__ import annotations

from partage.plan.explain.changes import Change
from partage.plan.explain.reasons import NodeReason
from partage.values import Frozen


class Finding(Frozen):
    """options: ways out, the smallest first; each is one change, or several that are needed together. None:
    no way out is known.
    """

    reason: NodeReason
    options: tuple[tuple[Change, ...], ...] = ()
