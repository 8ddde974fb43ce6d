"""Parts of which the pages are made: tables and lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

from partage.serve_http.pages.markup import Child, element


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
