"""What a node takes of a directory of policies, where no label says it. NVIDIA's words and rules."""

from __future__ import annotations

from enum import StrEnum

from partage.values import Frozen

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
