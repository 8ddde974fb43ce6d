"""The life of a template that was made for pods: when it is marked as asked for, and when it may go.

Why none is taken from a pod: who lets a pod in has seen to it that the template is there, and that its mark
is not older than ``MARK_S``. A pod that was let in is in the API server before ``LET_IN_S`` are over, or
never: the API server gives a request no more than a minute. The sweep first reads a template, then the pods
of the namespace, and deletes the version that it has read, if no pod names it and its mark is older than
``KEPT_S`` = MARK_S + LET_IN_S and more. So a pod that was let in by this mark is among the pods that are
read; for one that comes later the mark was renewed, which makes another version, and the deletion is refused.
A Deployment whose pods come hours later needs no template meanwhile: each of its pods is let in by itself,
and makes it anew. Once a claim was made of it, which the controller does at once, nobody needs the template.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from partage.units import parse_quantity
from partage.values import Frozen

MADE_FOR = "partage.dev/made-for"
"""Label of templates that the webhook made; its value is ``pods``. Those that people apply have none."""
PODS = "pods"
ASKED_AT = "partage.dev/asked-at"
"""Annotation: when a pod was let in that names it."""
MARK_S = 300.0
LET_IN_S = 120.0
KEPT_S = 900.0
"""The rest of it is for clocks that differ."""


class StandingTemplate(Frozen):
    """A template as the API server has it. spec: ``spec.spec``. made_at: RFC 3339. owner: UID of the
    webhook's configuration, with which it goes; empty: none.
    """

    namespace: str
    name: str
    uid: str
    version: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    made_at: str
    owner: str
    spec: Mapping[str, Any]

    @property
    def is_ours(self) -> bool:
        """Whether the webhook made it, for pods."""
        return self.labels.get(MADE_FOR) == PODS

    @property
    def asked_s(self) -> float:
        """The last mark, seconds since 1970. One that is no time counts as when the template was made."""
        return _seconds(self.annotations.get(ASKED_AT, "")) or _seconds(self.made_at) or 0.0


def needs_mark(template: StandingTemplate, now_s: float, owner: str) -> bool:
    """Before a pod is let in that names it. owner: the webhook's configuration of now."""
    return template.is_ours and (now_s - template.asked_s >= MARK_S or template.owner != owner)


def may_go(template: StandingTemplate, now_s: float) -> bool:
    """If no pod names it."""
    return template.is_ours and now_s - template.asked_s >= KEPT_S


def same_content(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether the API server has what was sent: it adds defaults, and writes amounts in its own way."""
    return bool(_plain(ours) == _plain(theirs))


_DEFAULTS: Collection[tuple[str, object]] = (("allocationMode", "ExactCount"), ("count", 1))


def _plain(value: Any, key: str = "") -> Any:  # noqa: ANN401 - JSON has no better type
    if isinstance(value, Mapping):
        return {
            name: _plain(inner, "amount" if key == "capacity" and name == "requests" else name)
            if key != "amount"
            else _amount(inner)
            for name, inner in value.items()
            if (name, inner) not in _DEFAULTS
        }
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _amount(text: object) -> object:
    try:
        return parse_quantity(str(text))
    except ValueError:
        return text


def _seconds(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
