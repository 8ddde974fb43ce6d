"""The answer of ``advise`` for people, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from partage.advise.decide.advise import Alternative, ModelAdvice, Question
from partage.advise.decide.situation import Way
from partage.answers.wording import product_word
from partage.model.strategy import Strategy
from partage.text import count_of
from partage.units import format_bytes

WAYS = {Way.VGPU: "vGPU", **{Way(strategy.value): strategy.traits.word for strategy in Strategy}}
"""The strategies as people write them."""


def advice_lines(advice: ModelAdvice) -> Iterator[tuple[str, str]]:
    """The lines of one model, each with its style."""
    tenants = count_of(advice.situation.tenants, "tenant")
    yield (
        f"{product_word(advice.product)}, {tenants}, {advice.situation.workload}: {WAYS[advice.strategy]}",
        "bold",
    )
    yield share_sentence(advice), ""
    yield from (("+ " + reason, "green") for reason in advice.reasons)
    yield from (("- " + reason, "yellow") for reason in advice.reasons_against)
    yield "", ""
    yield "How it was decided", "bold"
    yield from ((f"  {question_sentence(question)}", "") for question in advice.path)
    yield "", ""
    yield "The others, the better ones first", "bold"
    for other in advice.alternatives:
        yield f"  {alternative_sentence(other)}", "" if other.possible else "dim"
    yield "", ""
    yield "Assumed", "bold"
    yield from ((f"  {assumption}", "dim") for assumption in advice.assumptions)


def share_sentence(advice: ModelAdvice) -> str:
    """What each tenant gets."""
    share = advice.share
    if advice.strategy is Way.VGPU:
        machines = count_of(share.shares, "virtual machine")
        size = format_bytes(share.memory_bytes)
        return f"{machines}, each with a vGPU of up to {size}, and 1 x {share.resource} inside of it."
    if share.asks:
        asks = ", ".join(
            f"{ask.count} x {ask.resource} ({format_bytes(ask.memory_bytes)})" for ask in share.asks
        )
        return f"The tenants ask for {asks}; memory guarantee: {share.means}."
    threads = f", {share.threads_percent}% of the SMs" if share.threads_percent is not None else ""
    profile = f" ({share.profile})" if share.profile else ""
    amount = f"{format_bytes(share.memory_bytes)}{profile}{threads}"
    return f"{share.shares} x {share.resource}, each {amount}; memory guarantee: {share.means}."


def question_sentence(question: Question) -> str:
    """A question with its answer, and where it led to."""
    if not question.answer:
        return f"{question.question} No."
    if question.but is not None:
        return f"{question.question} Yes, but {_way(question)} cannot be had: {question.but}."
    return f"{question.question} Yes: {_way(question)}."


def _way(question: Question) -> str:
    return WAYS[question.leads_to] if question.leads_to is not None else ""


def alternative_sentence(alternative: Alternative) -> str:
    """Another strategy in one line."""
    if alternative.share is None:
        return f"{WAYS[alternative.strategy]}: not here: {alternative.refusal}."
    against = f" {alternative.reasons_against[0]}" if alternative.reasons_against else ""
    each = "memory by amounts" if alternative.share.asks else format_bytes(alternative.share.memory_bytes)
    return f"{WAYS[alternative.strategy]}: {each}, {alternative.share.guarantee}.{against}"
