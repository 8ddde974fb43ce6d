"""Which entries of a policy count on a node: ``when``, by the labels of the Node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from partage.errors import InputError, Problem
from partage.model.node_labels import ACK_SCHEDULE, STOOD_FOR, NodeLabels
from partage.model.policy import GpuEntry, LabelCondition, Policy

MOST_LABELLINGS = 4096
"""So many combinations of labels are tried when the variants of a policy are listed."""
MOST_VARIANTS = 64


def for_node(policy: Policy, labels: NodeLabels | None) -> Policy:
    """The policy of a node with these labels: entries whose ``when`` does not hold are left out.

    Raises InputError if labels matter and are not known.
    """
    conditional = [entry for entry in policy.entries if isinstance(entry, GpuEntry) and entry.when]
    if not conditional:
        return policy
    if labels is None:
        text = "depends on the labels of the node, which are not known"
        hint = "--node-labels KEY=VALUE,... says them; --node-labels '' is a node without labels"
        raise InputError(
            [Problem(policy.source, f"{entry.origin}.when", "error", text, hint) for entry in conditional]
        )
    counting = (
        replace(entry, when=(), in_place_of=_in_place_of(entry, labels))
        if isinstance(entry, GpuEntry)
        else entry
        for entry in policy.entries
        if not isinstance(entry, GpuEntry) or _holds(entry.when, labels)
    )
    return replace(policy, entries=tuple(counting))


def asked_labels(policy: Policy) -> frozenset[str]:
    """The keys of the labels on which the policy depends."""
    entries = (entry for entry in policy.entries if isinstance(entry, GpuEntry))
    return frozenset(condition.key for entry in entries for condition in entry.when)


def variants(policy: Policy) -> list[tuple[NodeLabels, Policy]]:
    """The unlike policies that nodes can have, each with the labels of such a node; the fewest labels first.

    At most MOST_VARIANTS, of the first MOST_LABELLINGS combinations of labels.
    """
    values: dict[str, dict[str, None]] = {}
    for entry in policy.entries:
        for condition in entry.when if isinstance(entry, GpuEntry) else ():
            values.setdefault(condition.key, {}).update(dict.fromkeys(condition.values))
    found: dict[tuple[str, ...], tuple[NodeLabels, Policy]] = {}
    for labels in itertools.islice(_labellings(values), MOST_LABELLINGS):
        there = for_node(policy, labels)
        found.setdefault(tuple(entry.origin for entry in there.entries), (labels, there))
        if len(found) == MOST_VARIANTS:
            break
    return list(found.values())


def _labellings(values: Mapping[str, Mapping[str, None]]) -> Iterator[NodeLabels]:
    """All nodes that a policy can tell apart. A value that no entry names is as no label."""
    for count in range(len(values) + 1):
        for keys in itertools.combinations(values, count):
            for chosen in itertools.product(*(values[key] for key in keys)):
                yield dict(zip(keys, chosen, strict=True))


def _in_place_of(entry: GpuEntry, labels: NodeLabels) -> str:
    asked = labels.get(ACK_SCHEDULE, "")
    return (
        asked if asked in STOOD_FOR and any(condition.key == ACK_SCHEDULE for condition in entry.when) else ""
    )


def _holds(conditions: tuple[LabelCondition, ...], labels: NodeLabels) -> bool:
    return all(labels.get(condition.key) in condition.values for condition in conditions)
