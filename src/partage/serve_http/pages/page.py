"""A whole HTML document: head, sections, and the two files that it needs. No script or style stands in it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from partage.serve_http.pages.markup import Child, element, html

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
