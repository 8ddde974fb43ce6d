"""The page of one node, as sections with ids: what the browser shows at first, and what it replaces later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from partage.faces.documents.report import ReportDocument, ReportedGpuRow
from partage.faces.render.cards import GpuCard, HeldOnNode, cards_of
from partage.faces.render.rows import pending_lines, waiting_lines, withdrawn_lines
from partage.faces.share_counts import any_usable, count_by_resource, not_usable
from partage.faces.web.card import drawing
from partage.faces.web.holdings import HeldShares, Uses, holdings
from partage.faces.web.markup import Child, element, foreign, foreign_path, html
from partage.faces.web.moment import moment
from partage.faces.web.parts import bullets, table
from partage.faces.wording import GUARANTEES
from partage.model.gpu import Inventory
from partage.plan.offer.select import GeometryOf
from partage.plan.report import PolicyReason
from partage.text import count_of
from partage.units import format_bytes

Sections = Mapping[str, str]
"""Id of a section to its HTML, in the order of the page. The section's element has that id."""
_IDS = 8
"""So many ids of held shares are named at most."""


def node_sections(
    report: ReportDocument, inventory: Inventory | None, geometry_of: GeometryOf, uses: Uses | None = None
) -> Sections:
    """All sections. inventory: None where the report does not tell it: the cards are not drawn then.

    uses: measured now; without them, what the watchdog saw last.
    """
    sections = {
        "state": _state(report),
        "policy": _policy(report),
        "waits": _waits(report, inventory),
        **_gpus(report, inventory, geometry_of, holdings(report, uses or {})),
        "resources": _resources(report),
    }
    return {name: html(made) for name, made in sections.items()}


def standing_of(report: ReportDocument) -> tuple[str, str]:
    """In a word how the node is, and the class of the style sheet for it."""
    if not report.healthy:
        return "not healthy", "bad"
    if not any_usable(report):
        return "no usable GPU", "bad"
    return ("degraded", "warn") if report.degraded else ("healthy", "good")


# --- the head ----------------------------------------------------------------------------------


def _state(report: ReportDocument) -> Element:
    driver = report.node.driver
    about = f"Driver {driver.version}, CUDA {driver.cuda}" if driver.state == "ok" else (driver.reason or "")
    word, kind = standing_of(report)
    return element(
        "section",
        element("h2", "State", class_="unseen"),
        element(
            "p",
            element("strong", word, class_=f"chip {kind}"),
            f" {about}{', simulated' if report.node.simulated else ''}. As of ",
            moment(report.at),
            f". Agent {report.agent.version}.",
        ),
        bullets([*report.messages, *([driver.hint] if driver.hint else [])], "problem"),
        id="state",
    )


def _policy(report: ReportDocument) -> Element:
    policy = report.policy
    source = foreign(policy.source) if policy.source else "none: every GPU is exclusive"
    refused = policy.message and policy.reason is not PolicyReason.IN_FORCE
    problems = [f"{one.severity}: {one}" for one in policy.problems]
    asked = report.mig_config
    layout: Child = None
    if asked is not None:
        said = f": {asked.state or 'not begun'}{'. ' + asked.reason if asked.reason else ''}"
        layout = element("p", "MIG layout by label ", foreign(asked.name), said)
    return element(
        "section",
        element("h2", "Policy in force"),
        element(
            "p",
            source,
            f", configuration {policy.config}" if policy.config else None,
            f", chosen by {policy.chosen_by}" if policy.chosen_by else None,
        ),
        element("p", policy.message, class_="problem") if refused else None,
        bullets(problems, "problem"),
        layout,
        id="policy",
    )


def _waits(report: ReportDocument, inventory: Inventory | None) -> Element:
    lines = [
        *([report.cordon] if report.cordon else []),
        *waiting_lines(report.waiting),
        *withdrawn_lines(report.withdrawn),
        *(pending_lines(inventory, report.pending) if inventory is not None else report.pending.values()),
    ]
    shown = bullets(dict.fromkeys(lines), "unsettled") if lines else element("p", "None.", class_="dim")
    return element("section", element("h2", "Pending changes"), shown, id="waits")


# --- the GPUs ----------------------------------------------------------------------------------


def _gpus(
    report: ReportDocument,
    inventory: Inventory | None,
    geometry_of: GeometryOf,
    held: Mapping[int, Sequence[HeldShares]],
) -> dict[str, Element]:
    cards: dict[int, GpuCard] = {}
    if inventory is not None:
        use = HeldOnNode(report.holders, report.troubles, not_usable(report), report.standings)
        cards = {card.index: card for card in cards_of(inventory, report.offer, use, geometry_of)}
    return {
        f"gpu-{gpu.index}": _gpu(
            gpu, cards.get(gpu.index), held.get(gpu.index, ()), report.standings.get(gpu.uuid, "")
        )
        for gpu in report.gpus
    }


