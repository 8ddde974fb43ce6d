"""The answer of ``advise``: a strategy for each GPU model, its policy, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from partage.advise.decide.advise import Alternative, ModelAdvice
from partage.advise.decide.candidate import TenantShare, policy_of_all
from partage.advise.decide.situation import Way
from partage.answers.documents.document import Document, row


class AdviceDocument(Document, kw_only=True):
    """The answer of ``advise``. strategy: null where several models get different ones. policy: for all
    models, in Partage's format. share, reasons, reasons_against, alternatives, assumptions: of the first
    model. models: the advice for each model.
    """

    kind: Literal["Advice"] = "Advice"
    strategy: Way | None
    policy: Mapping[str, Any]
    share: TenantShare
    reasons: tuple[str, ...]
    reasons_against: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    assumptions: tuple[str, ...]
    models: tuple[ModelAdvice, ...]


def advice_document(found: Sequence[ModelAdvice]) -> AdviceDocument:
    """The answer for these models, at least one."""
    first = found[0]
    return row(
        AdviceDocument,
        first,
        strategy=first.strategy if len({model.strategy for model in found}) == 1 else None,
        policy=policy_of_all([model.policy for model in found]),
        models=tuple(found),
    )
