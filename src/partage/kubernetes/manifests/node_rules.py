"""What the spec of a pod says of the nodes it may go to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from partage.kubernetes.decide.node_rules import LabelRule, Term, Toleration
from partage.kubernetes.manifests.node import ManifestNode

TextOf = Callable[[ManifestNode], str]
"""The text of a place; empty where there is none."""

_AFFINITY = (
    "affinity",
    "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
)


def affinity_of(spec: ManifestNode, text_of: TextOf) -> tuple[Term, ...] | None:
    """Terms of which one has to hold; None: there is none."""
    place = spec.at(*_AFFINITY)
    return tuple(tuple(_rules(term, text_of)) for term in place.items) if place.items else None


def _rules(term: ManifestNode, text_of: TextOf) -> Iterator[LabelRule]:
    for part, of_field in (("matchExpressions", False), ("matchFields", True)):
        for rule in term.at(part).items:
            values = tuple(text_of(value) for value in rule.at("values").items)
            key, operator = text_of(rule.at("key")), text_of(rule.at("operator"))
            yield LabelRule(key, operator, values, of_field)


def tolerations_of(spec: ManifestNode, text_of: TextOf) -> tuple[Toleration, ...]:
    """In the order of the spec."""
    return tuple(_toleration(place, text_of) for place in spec.at("tolerations").items)


def _toleration(place: ManifestNode, text_of: TextOf) -> Toleration:
    key, value, effect = (text_of(place.at(word)) for word in ("key", "value", "effect"))
    return Toleration(key, text_of(place.at("operator")) or "Equal", value, effect)
