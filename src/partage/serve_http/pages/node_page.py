"""The page of one node, as sections with ids: what the browser shows at first, and what it replaces later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from partage.answers.documents.report import ReportDocument, ReportedGpuRow
from partage.answers.render.cards import GpuCard, HeldOnNode, cards_of
from partage.answers.render.rows import job_lines, limit_lines, pending_lines, waiting_lines, withdrawn_lines
from partage.answers.share_counts import (
    any_usable,
    count_by_resource,
    not_usable,
    problems_of_node,
    troubles_of_gpu,
)
from partage.answers.wording import part
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid, ResourceName
from partage.plan.offer.select import GeometryOf
from partage.plan.reconcile.node_plan import Phase
from partage.plan.report import PolicyReason
from partage.plan.serve.ledger_entry import Certainty
from partage.serve_http.pages.card import drawing
from partage.serve_http.pages.gpu_sections import HeldShares, gpu_use, holdings, hour_details, sampled
from partage.serve_http.pages.legend import CERTAINTIES
from partage.serve_http.pages.markup import (
    Child,
    bullets,
    element,
    foreign,
    foreign_path,
    html,
    moment,
    table,
)
from partage.text import count_of
from partage.units import format_bytes
from partage.values import Frozen

Sections = Mapping[str, str]
"""Id of a section to its HTML, in the order of the page. The section's element has that id."""
_IDS = 8
"""So many ids of held shares are named at most."""
_HOLDERS = 2
"""So many holders of a GPU are always to be seen: eight GPUs fit on a screen, and one on a phone's."""
_PROBLEMS = (Phase.FAILED, Phase.BLOCKED)
"""Phases of GPUs that do not become what the policy wants by waiting."""
SEPARATOR = " · "


def node_sections(report: ReportDocument, inventory: Inventory | None, geometry_of: GeometryOf) -> Sections:
    """All sections. inventory: None where the report does not tell it: the cards are not drawn then."""
    sections = {
        "state": _state(report),
        "policy": _policy(report),
        "waits": _waits(report, inventory),
        **_gpus(report, inventory, geometry_of),
        "resources": _resources(report),
        **_hours(report),
    }
    return {name: html(made) for name, made in sections.items()}


STANDINGS = {
    "not healthy": "The node gives no shares to pods, or a fault would not be noticed.",
    "no usable GPU": "Every GPU of the node is lost or unhealthy.",
    "degraded": "Something is wrong with the node, and pods still get shares.",
    "healthy": "Nothing is wrong that the agent knows of.",
}
"""What ``standing_of`` says, and what that means."""


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
            f" {about}{', simulated' if report.node.simulated else ''}. Updated ",
            moment(report.at),
            f". Agent {report.agent.version}.",
        ),
        bullets([*problems_of_node(report), *([driver.hint] if driver.hint else [])], "problem"),
        sampled(report.use),
        id="state",
    )


def _policy(report: ReportDocument) -> Element:
    policy = report.policy
    source = foreign(policy.source) if policy.source else "none: every GPU is exclusive"
    refused = policy.message and policy.reason is not PolicyReason.IN_FORCE
    problems = [f"{problem.severity}: {problem}" for problem in policy.problems]
    asked = report.mig_config
    layout: Child = None
    if asked is not None:
        text = f": {asked.state or 'not begun'}{'. ' + asked.reason if asked.reason else ''}"
        layout = element("p", "MIG layout by label ", foreign(asked.name), text)
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
    failed = {gpu.uuid: gpu.reason or "" for gpu in report.gpus if gpu.phase in _PROBLEMS}
    pending = {uuid: reason for uuid, reason in report.pending.items() if uuid not in failed}
    lines = [
        *([report.cordon] if report.cordon else []),
        *limit_lines(report.held, report.jobs),
        *waiting_lines(report.waiting),
        *withdrawn_lines(report.withdrawn),
        *_pending(inventory, pending),
    ]
    return element(
        "section",
        element("h2", "Pending changes"),
        bullets(_pending(inventory, failed), "problem"),
        bullets(dict.fromkeys(lines), "unsettled"),
        element("p", "None.", class_="dim") if not (lines or failed) else None,
        id="waits",
    )


