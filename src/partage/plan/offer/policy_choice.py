"""Which policy of a directory a node takes: by its labels, else the default, else a fallback.

The rules for default and fallback are those of NVIDIA's config-manager.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from partage.codec.fields import nearest_word
from partage.model.node_labels import POLICY_LABELS, NodeLabels
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
