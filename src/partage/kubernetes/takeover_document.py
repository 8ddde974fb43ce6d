"""The JSON document of ``takeover`` and ``handback``."""

from __future__ import annotations

from typing import Literal

from partage.answers.documents.document import Document
from partage.errors import Problem
from partage.kubernetes.decide.takeover import ExchangeRow
from partage.values import Frozen


class ExchangeStepRow(Frozen):
    """One step. command: how to do it by hand; empty: nothing to be done by hand. done: by this run."""

    text: str
    command: str
    done: bool


class TakeoverDocument(Document, kw_only=True):
    """The answer. possible: nothing prevents it. done: the change was made and checked."""

    kind: Literal["Takeover", "Handback"]
    node: str
    possible: bool
    done: bool
    resources: tuple[ExchangeRow, ...]
    problems: tuple[Problem, ...]
    steps: tuple[ExchangeStepRow, ...]