def _pending(inventory: Inventory | None, reasons: Mapping[GpuUuid, str]) -> list[str]:
    return pending_lines(inventory, reasons) if inventory is not None else list(reasons.values())


# --- the GPUs ----------------------------------------------------------------------------------


def _gpus(report: ReportDocument, inventory: Inventory | None, geometry_of: GeometryOf) -> dict[str, Element]:
    cards: dict[int, GpuCard] = {}
    if inventory is not None:
        use = HeldOnNode(report.holders, report.troubles, not_usable(report), report.standings)
        cards = {card.index: card for card in cards_of(inventory, report.offer, use, geometry_of)}
    held = holdings(report)
    return {
        f"gpu-{gpu.index}": _gpu(gpu, cards.get(gpu.index), held.get(gpu.index, ()), report)
        for gpu in report.gpus
    }


def _gpu(
    gpu: ReportedGpuRow, card: GpuCard | None, held: Sequence[HeldShares], report: ReportDocument
) -> Element:
    name = card.product if card is not None else gpu.product
    how = card.sharing_text if card is not None else str(gpu.strategy or "offers nothing")
    lost = card.trouble if card is not None and not gpu.trouble else ""
    troubles = [*([lost] if lost else []), *troubles_of_gpu(gpu)]
    standing = report.standings.get(gpu.uuid, "")
    offered = report.offer.get(gpu.uuid, ())
    resources = list(dict.fromkeys(offering.resource for offering in offered))
    said_once = _SaidOnce(
        resource=card is not None and len(resources) == 1,
        guarantee=card is not None and len({offering.guarantee for offering in offered}) == 1,
    )
    heading, jobs = f"gpu-{gpu.index}-name", job_lines(report.jobs, gpu.uuid)
    return element(
        "article",
        element(
            "header",
            element("h3", f"GPU {gpu.index} ", foreign(name, class_="dim product"), id=heading),
            element("span", how, class_=f"how {gpu.strategy or 'none'}"),
        ),
        drawing(card) if card is not None else None,
        *(element("p", trouble, class_="problem") for trouble in troubles),
        element("p", standing, class_="unsettled") if standing else None,
        _offered(card, resources) if card is not None and offered else None,
        _use(gpu, report),
        *(_holders(gpu.index, held, said_once) if held or not jobs else ()),
        bullets(jobs, "dim small"),
        _daemons(gpu),
        element("p", gpu.uuid, class_="dim small uuid"),
        id=f"gpu-{gpu.index}",
        class_="card trouble" if troubles else "card",
        aria_labelledby=heading,
    )


class _SaidOnce(Frozen):
    """What is the same for all shares of a GPU, so that it is said of the GPU and not of each holder."""

    resource: bool
    guarantee: bool


def _offered(card: GpuCard, resources: Sequence[ResourceName]) -> Element:
    """Its shares, and what they guarantee."""
    names: list[Child] = []
    for number, name in enumerate(resources):
        names += [", " if number else " of ", foreign(name)]
    *shares, guarantee = card.facts
    word, _, meaning = guarantee.partition(": ")
    said = element("span", f"guarantee {word}", title=meaning, class_="whole")
    return element("p", "; ".join(shares), *names, SEPARATOR, said, class_="dim small")


def _use(gpu: ReportedGpuRow, report: ReportDocument) -> Element | None:
    if report.use is None:
        return None
    now = next((row for row in report.use.gpus if row.gpu == gpu.uuid), None)
    return gpu_use(gpu.index, now, report.use.hour.get(gpu.uuid))


def _hours(report: ReportDocument) -> dict[str, Element]:
    """The numbers of the curves, for those who cannot see them; none where there is no curve."""
    hours = {} if report.use is None else report.use.hour
    shown = [hour_details(gpu.index, hours[gpu.uuid]) for gpu in report.gpus if gpu.uuid in hours]
    if not shown:
        return {}
    return {"hours": element("section", element("h2", "The last hour in numbers"), *shown, id="hours")}


