"""One thing that is in the way of a pod on a node, and what would take it away."""

from __future__ import annotations

from partage.explain.decide.changes import Change
from partage.explain.decide.reasons import NodeReason
from partage.values import Frozen


class NodeFinding(Frozen):
    """options: ways out, the smallest first; each is one change, or several that are needed together. None:
    no way out is known.
    """

    reason: NodeReason
    options: tuple[tuple[Change, ...], ...] = ()
