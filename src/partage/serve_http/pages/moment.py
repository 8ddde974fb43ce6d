"""A time on the page."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from partage.serve_http.pages.markup import element


def moment(at: str) -> Element:
    """RFC 3339 in UTC, to the second; the script adds how long ago that is."""
    shown = at.partition(".")[0].replace("T", " ").removesuffix("Z") + " UTC"
    return element("time", shown, datetime=at)
