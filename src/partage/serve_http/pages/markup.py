"""HTML as a tree of elements, written by the standard library, which escapes all text and attributes; the
parts of which the pages are made, tables, lists, times; and a whole document: head, sections, and the two
files that it needs. No script or style stands in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from xml.etree.ElementTree import Element, tostring

Child = Element | str | None

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that HTML does not allow."""
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Marks that change the direction of writing, of what follows, too. Letters have theirs without them."""


def element(tag: str, *children: Child, **attributes: str | None) -> Element:
    """One element. children: elements and text; None is left out.

    attributes: ``class_`` is ``class``, ``aria_label`` is ``aria-label``; None is left out.
    """
    made = Element(
        tag, {_attribute(name): _clean(value) for name, value in attributes.items() if value is not None}
    )
    last: Element | None = None
    for child in children:
        if isinstance(child, str):
            text = _clean(child)
            if last is None:
                made.text = (made.text or "") + text
            else:
                last.tail = (last.tail or "") + text
        elif child is not None:
            made.append(child)
            last = child
    return made


def foreign(text: str, **attributes: str | None) -> Element:
    """A text that users chose. Its direction of writing stays inside it: ``<bdi>``."""
    return element("bdi", text, **attributes)


def foreign_path(text: str) -> Element:
    """As ``foreign``, for ``namespace/pod/container``: a line may end after each of the first two parts."""
    first, *rest = text.split("/", 2)
    children: list[Child] = [first]
    for part in rest:
        children += ["/", element("wbr"), part]
    return element("bdi", *children)


def html(root: Element) -> str:
    """The element as HTML."""
    return tostring(root, encoding="unicode", method="html")


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _clean(text: str) -> str:
    marked = _DIRECTION.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", marked)


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Child]]) -> Element:
    """A table; on a narrow screen each cell stands below the other, with its column's name."""
    head = element("tr", *(element("th", name, scope="col") for name in heads))
    body = [
        element(
            "tr",
            *(element("td", cell, data_name=name) for name, cell in zip(heads, cells, strict=True)),
        )
        for cells in rows
    ]
    return element(
        "table", element("caption", caption, class_="unseen"), element("thead", head), element("tbody", *body)
    )


def bullets(lines: Iterable[str], kind: str) -> Element | None:
    """A list of sentences; None where there are none. kind: class of the style sheet."""
    items = [element("li", line) for line in lines]
    return element("ul", *items, class_=kind) if items else None


def moment(at: str) -> Element:
    """RFC 3339 in UTC, to the second; the script adds how long ago that is."""
    shown = at.partition(".")[0].replace("T", " ").removesuffix("Z") + " UTC"
    return element("time", shown, datetime=at)


_KINDS = {"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}

_PLACE = "sections-come-here"
"""An element that stands for the sections, which are HTML already, while the rest is written. No text can be
taken for it: the ``<`` of texts is escaped.
"""


def static_file(name: str) -> tuple[str, bytes]:
    """Content type and content of one of the files that a page needs."""
    return _KINDS[name], resources.files("partage.serve_http.pages").joinpath("static", name).read_bytes()


def document(title: str, sections: str, *, events: str, top: Child = None, source: str = "") -> bytes:
    """The document. sections: HTML. events: where the script hears of changes; top: below the title.

    source: where the data come from, a sentence.
    """
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        element("header", element("h1", title), top, class_="top"),
        element("main", element(_PLACE), id="content", data_events=events),
        element(
            "footer",
            element("p", source) if source else None,
            element("p", "", id="live", role="status"),
            element(
                "noscript", element("p", "Without JavaScript this page is as it was when it was loaded.")
            ),
        ),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="stylesheet", href="/static/page.css"),
        element("link", rel="icon", href="data:,"),
        element("script", src="/static/page.js", defer=""),
    )
    around = html(element("html", head, body, lang="en"))
    return ("<!DOCTYPE html>\n" + around.replace(f"<{_PLACE}></{_PLACE}>", sections, 1)).encode()


def grouped(sections: Mapping[str, str]) -> str:
    """The sections of a node in their places: the GPUs are one region of cards."""
    heading = html(element("h2", "GPUs", id="gpus-name", class_="unseen"))
    cards = "".join(text for name, text in sections.items() if name.startswith("gpu-"))
    facts = "".join(sections[name] for name in ("state", "policy", "waits") if name in sections)
    return "".join(
        (
            f'<div class="facts">{facts}</div>',
            f'<section class="cards" aria-labelledby="gpus-name">{heading}',
            f'<div class="grid">{cards}</div></section>',
            sections.get("resources", ""),
            sections.get("hours", ""),
        )
    )
