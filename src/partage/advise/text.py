"""The answer of ``advise``: as a document, as lines of text, and the path of the decision as a drawing:
Mermaid, or boxes and labels for an SVG.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from partage.advise.decide.advise import Alternative, ModelAdvice, Question
from partage.advise.decide.candidate import TenantShare, policy_of_all
from partage.advise.decide.situation import Way
from partage.answers.documents.document import Document, row
from partage.answers.render.drawing import (
    DIM,
    INK,
    LINE,
    PAPER,
    TROUBLE,
    UNCUT,
    Box,
    Drawing,
    Label,
    Shape,
    check_ending,
    svg,
)
from partage.answers.wording import product_word
from partage.model.strategy import Strategy
from partage.text import count_of
from partage.units import format_bytes


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


_MARGIN, _BOX, _LEAF, _GAP, _DOWN = 20, 430, 310, 60, 22
_LETTER, _LINE, _SIZE = 7, 18, 12
_TAKEN, _TAKEN_FILL = "#2e7d32", "#e0f0e1"


def check_path_name(path: str) -> str:
    """The file name's ending, ``.mmd`` or ``.svg``. Raises InputError for another one."""
    return check_ending(path, (".mmd", ".svg"), "a path is written as .mmd (Mermaid) or .svg", "path.svg")


def path_file(models: Sequence[ModelAdvice], path: str) -> str:
    """The content of a file of that name."""
    return mermaid(models) if check_path_name(path) == ".mmd" else svg(path_drawing(models))


# --- Mermaid -----------------------------------------------------------------------------------


def mermaid(models: Sequence[ModelAdvice]) -> str:
    """A flowchart: questions, their answers, and the strategies. The path that was taken is coloured."""
    lines = ["flowchart TD"]
    for number, model in enumerate(models):
        lines += (f"  {line}" for line in _mermaid_model(f"m{number}", model))
    style = f"fill:{_TAKEN_FILL},stroke:{_TAKEN}"
    return "\n".join([*lines, f"  classDef taken {style}", ""])


def _mermaid_model(name: str, model: ModelAdvice) -> Iterator[str]:
    yield f'{name}["{_quoted(product_word(model.product))}"]:::taken'
    previous, edge = name, "-->"
    for number, question in enumerate(model.path):
        here, leaf = f"{name}q{number}", f"{name}w{number}"
        yield f'{previous} {edge} {here}{{"{_quoted(question.question)}"}}:::taken'
        way = _leaf(question)
        if question.decides:
            yield f'{here} ==>|yes| {leaf}(["{_quoted(way)}"]):::taken'
            return
        link = f"-.->|{'yes, but' if question.answer else 'yes'}|"
        yield f'{here} {link} {leaf}(["{_quoted(way)}"])'
        previous, edge = here, f"-->|{'else' if question.answer else 'no'}|"
    yield f'{previous} {edge} {name}best(["{_quoted(WAYS[model.strategy])}, the best that is left"]):::taken'


def _quoted(text: str) -> str:
    """Text in Mermaid's quotes."""
    return text.replace("#", "#35;").replace('"', "#quot;")


def _leaf(question: Question) -> str:
    """The strategy beside a question, and why it cannot be had."""
    way = WAYS[question.leads_to] if question.leads_to is not None else ""
    return f"{way}: {question.but}" if question.but else way


# --- SVG ---------------------------------------------------------------------------------------


def path_drawing(models: Sequence[ModelAdvice]) -> Drawing:
    """All models, one below the other: questions on the left, beside them what they lead to."""
    shapes: list[Shape] = []
    y = float(_MARGIN)
    for model in models:
        shapes.append(Label(_MARGIN, y + 14, product_word(model.product), 15, bold=True))
        y += 28
        for question in model.path:
            y = _draw_question(question, y, shapes)
        if not model.path[-1].decides:
            y = _draw_leaf(f"{WAYS[model.strategy]}, the best that is left", _MARGIN, y, shapes, taken=True)
        for line in textwrap.wrap(share_sentence(model), (_BOX + _GAP + _LEAF) // _LETTER):
            shapes.append(Label(_MARGIN, y + 12, line, _SIZE, DIM))
            y += _LINE
        y += _DOWN
    width = 2 * _MARGIN + _BOX + _GAP + _LEAF
    return Drawing(width, int(y), (Box(0, 0, width, y, PAPER), *shapes))


def _draw_question(question: Question, y: float, shapes: list[Shape]) -> float:
    """One question and its leaf; where the next one begins."""
    right = _MARGIN + _BOX
    height = _draw_box(question.question, _MARGIN, y, _BOX, shapes, taken=True)
    middle = y + height / 2
    colour = _TAKEN if question.decides else LINE
    shapes.append(Box(right, middle, _GAP, 2 if question.decides else 1, colour))
    word = "yes" if question.but is None else "yes, but"
    shapes.append(Label(right + 6, middle - 5, word, 11, _TAKEN if question.decides else DIM))
    end = _draw_leaf(
        _leaf(question), right + _GAP, y, shapes, taken=question.decides, refused=question.but is not None
    )
    below = max(y + height + _DOWN, end)
    if not question.decides:
        shapes.append(Box(_MARGIN + 20, y + height, 2, below - y - height, _TAKEN))
        shapes.append(Label(_MARGIN + 28, y + height + 15, "else" if question.answer else "no", 11, _TAKEN))
    return below


def _draw_leaf(
    text: str, x: float, y: float, shapes: list[Shape], *, taken: bool, refused: bool = False
) -> float:
    height = _draw_box(text, x, y, _LEAF, shapes, taken=taken, colour=TROUBLE if refused else "")
    return y + height + _DOWN


def _draw_box(
    text: str, x: float, y: float, width: int, shapes: list[Shape], *, taken: bool, colour: str = ""
) -> float:
    """A box with folded text; its height."""
    lines = textwrap.wrap(text, (width - 20) // _LETTER)
    height = 14 + _LINE * len(lines)
    fill, stroke = (_TAKEN_FILL, _TAKEN) if taken else (UNCUT, LINE)
    shapes.append(Box(x, y, width, height, fill, stroke))
    ink = colour or (INK if taken else DIM)
    for number, line in enumerate(lines):
        shapes.append(Label(x + 10, y + 20 + _LINE * number, line, _SIZE, ink))
    return height
