"""Which policy of a directory a node takes: by its labels, else the default, else a fallback; and which of
its entries count there, by ``when``.

The rules for default and fallback are those of NVIDIA's config-manager.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum

from msgspec.structs import replace

from partage.codec.fields import nearest_word
from partage.errors import InputError, Problem
from partage.model.node_labels import ACK_SCHEDULE, POLICY_LABELS, STOOD_FOR, NodeLabels
from partage.model.policy import GpuEntry, LabelCondition, Policy
from partage.text import listed
from partage.values import Frozen, Tagged

DEFAULT_NAME = "default"
"""The name that the fallback ``named`` takes."""
POLICY_SUFFIXES = (".yaml", ".yml", ".json")
"""What policy files are called in a directory of people. A label may leave it out."""


class Fallback(StrEnum):
    """What a node takes that has no label, where no default is given.

    named: the policy that is called ``default``. single: the only one there is. empty: none, every GPU is
    exclusive.
    """

    NAMED = "named"
    SINGLE = "single"
    EMPTY = "empty"


class ChoiceRules(Frozen):
    """default: a name. fallback: tried in this order; the default of NVIDIA's chart."""

    default: str | None = None
    fallback: tuple[Fallback, ...] = (Fallback.NAMED, Fallback.SINGLE)


_MOST_SHOWN = 20


class TakePolicy(Tagged):
    """This one. by: what chose it, ``label partage.dev/policy``, ``default``, ``fallback single``."""

    name: str
    by: str


class TakeNone(Tagged):
    """No policy: every GPU is exclusive."""

    by: str


class UnknownName(Tagged):
    """What chooses, chooses a policy that is not there."""

    message: str
    hint: str


class NothingChosen(Tagged):
    """Neither label nor default nor fallback chooses one."""

    message: str
    hint: str


class LabelsUnknown(Tagged):
    """The labels decide, and are not known yet."""


PolicyChoice = TakePolicy | TakeNone | UnknownName | NothingChosen | LabelsUnknown


def choose_policy(names: Collection[str], labels: NodeLabels | None, rules: ChoiceRules) -> PolicyChoice:
    """The policy of a node with these labels. labels None: not known yet; then only what no label can change
    is chosen.
    """
    if labels is None:
        return _without_label(names, rules) if _label_is_no_matter(names, rules) else LabelsUnknown()
    key = named_policy(labels)
    return _without_label(names, rules) if key is None else _named(names, labels[key], f"label {key}")


def named_policy(labels: NodeLabels) -> str | None:
    """The label that names a policy; None if none does."""
    return next((key for key in POLICY_LABELS if labels.get(key)), None)


def _label_is_no_matter(names: Collection[str], rules: ChoiceRules) -> bool:
    """The one policy that is there is taken, whether a label names it or none does."""
    return len(names) == 1 and isinstance(_without_label(names, rules), TakePolicy)


def _without_label(names: Collection[str], rules: ChoiceRules) -> PolicyChoice:
    if rules.default:
        return _named(names, rules.default, "default")
    for fallback in rules.fallback:
        by = f"fallback {fallback}"
        match fallback:
            case Fallback.NAMED:
                if (found := _policy_called(DEFAULT_NAME, names)) is not None:
                    return TakePolicy(found, by)
            case Fallback.SINGLE:
                if len(names) == 1:
                    return TakePolicy(next(iter(names)), by)
            case Fallback.EMPTY:
                return TakeNone(by)
    tried = ", ".join(rules.fallback) or "none"
    return NothingChosen(
        f"no policy is chosen: the node has no label, no default is given, and no fallback applies ({tried})",
        f"label the node with {POLICY_LABELS[0]}, or name a default with --config; there is: {_shown(names)}",
    )


def _named(names: Collection[str], name: str, by: str) -> PolicyChoice:
    if (found := _policy_called(name, names)) is not None:
        return TakePolicy(found, by)
    near = nearest_word(name, sorted(names))
    advice = f"did you mean {near[:60]!r}? " if near else ""
    message = f"{by} asks for {name[:60]!r}, and no policy has that name"
    return UnknownName(message, f"{advice}there is: {_shown(names)}")


def _policy_called(name: str, names: Collection[str]) -> str | None:
    """The policy of that name: ``shared``, or the one ``shared.yaml``."""
    if name in names:
        return name
    found = [
        file_name
        for file_name in names
        if file_name.lower() in {f"{name}{suffix}".lower() for suffix in POLICY_SUFFIXES}
    ]
    return found[0] if len(found) == 1 else None


def _shown(names: Collection[str]) -> str:
    shown = listed([name[:60] for name in sorted(names)], _MOST_SHOWN)
    return shown or f"none; in a directory, only files that end in {', '.join(POLICY_SUFFIXES)} count"


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