def _daemons(gpu: ReportedGpuRow) -> Element | None:
    lines = []
    for daemon in gpu.mps_daemons:
        which = "" if daemon.device == gpu.uuid else f" of {daemon.device}"
        why = f": {daemon.reason}" if daemon.reason else ""
        lines.append(f"MPS daemon{which}: {daemon.state}, {count_of(daemon.clients, 'client')}{why}")
    return bullets(lines, "dim small")


def _holders(index: int, held: Sequence[HeldShares], said: _SaidOnce) -> Iterator[Element]:
    """Who holds shares: the first ones always to be seen, the others to be opened."""
    if not held:
        yield element("p", "Nobody holds a share.", class_="dim")
        return
    first, more = held[:_HOLDERS], held[_HOLDERS:]
    name = f"Who holds shares of GPU {index}"
    yield element(
        "ul", *(_holding(held_shares, said) for held_shares in first), class_="holders", aria_label=name
    )
    if more:
        yield element(
            "details",
            element("summary", f"and {count_of(len(more), 'other holder')}"),
            element(
                "ul",
                *(_holding(held_shares, said) for held_shares in more),
                class_="holders",
                aria_label=f"{name}, the others",
            ),
            id=f"gpu-{index}-holders",
        )


def _holding(one: HeldShares, said: _SaidOnce) -> Element:
    who: list[Child] = []
    for number, name in enumerate(one.holders):
        who += [" or " if number else None, foreign_path(name)]
    what = count_of(len(one.shares), "unit" if one.by_memory else "share")
    more = [f"and {len(one.shares) - _IDS} more"] if len(one.shares) > _IDS else []
    shares = element("span", what, title="\n".join([*one.shares[:_IDS], *more]))
    certainty = CERTAINTIES.get(one.certainty)
    if not who:
        who, certainty = [CERTAINTIES[Certainty.TENTATIVE]], None
    meter, figures = _memory(one)
    facts: list[Child] = []
    if not said.resource:
        facts += [shares, " of ", foreign_path(str(one.resource)), SEPARATOR]
    elif len(one.shares) > 1:
        facts += [shares, SEPARATOR]
    facts += figures
    if one.use is not None and one.use.utilisation is not None:
        facts += [SEPARATOR, element("span", f"{part(one.use.utilisation)} busy", class_="whole")]
    if one.guarantee and not said.guarantee:
        facts += [SEPARATOR, element("span", str(one.guarantee), title=one.guarantee.means)]
    facts += [SEPARATOR, element("span", "since ", moment(one.since), class_="whole")]
    return element(
        "li",
        element(
            "span",
            element("span", *who, class_="who"),
            element("span", certainty, class_="unsettled") if certainty else None,
            meter,
            class_="holder",
        ),
        element("span", *facts, class_="dim small what-held"),
    )


def _memory(one: HeldShares) -> tuple[Element | None, list[Child]]:
    """Used against promised: a bar, and the figures."""
    promised = "" if one.promised_bytes is None else format_bytes(one.promised_bytes)
    use = one.use
    if use is None:
        text = f"memory used not known, of {promised}" if promised else "memory used not known"
        return None, [element("span", text)]
    used = ("at least " if use.at_least else "") + format_bytes(use.used_bytes)
    if not one.promised_bytes:
        return None, [element("span", used)]
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
    figures: list[Child] = [_amount(now, over=over)]
    if peak:
        figures += [", ", _amount(peak, over=(use.peak_bytes or 0) > one.promised_bytes)]
    return meter, figures


def _amount(text: str, *, over: bool) -> Element:
    """In one line; over: in the colour of what is wrong."""
    return element("span", text, class_="whole over" if over else "whole")


# --- the resources -----------------------------------------------------------------------------


def _resources(report: ReportDocument) -> Element:
    counts = count_by_resource(report)
    rows: list[tuple[Child, ...]] = [
        (
            foreign(resource.name),
            str(counts[resource.name].held),
            str(counts[resource.name].free),
            str(counts[resource.name].not_usable),
            resource.strategy or "",
            element("span", str(resource.guarantee), title=resource.guarantee.means)
            if resource.guarantee
            else "",
            "yes" if resource.registered else f"no: {resource.last_error or 'not yet'}",
        )
        for resource in report.resources
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
