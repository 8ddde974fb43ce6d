"""The JSON document of ``rollout``."""

from __future__ import annotations

from typing import Literal

from partage.answers.documents.document import Document
from partage.plan.cluster.rollout import NodePhase
from partage.values import Frozen


class RolloutNodeRow(Frozen):
    """One node. in_force, wanted: revisions of its policy. canary: it changes first. lease: the slot that it
    holds; null: none. why: it is not done.
    """

    name: str
    canary: bool
    policy: str
    in_force: str
    wanted: str
    phase: NodePhase
    lease: str | None
    why: str


class SlotRow(Frozen):
    """One Lease. node: that holds it; empty: free. renewed_at: RFC 3339, by the clock of that node. failure:
    why the node could not change; empty: it has not failed.
    """

    name: str
    node: str
    revision: str
    renewed_at: str
    failure: str


class RolloutDocument(Document, kw_only=True):
    """The answer. done: every node has what it wants. paused_by: ``chart``, ``hand``; null: it is not paused.
    stopped: why no further node begins; null: it has not stopped. freed: Leases that ``resume`` has freed.
    """

    kind: Literal["Rollout"] = "Rollout"
    namespace: str
    name: str
    max_changing: int
    canary: str
    paused_by: Literal["chart", "hand"] | None
    stopped: str | None
    done: bool
    nodes: tuple[RolloutNodeRow, ...]
    slots: tuple[SlotRow, ...]
    freed: tuple[str, ...] = ()
