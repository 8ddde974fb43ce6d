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


def advice_lines(one: ModelAdvice) -> Iterator[tuple[str, str]]:
    """The lines of one model, each with its style."""
    tenants = count_of(one.situation.tenants, "tenant")
    yield f"{product_word(one.product)}, {tenants}, {one.situation.workload}: {WAYS[one.strategy]}", "bold"
    yield share_sentence(one), ""
    yield from (("+ " + reason, "green") for reason in one.reasons)
    yield from (("- " + reason, "yellow") for reason in one.reasons_against)
    yield "", ""
    yield "How it was decided", "bold"
    yield from ((f"  {question_sentence(question)}", "") for question in one.path)
    yield "", ""
    yield "The others, the better ones first", "bold"
    for other in one.alternatives:
        yield f"  {alternative_sentence(other)}", "" if other.possible else "dim"
    yield "", ""
    yield "Assumed", "bold"
    yield from ((f"  {assumption}", "dim") for assumption in one.assumptions)


def share_sentence(one: ModelAdvice) -> str:
    """What each tenant gets."""
    share = one.share
    if one.strategy is Way.VGPU:
        machines = count_of(share.shares, "virtual machine")
        size = format_bytes(share.memory_bytes)
        return f"{machines}, each with a vGPU of up to {size}, and 1 x {share.resource} inside of it."
    if share.asks:
        asks = ", ".join(
            f"{one.count} x {one.resource} ({format_bytes(one.memory_bytes)})" for one in share.asks
        )
        return f"The tenants ask for {asks}; memory guarantee: {share.means}."
    threads = f", {share.threads_percent}% of the SMs" if share.threads_percent is not None else ""
    profile = f" ({share.profile})" if share.profile else ""
    amount = f"{format_bytes(share.memory_bytes)}{profile}{threads}"
    return f"{share.shares} x {share.resource}, each {amount}; memory guarantee: {share.means}."


def question_sentence(one: Question) -> str:
    """A question with its answer, and where it led to."""
    if not one.answer:
        return f"{one.question} No."
    if one.but is not None:
        return f"{one.question} Yes, but {_way(one)} cannot be had: {one.but}."
    return f"{one.question} Yes: {_way(one)}."


def _way(one: Question) -> str:
    return WAYS[one.leads_to] if one.leads_to is not None else ""


def alternative_sentence(one: Alternative) -> str:
    """Another strategy in one line."""
    if one.share is None:
        return f"{WAYS[one.strategy]}: not here: {one.refusal}."
    against = f" {one.reasons_against[0]}" if one.reasons_against else ""
    each = "memory by amounts" if one.share.asks else format_bytes(one.share.memory_bytes)
    return f"{WAYS[one.strategy]}: {each}, {one.share.guarantee}.{against}"
