"""The answer of ``plan``."""

from __future__ import annotations

from typing import Literal

from partage.answers.documents.document import Document, PolicySource
from partage.answers.documents.node import DriverRow
from partage.answers.documents.plan import PlannedGpuRow, StepRow
from partage.answers.documents.resources import ResourceRow
from partage.claims.decide.slices import ClaimableRow
from partage.errors import Problem
from partage.values import Frozen


class PlanAgent(Frozen):
    """The agent for which it is planned. at: the time of its report."""

    version: str
    at: str


class PlanDocument(Document, kw_only=True):
    """The answer of ``plan``. gpus: one row for each GPU. steps: of all GPUs, each once, in the order in
    which they can be done. agent: for which it is planned; None where none runs. caveats: what to know before
    relying on it. problems: warnings. claimable: what ResourceClaims can ask for.
    """

    kind: Literal["Plan"] = "Plan"
    policy: PolicySource
    driver: DriverRow
    resources: tuple[ResourceRow, ...]
    gpus: tuple[PlannedGpuRow, ...]
    steps: tuple[StepRow, ...]
    agent: PlanAgent | None
    caveats: tuple[str, ...]
    problems: tuple[Problem, ...]
    claimable: tuple[ClaimableRow, ...] = ()
