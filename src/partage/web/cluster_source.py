"""Where the page of a cluster has its data from, how old they are, and what is wrong with that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from partage.serve_http.pages.markup import Child, element, html
from partage.serve_http.pages.moment import moment
from partage.text import count_of
from partage.values import Frozen

_WHAT = (
    "what the agents publish on their Nodes (labels, conditions, annotations), and what pods ask for. Agents "
    "write when something changes, so what stands here may be old and true."
)


class Followed(Frozen):
    """One watch. kind: ``nodes``. since: when it began, or when the trouble did, RFC 3339. trouble: why the
    API server cannot be asked; empty: it can. forbidden: the account has not the right. known: it has
    answered at least once.
    """

    kind: str
    since: str
    trouble: str
    forbidden: bool = False
    known: bool = False


def source_section(url: str, watches: Iterable[Followed], without_gpus: int) -> str:
    """The section as HTML. without_gpus: so many nodes are not shown."""
    some = tuple(watches)
    more = f"Not shown: {count_of(without_gpus, 'node')} without GPUs." if without_gpus else ""
    section = element(
        "section",
        element("h2", "Where this comes from", class_="unseen"),
        element(
            "p",
            f"From the API server {url}: {_WHAT}",
            *(part for one in some if not one.trouble for part in _up_to_date(one)),
            f" {more}" if more else None,
            class_="dim",
        ),
        *(part for one in some if one.trouble for part in _trouble(one)),
        id="source",
    )
    return html(section)


def _up_to_date(one: Followed) -> Iterator[Child]:
    yield f" The watch of {one.kind} began "
    yield moment(one.since)
    yield "."


def _trouble(one: Followed) -> Iterator[Child]:
    then = "What is said of them below is as it was then." if one.known else "Nothing is known of them."
    right = (
        f"The account needs the verbs list and watch on {one.kind}, which the ClusterRole partage-viewer "
        "grants (viewer.enabled in the chart)."
    )
    yield element(
        "p",
        f"The {one.kind} cannot be followed. It began ",
        moment(one.since),
        f": {one.trouble}. {then}",
        f" {right}" if one.forbidden else None,
        class_="problem",
    )
