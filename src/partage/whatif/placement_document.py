"""The answer of ``simulate --trace --placement``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from partage.answers.documents.document import Document
from partage.values import Answer
from partage.whatif.decide.placements import PlacementPolicy
from partage.whatif.document import WhatIfFleet


class PlacementResult(Answer):
    """allocation: percent of all GPUs that pods have, by the load that was reached, percent of all GPUs that
    pods have asked for. placed: pods that fitted somewhere.
    """

    placement: PlacementPolicy
    allocation: Mapping[int, float]
    placed: int


class PlacementsDocument(Document, kw_only=True):
    """The answer of ``simulate --trace --placement``. pods: that came. seed: of their order."""

    kind: Literal["Placements"] = "Placements"
    trace: str
    pods: int
    fleet: WhatIfFleet
    load: int
    seed: int
    placements: tuple[PlacementResult, ...]
