"""Many nodes at a glance: totals, chips that choose among the nodes, a row for each, the worst first, and
the page of each behind its name.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2s
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote, urlencode
from xml.etree.ElementTree import Element

from partage.agent.log import Seldom
from partage.answers.share_counts import ShareCount
from partage.model.ids import ResourceName
from partage.serve_http.http import Answer, Page, PageRequest, Stream
from partage.serve_http.http_access import STATIC
from partage.serve_http.pages import markup
from partage.serve_http.pages.agent_page import changes, static_page
from partage.serve_http.pages.legend import fleet_legend, node_legend
from partage.serve_http.pages.markup import Child, element, foreign, html
from partage.serve_http.pages.node_page import Sections
from partage.text import count_of
from partage.values import Frozen
from partage.web.node_views import CHANGING, IDLE, Glance, NodeTotals

_HTML = "text/html; charset=utf-8"
N = TypeVar("N")
T = TypeVar("T")
N_co = TypeVar("N_co", covariant=True)
N_contra = TypeVar("N_contra", contravariant=True)


log = logging.getLogger(__name__)
_failures = Seldom()
_CANNOT = "cannot be shown"


class ShownFleet(Protocol[N_co]):
    """The nodes as they are known now."""

    @property
    def nodes(self) -> Mapping[str, N_co]:
        """By name. A node that has not changed is the same object."""

    @property
    def mark(self) -> object:
        """Another one when something may have changed."""

    @property
    def words(self) -> str:
        """Their origin, a sentence for the foot of the page."""

    @property
    def news(self) -> Sections:
        """Sections that stand before the nodes, and change with them."""


class NodeViews(Protocol[N_contra]):
    """How the nodes of a fleet are shown."""

    @property
    def standings(self) -> Mapping[str, str]:
        """What it says of how nodes are, to what that means."""

    def glance(self, node: N_contra) -> Glance:
        """Among all nodes."""

    def sections(self, node: N_contra) -> Sections:
        """Its own page."""

    def grouped(self, sections: Sections) -> str:
        """Those sections in their places, as HTML."""


class _Shown(Frozen, Generic[N]):
    """A node as it was written. words: in lower case, each once."""

    node: N
    glance: Glance
    text: str
    words: str


class FleetPages(Generic[N]):
    """``/``: all nodes; ``/node?name=NAME``: one of them; ``/events`` for what changes on either."""

    def __init__(self, fleet: ShownFleet[N], views: NodeViews[N]) -> None:
        self._fleet = fleet
        self._views = _EachAlone(views)
        self._shown: dict[str, _Shown[N]] = {}
        self._nodes: dict[str, tuple[N, Sections]] = {}

    def pages(self) -> dict[str, Page]:
        """By path."""
        return {
            "/": self._all,
            "/node": self._one,
            "/events": self._events,
            "/livez": lambda _: (HTTPStatus.OK, "text/plain", b"ok\n"),
            **dict.fromkeys(STATIC, static_page),
        }

    def _all(self, request: PageRequest) -> Answer:
        asked, chosen = request.query.get("q", ""), request.query.get("show", "")
        shown = self._all_shown()
        found = {name for name, one in shown.items() if _matches(one, asked, chosen)}
        # The others are there, too: the script finds them when the search changes, and where they change.
        rows = [
            one.text if name in found else one.text.replace("<article ", "<article hidden ", 1)
            for name, one in shown.items()
        ]
        count = element("span", f"{len(found)} shown", id="count", role="status")
        box = element("input", type="search", name="q", id="q", value=asked, autocomplete="off")
        label = element("label", "Search for a node, a GPU, a pod or a problem ", for_="q")
        show = element("input", type="hidden", name="show", id="show", value=chosen)
        form = element("form", label, box, show, " ", count, role="search", method="get", action="/")
        glances = [shown_node.glance for shown_node in shown.values()]
        head = (
            *self._fleet.news.values(),
            totals_section(glances),
            chips_section(glances, chosen, asked),
            html(form),
        )
        body = "".join((*head, '<section aria-label="Nodes" class="nodes">', *rows, "</section>"))
        document = markup.document(
            "Nodes", body, events="/events", top=fleet_legend(self._views.standings), source=self._fleet.words
        )
        return HTTPStatus.OK, _HTML, document

    def _one(self, request: PageRequest) -> Answer:
        name = request.query.get("name", "")
        node = self._fleet.nodes.get(name)
        news = "".join(self._fleet.news.values())
        if node is None:
            text = html(
                element("section", element("p", "There is no node ", foreign(name or "without a name"), "."))
            )
            body = markup.document(
                "No such node", news + text, events="", top=_back(), source=self._fleet.words
            )
            return HTTPStatus.NOT_FOUND, _HTML, body
        body = markup.document(
            f"{name}: GPUs",
            news + self._views.grouped(self._sections(name, node)),
            events=f"/events?node={quote(name, safe='')}",
            top=element("div", _back(), node_legend(self._views.standings), class_="key"),
            source=self._fleet.words,
        )
        return HTTPStatus.OK, _HTML, body

    def _events(self, request: PageRequest) -> Stream:
        name = request.query.get("node")

        def sections() -> Mapping[str, str]:
            news = self._fleet.news
            if name is None:
                shown = self._all_shown()
                glances = [shown_node.glance for shown_node in shown.values()]
                rows = {_row_id(one): row.text for one, row in shown.items()}
                return {**news, "totals": totals_section(glances), "summary": chips_section(glances), **rows}
            node = self._fleet.nodes.get(name)
            return news if node is None else {**news, **self._sections(name, node)}

        def events(runs: Callable[[], bool]) -> Iterator[str]:
            return changes(lambda: (self._fleet.mark, sections), runs)

        return Stream(events)

    def _sections(self, name: str, node: N) -> Sections:
        known = self._nodes.get(name)
        if known is None or known[0] is not node:
            known = node, self._views.sections(node)
            self._nodes[name] = known
        return known[1]

    def _all_shown(self) -> dict[str, _Shown[N]]:
        """All nodes by name, the worst first. One is written again when it has changed."""
        found = {}
        for name, node in self._fleet.nodes.items():
            known = self._shown.get(name)
            found[name] = known if known is not None and known.node is node else self._show(name, node)
        self._shown = dict(sorted(found.items(), key=lambda one: (rank_of(one[1].glance.standing), one[0])))
        return self._shown

    def _show(self, name: str, node: N) -> _Shown[N]:
        glance = self._views.glance(node)
        words = " ".join(dict.fromkeys((name, *glance.words))).lower()
        word, kind = glance.standing
        row = element(
            "article",
            element(
                "header",
                element("h2", element("a", foreign(name), href=f"/node?name={quote(name, safe='')}")),
                element("strong", word, class_=f"chip {kind}"),
            ),
            *glance.row,
            class_="card node",
            id=_row_id(name),
            data_words=words,
            data_show=" ".join(glance.filters),
        )
        return _Shown(node, glance, html(row), words)


def _matches(one: _Shown[N], asked: str, chosen: str) -> bool:
    asked = asked.strip().lower()
    return (not asked or asked in one.words) and (not chosen or chosen in one.glance.filters)


class _EachAlone(Generic[N]):
    """Views of nodes. What a node says comes from elsewhere: where it cannot be shown, its row says so, and
    the rows of the others are as they are.
    """

    def __init__(self, views: NodeViews[N]) -> None:
        self._views = views
        self.grouped = views.grouped
        self.standings = {**views.standings, _CANNOT: "What the node says is not what an agent says."}

    def glance(self, node: N) -> Glance:
        return _or(lambda: self._views.glance(node), Glance((_cannot(),), (_CANNOT, "bad")))

    def sections(self, node: N) -> Sections:
        return _or(
            lambda: self._views.sections(node), {"state": html(element("section", _cannot(), id="state"))}
        )


def _cannot() -> Element:
    return element("p", "What this node says cannot be shown; the log says why.", class_="problem")


def _or(shown: Callable[[], T], otherwise: T) -> T:
    try:
        return shown()
    except Exception:  # whatever another node says
        if (left_out := _failures.left_out()) is not None:
            log.exception("a node cannot be shown", extra={"left_out": left_out or None})
        return otherwise


def _back() -> Element:
    return element("p", element("a", "All nodes", href="/"))


def _row_id(name: str) -> str:
    return f"node-{blake2s(name.encode(errors='replace'), digest_size=8).hexdigest()}"


def rank_of(standing: tuple[str, str]) -> tuple[int, str]:
    """The worst first."""
    return ("bad", "warn", "good").index(standing[1]), standing[0]


def totals_section(glances: Sequence[Glance]) -> str:
    """GPUs, shares of each resource, and what is held and does nothing."""
    known = [glance.totals for glance in glances if glance.totals is not None]
    shares: dict[ResourceName, ShareCount] = {}
    for totals in known:
        for name, count in totals.shares.items():
            shares[name] = shares.get(name, ShareCount()) + count
    old = len(glances) - len(known)
    broken = sum(node_totals.broken for node_totals in known)
    tiles = [
        _tile("Nodes", str(len(glances)), f"{old} not counted here: not up to date" if old else ""),
        _tile(
            "GPUs",
            str(sum(node_totals.gpus for node_totals in known)),
            f"{broken} lost or unhealthy" if broken else "",
        ),
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
    told = [totals for totals in known if totals.idle is not None]
    name = "Held but idle for an hour"
    if known and not told:
        return _tile(name, "not known", "agents do not publish it")
    unknown = sum(totals.unknown for totals in told)
    idle = sum(totals.idle or 0 for totals in told)
    return _tile(name, count_of(idle, "GPU"), f"not known of {count_of(unknown, 'GPU')}" if unknown else "")


def chips_section(glances: Sequence[Glance], chosen: str = "", asked: str = "") -> str:
    """How many nodes are how, the worst first: each shows those nodes alone."""
    counts = Counter(glance.standing for glance in glances)
    chips: list[Child] = [_chip("", count_of(len(glances), "node"), "all", chosen, asked)]
    for (word, kind), count in sorted(counts.items(), key=lambda one: rank_of(one[0])):
        chips += [" ", _chip(word.replace(" ", "-"), f"{count} {word}", kind, chosen, asked)]
    for name in (IDLE, CHANGING):
        if some := [glance.filters[name] for glance in glances if name in glance.filters]:
            chips += [" ", _chip(name, f"{len(some)} {some[0]}", "warn", chosen, asked)]
    parts = element("p", *chips, class_="chips")
    return html(
        element("section", element("h2", "Show", class_="unseen"), parts, id="summary", class_="summary")
    )


def _chip(name: str, text: str, kind: str, chosen: str, asked: str) -> Element:
    query = urlencode({key: value for key, value in (("show", name), ("q", asked)) if value})
    return element(
        "a",
        text,
        href=f"/?{query}" if query else "/",
        class_=f"chip {kind}",
        data_show_only=name,
        aria_current="true" if name == chosen else None,
    )
