"""The answer of ``advise``: a strategy for each GPU model, its policy, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from partage.advise.decide.advise import Advice, Question, RankedWay
from partage.advise.decide.candidate import Candidate, WayRefusal
from partage.advise.decide.situation import Isolation, Preference, Scheduler, Situation, Way, Workload
from partage.advise.policy import policy_of_advice
from partage.answers.documents.document import Document, row
from partage.answers.wording import guarantee_words
from partage.model.ids import ResourceName
from partage.model.share import Guarantee
from partage.values import Frozen


class SituationRow(Frozen):
    """What is decided on. tenants: that share one GPU. memory_bytes: that the largest of them needs; null: an
    equal part is enough. sizes: what each needs, the largest first, where they differ. prefer: null: it does
    not matter. bursty: the tenants are idle most of the time.
    """

    isolation: Isolation
    tenants: int
    workload: Workload
    virtualised: bool
    licensed: bool
    scheduler: Scheduler
    memory_bytes: int | None
    prefer: Preference | None
    bursty: bool
    sizes: tuple[int, ...]


class AskRow(Frozen):
    """What one tenant asks for. needs_bytes: of memory. count: of the resource. memory_bytes: it then has."""

    needs_bytes: int
    resource: ResourceName
    count: int
    memory_bytes: int


class TenantShareRow(Frozen):
    """What each tenant gets, as the policy offers it on one GPU of this model.

    shares: on one GPU; for a vGPU: the number of virtual machines. resource: what a container asks for.
    memory_bytes: of the smallest share. threads_percent: of the multiprocessors, under MPS. profile: of the
    MIG device. guarantee: about its memory; means: what that is, in words. asks: what each tenant asks for,
    the largest first, where their sizes differ; else empty.
    """

    shares: int
    resource: ResourceName
    memory_bytes: int
    threads_percent: int | None
    profile: str | None
    guarantee: Guarantee
    means: str
    asks: tuple[AskRow, ...]


class QuestionRow(Frozen):
    """One question of the decision. leads_to: the strategy that a yes leads to. but: why that strategy cannot
    be had although the answer is yes, else null.
    """

    question: str
    answer: bool
    leads_to: Way | None
    but: str | None


class AlternativeRow(Frozen):
    """Another strategy, the better ones first. policy, share: null where it cannot be had; refusal says why,
    and hint what would make it possible.
    """

    strategy: Way
    possible: bool
    policy: Mapping[str, Any] | None
    share: TenantShareRow | None
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
    share: TenantShareRow
    reasons: tuple[str, ...]
    reasons_against: tuple[str, ...]
    alternatives: tuple[AlternativeRow, ...]
    situation: SituationRow
    assumptions: tuple[str, ...]
    path: tuple[QuestionRow, ...]


class AdviceDocument(Document, kw_only=True):
    """The answer of ``advise``. strategy: null where several models get different ones. policy: for all
    models, in Partage's format. share, reasons, reasons_against, alternatives, assumptions: of the first
    model. models: the advice for each model.
    """

    kind: Literal["Advice"] = "Advice"
    strategy: Way | None
    policy: Mapping[str, Any]
    share: TenantShareRow
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
        share=_share_row(best),
        reasons=one.best.reasons,
        reasons_against=one.best.reasons_against,
        alternatives=(*possible, *map(_refused_row, one.refused)),
        situation=_situation_row(one.situation),
        assumptions=one.assumptions,
        path=tuple(map(_question_row, one.path)),
    )


def _situation_row(one: Situation) -> SituationRow:
    return SituationRow(**{name: getattr(one, name) for name in SituationRow.__struct_fields__})


def _share_row(one: Candidate) -> TenantShareRow:
    return TenantShareRow(
        shares=one.shares,
        resource=one.resource,
        memory_bytes=one.memory_bytes,
        threads_percent=one.threads_percent,
        profile=None if one.profile is None else str(one.profile.profile),
        guarantee=one.guarantee,
        means=_means(one),
        asks=tuple(row(AskRow, ask) for ask in one.asks),
    )


def _means(one: Candidate) -> str:
    if one.way is Way.VGPU:
        return f"{one.guarantee}: inside of its virtual machine; the hypervisor keeps the machines apart"
    return guarantee_words(one.guarantee)


def _alternative_row(one: RankedWay) -> AlternativeRow:
    return AlternativeRow(
        strategy=one.candidate.way,
        possible=True,
        policy=policy_of_advice([one.candidate.entry]),
        share=_share_row(one.candidate),
        reasons=one.reasons,
        reasons_against=one.reasons_against,
        refusal=None,
        hint=None,
    )


def _refused_row(one: WayRefusal) -> AlternativeRow:
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


def _question_row(one: Question) -> QuestionRow:
    return QuestionRow(one.text, one.answer, one.leads_to, one.but or None)
