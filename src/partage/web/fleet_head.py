"""What stands above many nodes: totals, and chips that choose among the nodes. Both as HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlencode
from xml.etree.ElementTree import Element

from partage.answers.share_counts import ShareCount
from partage.model.ids import ResourceName
from partage.serve_http.pages.markup import Child, element, foreign, html
from partage.text import count_of
from partage.web.glance import CHANGING, IDLE, Glance, NodeTotals


def rank_of(standing: tuple[str, str]) -> tuple[int, str]:
    """The worst first."""
    return ("bad", "warn", "good").index(standing[1]), standing[0]


def totals_section(glances: Sequence[Glance]) -> str:
    """GPUs, shares of each resource, and what is held and does nothing."""
    known = [one.totals for one in glances if one.totals is not None]
    shares: dict[ResourceName, ShareCount] = {}
    for one in known:
        for name, count in one.shares.items():
            shares[name] = shares.get(name, ShareCount()) + count
    old = len(glances) - len(known)
    broken = sum(one.broken for one in known)
    tiles = [
        _tile("Nodes", str(len(glances)), f"{old} not counted here: not up to date" if old else ""),
        _tile("GPUs", str(sum(one.gpus for one in known)), f"{broken} lost or unhealthy" if broken else ""),
        _idle_tile(known),
        *(_shares_tile(name, shares[name]) for name in sorted(shares)),
    ]
    return html(
        element(
            "section",
            element("h2", "In total", class_="unseen"),
            element("dl", *tiles),
            id="totals",
            class_="totals",
        )
    )


def _tile(name: Child, figure: str, more: str = "") -> Element:
    said = element("dd", more, class_="dim small") if more else None
    return element("div", element("dt", name), element("dd", element("strong", figure)), said)


def _shares_tile(name: str, count: ShareCount) -> Element:
    lost = f", {count.not_usable} not usable" if count.not_usable else ""
    return _tile(foreign(name), f"{count.free} free", f"{count.held} held{lost}")


def _idle_tile(known: Sequence[NodeTotals]) -> Element:
    told = [one for one in known if one.idle is not None]
    name = "Held but idle for an hour"
    if known and not told:
        return _tile(name, "not known", "agents do not publish it")
    unknown = sum(one.unknown for one in told)
    idle = sum(one.idle or 0 for one in told)
    return _tile(name, count_of(idle, "GPU"), f"not known of {count_of(unknown, 'GPU')}" if unknown else "")


def chips_section(glances: Sequence[Glance], chosen: str = "", asked: str = "") -> str:
    """How many nodes are how, the worst first: each shows those nodes alone."""
    counts = Counter(one.standing for one in glances)
    chips: list[Child] = [_chip("", count_of(len(glances), "node"), "all", chosen, asked)]
    for (word, kind), count in sorted(counts.items(), key=lambda one: rank_of(one[0])):
        chips += [" ", _chip(word.replace(" ", "-"), f"{count} {word}", kind, chosen, asked)]
    for name in (IDLE, CHANGING):
        if some := [one.filters[name] for one in glances if name in one.filters]:
            chips += [" ", _chip(name, f"{len(some)} {some[0]}", "warn", chosen, asked)]
    parts = element("p", *chips, class_="chips")
    return html(
        element("section", element("h2", "Show", class_="unseen"), parts, id="summary", class_="summary")
    )


def _chip(name: str, said: str, kind: str, chosen: str, asked: str) -> Element:
    query = urlencode({key: value for key, value in (("show", name), ("q", asked)) if value})
    return element(
        "a",
        said,
        href=f"/?{query}" if query else "/",
        class_=f"chip {kind}",
        data_show_only=name,
        aria_current="true" if name == chosen else None,
    )
