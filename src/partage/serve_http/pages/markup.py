"""HTML as a tree of elements, written by the standard library, which escapes all text and attributes; and the
parts of which the pages are made: tables, lists, times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
