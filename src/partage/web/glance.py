"""How one node is shown among many, and what it adds to the totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from msgspec import field

from partage.answers.share_counts import ShareCount
from partage.model.ids import ResourceName
from partage.serve_http.pages.markup import Child, element
from partage.values import Frozen

IDLE, CHANGING = "idle", "changing"
"""Filters beside those of how nodes are."""


class NodeTotals(Frozen):
    """What a node adds to the totals. broken: GPUs that are lost or unhealthy. shares: of each resource,
    held, free and not usable. idle: GPUs that are held and have done nothing for an hour; None: where
    the nodes come from, nobody says it. unknown: of how many it is not known. changing: GPUs that are going
    to change.
    """

    gpus: int = 0
    broken: int = 0
    shares: Mapping[ResourceName, ShareCount] = field(default_factory=dict)
    idle: int | None = 0
    unknown: int = 0
    changing: int = 0


class Glance(Frozen):
    """A node among many. row: what stands below its name. standing: in a word how it is, and the class of the
    style sheet for it: good, warn or bad. words: what a search finds it by. totals: None: what is known of it
    is not of now, and is not counted.
    """

    row: Sequence[Child]
    standing: tuple[str, str]
    words: Sequence[str] = ()
    totals: NodeTotals | None = None

    @property
    def filters(self) -> Mapping[str, str]:
        """The chips that show it: name in the URL to what the chip says, without its number."""
        word, _ = self.standing
        found = {word.replace(" ", "-"): word}
        if self.totals is not None and self.totals.idle:
            found[IDLE] = "with idle GPUs"
        if self.totals is not None and self.totals.changing:
            found[CHANGING] = "with pending changes"
        return found


def mini(part: float | None, text: str, kind: str, *, trouble: bool = False, lost: float = 0.0) -> Element:
    """A small bar: how much of a GPU or of a resource is in use, from 0 to 1; None: it has nothing to use.
    lost: how much of it cannot be used, hatched.
    """
    width = min(100.0, 100 * part) if part else 0
    gone = min(100.0 - width, 100 * lost)
    return element(
        "svg",
        element("title", text),
        element("rect", class_="box uncut" if part is None else "box free"),
        element("rect", width=f"{width:.1f}%", height="100%", class_="held") if width else None,
        element("rect", x=f"{width:.1f}%", width=f"{gone:.1f}%", height="100%", class_="withdrawn")
        if gone
        else None,
        class_=f"mini {kind}{' trouble' if trouble else ''}",
        role="img",
        aria_label=text,
    )
