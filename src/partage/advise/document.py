"""The answer of ``advise``: a strategy for each GPU model, its policy, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from partage.advise.decide.advise import Advice, Question, RankedWay
from partage.advise.decide.candidate import Refusal, TenantShare
from partage.advise.decide.situation import Situation, Way
from partage.advise.policy import policy_of_advice
from partage.answers.documents.document import Document
from partage.values import Frozen


class AlternativeRow(Frozen):
    """Another strategy, the better ones first. policy, share: null where it cannot be had; refusal says why,
    and hint what would make it possible.
    """

    strategy: Way
    possible: bool
    policy: Mapping[str, Any] | None
    share: TenantShare | None
    reasons: tuple[str, ...]
    reasons_against: tuple[str, ...]
    refusal: str | None
    hint: str | None


class AdvisedModelRow(Frozen):
    """The advice for one GPU model. gpu: its id in the catalogue. policy: in Partage's format. share: what
    each tenant gets. reasons: what speaks for it. alternatives: the other strategies, the better ones first.
    assumptions: what was not said, in sentences. path: the questions in their order.
    """

    gpu: str
    product: str
    strategy: Way
    policy: Mapping[str, Any]
    share: TenantShare
    reasons: tuple[str, ...]
    reasons_against: tuple[str, ...]
    alternatives: tuple[AlternativeRow, ...]
    situation: Situation
    assumptions: tuple[str, ...]
    path: tuple[Question, ...]


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
    alternatives: tuple[AlternativeRow, ...]
    assumptions: tuple[str, ...]
    models: tuple[AdvisedModelRow, ...]


def advice_document(found: Sequence[Advice]) -> AdviceDocument:
    """The answer for these models, at least one."""
    models = tuple(map(_model_row, found))
    strategies = {one.strategy for one in models}
    first = models[0]
    return AdviceDocument(
        strategy=first.strategy if len(strategies) == 1 else None,
        policy=policy_of_advice([one.best.candidate.entry for one in found]),
        share=first.share,
        reasons=first.reasons,
        reasons_against=first.reasons_against,
        alternatives=first.alternatives,
        assumptions=first.assumptions,
        models=models,
    )


def _model_row(one: Advice) -> AdvisedModelRow:
    best = one.best.candidate
    possible = [_alternative_row(ranked) for ranked in one.ranked[1:]]
    return AdvisedModelRow(
        gpu=one.facts.model,
        product=one.facts.gpu.product,
        strategy=best.way,
        policy=policy_of_advice([best.entry]),
        share=best.share,
        reasons=one.best.reasons,
        reasons_against=one.best.reasons_against,
        alternatives=(*possible, *map(_refused_row, one.refused)),
        situation=one.situation,
        assumptions=one.assumptions,
        path=one.path,
    )


def _alternative_row(one: RankedWay) -> AlternativeRow:
    return AlternativeRow(
        strategy=one.candidate.way,
        possible=True,
        policy=policy_of_advice([one.candidate.entry]),
        share=one.candidate.share,
        reasons=one.reasons,
        reasons_against=one.reasons_against,
        refusal=None,
        hint=None,
    )


def _refused_row(one: Refusal) -> AlternativeRow:
    return AlternativeRow(
        strategy=one.way,
        possible=False,
        policy=None,
        share=None,
        reasons=(),
        reasons_against=(),
        refusal=one.why,
        hint=one.hint or None,
    )
