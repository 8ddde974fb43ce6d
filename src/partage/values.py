"""The base of all values: immutable, compared by what they hold, camelCase where they are written as JSON.
And values by their keys.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from typing import TypeVar, dataclass_transform

from msgspec import Struct, field

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def _key(name: str) -> str:
    """``deadline_s`` is ``deadlineSeconds`` in JSON."""
    first, *rest = (f"{name}econds" if name.endswith("_s") else name).split("_")
    return first + "".join(part.capitalize() for part in rest)


def _tag(name: str) -> str:
    """``CreateInstance`` is ``create-instance`` in JSON."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Frozen(Struct, frozen=True, rename=_key):
    """An immutable value. Two are equal that are of one class and hold the same."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Answer(Frozen, frozen=True):
    """A value of a decision that is printed as it is: its keys are public, and its docstring is their
    reference. Keys are added, never renamed.
    """


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Tagged(Frozen, frozen=True, tag_field="type", tag=_tag):
    """A value of which there are several kinds: in JSON, the key ``type`` says which."""


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key, in the order in which they come; keys in the order of their first value."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