def _gpu(gpu: ReportedGpuRow, card: GpuCard | None, held: Sequence[HeldShares], standing: str) -> Element:
    name = card.product if card is not None else gpu.product
    how = card.sharing_text if card is not None else str(gpu.strategy or "offers nothing")
    trouble = (card.trouble if card is not None else "") or gpu.trouble
    shares = "; ".join(card.facts) if card is not None else ""
    heading = f"gpu-{gpu.index}-name"
    return element(
        "article",
        element(
            "header",
            element("h3", f"GPU {gpu.index} ", foreign(name), id=heading),
            element("span", how, class_=f"how {gpu.strategy or 'none'}"),
        ),
        drawing(card) if card is not None else None,
        element("p", trouble, class_="problem") if trouble else None,
        element("p", standing, class_="unsettled") if standing else None,
        element("p", shares, class_="dim") if shares else None,
        table(
            f"Who holds shares of GPU {gpu.index}",
            ("Container", "Shares", "Memory used", "Guarantee", "Since"),
            [_holding(one) for one in held],
        )
        if held
        else element("p", "Nobody holds a share.", class_="dim"),
        _daemons(gpu),
        element("p", gpu.uuid, class_="dim small"),
        id=f"gpu-{gpu.index}",
        class_="card trouble" if trouble else "card",
        aria_labelledby=heading,
    )


def _daemons(gpu: ReportedGpuRow) -> Element | None:
    lines = [
        f"MPS daemon of {one.device}: {one.state}, {count_of(one.clients, 'client')}"
        + (f": {one.reason}" if one.reason else "")
        for one in gpu.mps_daemons
    ]
    return bullets(lines, "dim small")


def _holding(one: HeldShares) -> tuple[Child, ...]:
    who: list[Child] = []
    for number, name in enumerate(one.holders):
        who += [" or " if number else None, foreign_path(name)]
    what = count_of(len(one.shares), "unit" if one.by_memory else "share")
    more = [f"and {len(one.shares) - _IDS} more"] if len(one.shares) > _IDS else []
    shares = element("span", what, title="\n".join([*one.shares[:_IDS], *more]))
    return (
        element("span", *(who or ["not known yet"])),
        element(
            "span",
            shares,
            " of ",
            foreign_path(str(one.resource)),
            " ",
            element("span", one.certainty, class_="dim"),
        ),
        _memory(one),
        element("span", str(one.guarantee), title=GUARANTEES[one.guarantee], class_="whole")
        if one.guarantee
        else "",
        moment(one.since),
    )


def _memory(one: HeldShares) -> Element:
    """Used against promised: a bar and the figures."""
    promised = "" if one.promised_bytes is None else format_bytes(one.promised_bytes)
    use = one.use
    if use is None:
        return element("span", f"not known of {promised}" if promised else "not known", class_="dim")
    used = ("at least " if use.at_least else "") + format_bytes(use.used_bytes)
    if not one.promised_bytes:
        return element("span", used)
    now, peak = f"{used} of {promised}", ""
    if use.peak_bytes is not None and use.peak_bytes > use.used_bytes:
        peak = f"peak {format_bytes(use.peak_bytes)}"
    over = use.used_bytes > one.promised_bytes
    meter = element(
        "meter",
        now,
        min="0",
        max=str(one.promised_bytes),
        value=str(min(use.used_bytes, one.promised_bytes)),
        high=str(one.promised_bytes // 2) if over else None,  # with a low optimum: red
        optimum="0" if over else None,
        low="1" if over else None,
        aria_label=f"{now}, {peak}" if peak else now,
    )
    return element(
        "span",
        meter,
        " ",
        _amount(now, over=over),
        ", " if peak else None,
        _amount(peak, over=(use.peak_bytes or 0) > one.promised_bytes) if peak else None,
    )


def _amount(text: str, *, over: bool) -> Element:
    """In one line; over: in the colour of what is wrong."""
    return element("span", text, class_="whole over" if over else "whole")


# --- the resources -----------------------------------------------------------------------------


def _resources(report: ReportDocument) -> Element:
    counts = count_by_resource(report)
    rows: list[tuple[Child, ...]] = [
        (
            foreign(one.name),
            str(counts[one.name].held),
            str(counts[one.name].free),
            str(counts[one.name].not_usable),
            one.strategy or "",
            element("span", str(one.guarantee), title=GUARANTEES[one.guarantee]) if one.guarantee else "",
            "yes" if one.registered else f"no: {one.last_error or 'not yet'}",
        )
        for one in report.resources
    ]
    return element(
        "section",
        element("h2", "What pods can ask for"),
        table(
            "Resources",
            ("Resource", "Held", "Free", "Not usable", "Shared by", "Guarantee", "Known to the kubelet"),
            rows,
        ),
        id="resources",
    )
