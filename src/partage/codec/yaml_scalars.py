"""What one YAML scalar means: YAML 1.2's core schema, and nothing of 1.1 that surprises."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TypeAlias

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"
Scalar: TypeAlias = bool | int | float | str | None

LONGEST_NUMBER = 18

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_OLD_BOOLS = frozenset(
    form for word in ("y", "yes", "on", "n", "no", "off") for form in (word, word.capitalize(), word.upper())
)
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)", re.ASCII
)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", re.ASCII)
_TAG_PREFIX = "tag:yaml.org,2002:"
_SCALAR_TAGS: Mapping[str, tuple[type, ...]] = {
    _TAG_PREFIX + "null": (type(None),),
    _TAG_PREFIX + "bool": (bool,),
    _TAG_PREFIX + "int": (int,),
    _TAG_PREFIX + "float": (int, float),
}


class OldBool(str):
    """An unquoted ``yes``, ``no``, ``on``, ``off``, ``y`` or ``n``: text to us, a boolean to YAML 1.1."""

    __slots__ = ()


class BadScalar(Exception):
    """Why a scalar is refused. hint: one sentence of advice, or empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.hint = hint
        super().__init__(message)


def collection_tag_fits(tag: str | None, *, mapping: bool) -> bool:
    """Whether a mapping or a list may carry this tag."""
    return tag in (None, "!", _TAG_PREFIX + ("map" if mapping else "seq"))


def scalar(text: str, tag: str | None, *, plain: bool) -> Scalar:
    """The value of a scalar. plain: neither quoted nor tagged. Raises BadScalar."""
    if plain:
        return _plain(text)
    if tag in (None, "!", _TAG_PREFIX + "str"):
        return text
    kinds = _SCALAR_TAGS.get(tag, ())
    value = _plain(text) if kinds else None
    if not isinstance(value, kinds):
        raise BadScalar(f"unknown or unfitting tag {tag[:64]!r}", "remove it")
    return value


def _plain(text: str) -> Scalar:
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if text in _OLD_BOOLS:
        return OldBool(text)
    if text[0] in "-+.0123456789":
        return _number(text)
    return text


def _number(text: str) -> Scalar:
    if _INTEGER.fullmatch(text):
        if len(text) > LONGEST_NUMBER:
            raise BadScalar(f"a number of {len(text)} digits", "put it in quotes if it is text")
        return int(text, 0)
    if len(text) <= 64 and (_FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text)):
        number = math.inf if _NOT_FINITE.fullmatch(text) else float(text)
        if not math.isfinite(number):
            raise BadScalar(f"{text} is not a finite number")
        return number
    return text


def describe(value: Value) -> str:
    """A value in a few words, for messages: ``the text "4"``, ``a list``, ``nothing``."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            shown = value if len(value) <= 60 else value[:57] + "..."
            return f'the text "{shown.encode("unicode_escape").decode()}"'
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return repr(value)
