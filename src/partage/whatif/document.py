"""The answers of ``simulate --trace``, with and without ``--placement``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from partage.answers.documents.document import Document
from partage.values import Answer, Frozen
from partage.whatif.decide.placements import PlacementPolicy
from partage.whatif.decide.summary import PolicyResult


class WhatIfFleet(Frozen):
    """The nodes on which the pods are played."""

    nodes: int
    gpus: int


class TraceDocument(Document, kw_only=True):
    """What both answers begin with. pods: that came."""

    kind: Literal["WhatIf", "Placements"]
    trace: str
    pods: int
    fleet: WhatIfFleet


class WhatIfDocument(TraceDocument, kw_only=True):
    """The answer of ``simulate --trace``. span_s: from the first event of the trace to the last,
    under the policy where that is longest. seed: of the draws among equally good nodes.
    """

    kind: Literal["WhatIf"] = "WhatIf"
    seed: int
    span_s: float
    policies: tuple[PolicyResult, ...]


class PlacementResult(Answer):
    """allocation: percent of all GPUs that pods have, by the load that was reached, percent of all GPUs that
    pods have asked for. placed: pods that fitted somewhere.
    """

    placement: PlacementPolicy
    allocation: Mapping[int, float]
    placed: int


class PlacementsDocument(TraceDocument, kw_only=True):
    """The answer of ``simulate --trace --placement``. seed: of their order."""

    kind: Literal["Placements"] = "Placements"
    load: int
    seed: int
    placements: tuple[PlacementResult, ...]
