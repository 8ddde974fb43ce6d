"""Many nodes at a glance: a row for each, and the page of each behind its name."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2s
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote
from xml.etree.ElementTree import Element

from partage.agent.log import Seldom
from partage.faces.http import Answer, Page, PageRequest, Stream
from partage.faces.http_access import STATIC
from partage.faces.web import page
from partage.faces.web.agent_page import static_page
from partage.faces.web.legend import legend
from partage.faces.web.live import changes
from partage.faces.web.markup import Child, element, foreign, html
from partage.faces.web.node_page import Sections
from partage.text import count_of

_HTML = "text/html; charset=utf-8"
N = TypeVar("N")
T = TypeVar("T")
N_co = TypeVar("N_co", covariant=True)
N_contra = TypeVar("N_contra", contravariant=True)


log = logging.getLogger(__name__)
_failures = Seldom()


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
        """Where they come from, a sentence for the foot of the page."""

    @property
    def news(self) -> Sections:
        """Sections that stand before the nodes, and change with them."""


class NodeViews(Protocol[N_contra]):
    """How the nodes of a fleet are shown."""

    def row(self, node: N_contra) -> Sequence[Child]:
        """What stands below its name among all nodes."""

    def standing(self, node: N_contra) -> tuple[str, str]:
        """In a word how it is, and the class of the style sheet for it: good, warn or bad."""

    def words(self, node: N_contra) -> Sequence[str]:
        """What a search finds it by."""

    def sections(self, node: N_contra) -> Sections:
        """Its own page."""

    def grouped(self, sections: Sections) -> str:
        """Those sections in their places, as HTML."""


class FleetPages(Generic[N]):
    """``/``: all nodes; ``/node?name=NAME``: one of them; ``/events`` for what changes on either."""

    def __init__(self, fleet: ShownFleet[N], views: NodeViews[N]) -> None:
        self._fleet = fleet
        self._views = _EachAlone(views)
        self._rows: dict[str, tuple[N, str]] = {}
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
        asked = request.query.get("q", "")
        nodes = self._fleet.nodes
        found = {name for name in nodes if self._matches(name, nodes, asked)}
        # The others are there, too: the script finds them when the search changes, and where they change.
        rows = [
            text if name in found else text.replace("<article ", "<article hidden ", 1)
            for name, text in self._row_texts(nodes).items()
        ]
        count = element("span", f"{len(found)} shown", id="count", role="status")
        box = element("input", type="search", name="q", id="q", value=asked, autocomplete="off")
        label = element("label", "Search for a node, a GPU, a pod or a problem ", for_="q")
        form = element("form", label, box, " ", count, role="search", method="get", action="/")
        news = self._fleet.news.values()
        summary = self._summary(nodes)
        body = "".join((*news, summary, '<section aria-label="Nodes" class="nodes">', *rows, "</section>"))
        document = page.document("Nodes", body, events="/events", top=form, source=self._fleet.words)
        return HTTPStatus.OK, _HTML, document

    def _one(self, request: PageRequest) -> Answer:
        name = request.query.get("name", "")
        node = self._fleet.nodes.get(name)
        news = "".join(self._fleet.news.values())
        if node is None:
            text = html(
                element("section", element("p", "There is no node ", foreign(name or "without a name"), "."))
            )
            body = page.document(
                "No such node", news + text, events="", top=_back(), source=self._fleet.words
            )
            return HTTPStatus.NOT_FOUND, _HTML, body
        body = page.document(
            f"{name}: GPUs",
            news + self._views.grouped(self._sections(name, node)),
            events=f"/events?node={quote(name, safe='')}",
            top=element("div", _back(), legend()),
            source=self._fleet.words,
        )
        return HTTPStatus.OK, _HTML, body

    def _events(self, request: PageRequest) -> Stream:
        name = request.query.get("node")

        def sections() -> Mapping[str, str]:
            news, nodes = self._fleet.news, self._fleet.nodes
            if name is None:
                rows = {_row_id(one): text for one, text in self._row_texts(nodes).items()}
                return {**news, "summary": self._summary(nodes), **rows}
            node = nodes.get(name)
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

    def _summary(self, nodes: Mapping[str, N]) -> str:
        """How many nodes are how, the worst first."""
        counts = Counter(self._views.standing(node) for node in nodes.values())
        order = ("bad", "warn", "good")
        ranked = sorted(counts.items(), key=lambda one: (order.index(one[0][1]), one[0][0]))
        parts = [element("span", f"{count} {word}", class_=f"chip {kind}") for (word, kind), count in ranked]
        said = count_of(len(nodes), "node")
        return html(element("section", element("p", f"{said} ", *parts), id="summary", class_="summary"))

    def _row_texts(self, nodes: Mapping[str, N]) -> dict[str, str]:
        """Name to the row of each node; a row is written again when the node has changed."""
        found: dict[str, tuple[N, str]] = {}
        for name, node in nodes.items():
            known = self._rows.get(name)
            found[name] = (
                known if known is not None and known[0] is node else (node, html(self._row(name, node)))
            )
        self._rows = found
        return {name: text for name, (_, text) in found.items()}

    def _row(self, name: str, node: N) -> Element:
        link = element("a", foreign(name), href=f"/node?name={quote(name, safe='')}")
        return element(
            "article",
            element("h2", link),
            *self._views.row(node),
            class_="card node",
            id=_row_id(name),
            data_words=self._words(name, node),
        )

    def _matches(self, name: str, nodes: Mapping[str, N], asked: str) -> bool:
        asked = asked.strip().lower()
        return not asked or asked in self._words(name, nodes[name])

    def _words(self, name: str, node: N) -> str:
        """In lower case, each once."""
        return " ".join(dict.fromkeys((name, *self._views.words(node)))).lower()


class _EachAlone(Generic[N]):
    """Views of nodes. What a node says comes from elsewhere: where it cannot be shown, its row says so, and
    the rows of the others are as they are.
    """

    def __init__(self, views: NodeViews[N]) -> None:
        self._views = views
        self.grouped = views.grouped

    def row(self, node: N) -> Sequence[Child]:
        return _or(lambda: self._views.row(node), (_cannot(),))

    def standing(self, node: N) -> tuple[str, str]:
        return _or(lambda: self._views.standing(node), ("cannot be shown", "bad"))

    def words(self, node: N) -> Sequence[str]:
        return _or(lambda: self._views.words(node), ())

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


def mini(part: float | None, said: str, kind: str, *, trouble: bool = False, lost: float = 0.0) -> Element:
    """A small bar: how much of a GPU or of a resource is in use, from 0 to 1; None: it has nothing to use.
    lost: how much of it cannot be used, hatched.
    """
    width = min(100.0, 100 * part) if part else 0
    gone = min(100.0 - width, 100 * lost)
    return element(
        "svg",
        element("title", said),
        element("rect", class_="box uncut" if part is None else "box free"),
        element("rect", width=f"{width:.1f}%", height="100%", class_="held") if width else None,
        element("rect", x=f"{width:.1f}%", width=f"{gone:.1f}%", height="100%", class_="withdrawn")
        if gone
        else None,
        class_=f"mini {kind}{' trouble' if trouble else ''}",
        role="img",
        aria_label=said,
    )
