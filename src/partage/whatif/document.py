"""The answer of ``simulate --trace``."""

from __future__ import annotations

from typing import Literal

from partage.answers.documents.document import Document
from partage.values import Frozen
from partage.whatif.decide.summary import PolicyResult


class WhatIfFleet(Frozen):
    """The nodes on which the pods are played."""

    nodes: int
    gpus: int


class WhatIfDocument(Document, kw_only=True):
    """The answer of ``simulate --trace``. pods: of the trace. span_s: from its first event to the last, under
    the policy where that is longest. seed: of the draws among equally good nodes.
    """

    kind: Literal["WhatIf"] = "WhatIf"
    trace: str
    pods: int
    fleet: WhatIfFleet
    seed: int
    span_s: float
    policies: tuple[PolicyResult, ...]
