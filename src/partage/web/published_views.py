"""How nodes are shown of which only that is known which the cluster has: what agents publish, and pods."""

from __future__ import annotations

from collections.abc import Iterator

from partage.answers.share_counts import ShareCount
from partage.model.ids import MEMORY_RESOURCE, ResourceName
from partage.serve_http.pages.markup import Child, element
from partage.serve_http.pages.node_page import Sections
from partage.text import count_of, listed
from partage.units import format_bytes
from partage.web.glance import Glance, NodeTotals, mini
from partage.web.published import PublishedNode
from partage.web.published_page import (
    STATES,
    asked_of,
    grouped,
    models_of,
    problems_of,
    sections_of,
    state_of,
    strategy_of,
)

_PROBLEMS = 3


class PublishedViews:
    """The views of ``ClusterFleet``."""

    standings = STATES

    def glance(self, node: PublishedNode) -> Glance:
        """Its resources as small bars, and what is wrong."""
        lines = list(dict.fromkeys(problems_of(node)))
        changing = f"{count_of(len(node.pending), 'GPU')} with pending changes"
        row: list[Child] = [
            element("p", models_of(node), _requested(node), class_="small"),
            element("p", *_minis(node), class_="minis"),
            *(element("p", line, class_="problem small") for line in lines[:_PROBLEMS]),
            element("p", changing, class_="unsettled small") if node.pending else None,
        ]
        return Glance(row, state_of(node), _words(node), _totals(node))

    def sections(self, node: PublishedNode) -> Sections:
        """Its own page."""
        return sections_of(node)

    def grouped(self, sections: Sections) -> str:
        """Those sections in their places."""
        return grouped(sections)


def _words(node: PublishedNode) -> list[str]:
    """Problems, models, resources and pods."""
    return [
        state_of(node)[0],
        *problems_of(node),
        *(model for model, _ in node.models),
        *(resource.name for resource in node.resources),
        *(resource.guarantee for resource in node.resources),
        *(f"{pod.namespace}/{pod.name}" for pod in node.pods or ()),
        node.policy,
    ]


def _totals(node: PublishedNode) -> NodeTotals:
    """What pods ask for counts as held. Which GPUs are broken, or idle, is not published."""
    return NodeTotals(
        gpus=sum(count for _, count in node.models),
        shares={
            ResourceName(resource.name): ShareCount(
                held=resource.requested,
                free=max(0, resource.allocatable - resource.requested),
                not_usable=max(0, resource.capacity - resource.allocatable),
            )
            for resource in node.resources
            if resource.requested is not None
        },
        idle=None,
        changing=len(node.pending),
    )


def _requested(node: PublishedNode) -> str:
    said = [f"{asked_of(resource)} {resource.name}" for resource in node.resources]
    return f"; asked for: {listed(said, 4)}" if said else ""


def _minis(node: PublishedNode) -> Iterator[Child]:
    """One for each GPU where amounts are published, else one for each resource."""
    kind = strategy_of(node) or "none"
    if node.memory is not None:
        for card in node.memory.cards:
            held, total = (format_bytes(units * card.unit_bytes) for units in (card.used, card.total))
            part = card.used / card.total if card.total else None
            yield mini(part, f"GPU {card.index}: {held} of {total} held", kind)
    for resource in node.resources:
        if node.memory is None or resource.name != MEMORY_RESOURCE:
            part = (
                None
                if resource.requested is None or not resource.allocatable
                else resource.requested / resource.allocatable
            )
            yield mini(part, f"{resource.name}: {asked_of(resource)} asked for", kind)
