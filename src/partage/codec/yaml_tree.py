"""Parser events into plain values: counted as they come, with the line of every key and item. What one scalar
means is said by YAML 1.2's core schema, and nothing of 1.1 that surprises.

Iterative throughout, so that no depth of nesting can exhaust the stack.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NoReturn, TypeAlias

import yaml
from msgspec import Struct, field

from partage.errors import InputError, Problem
from partage.values import Frozen

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


HAS_LIBYAML = bool(yaml.__with_libyaml__)
LIMIT_VALUES = 30_000 if HAS_LIBYAML else 4_000
LIMIT_DEPTH = 64
LIMIT_PROBLEMS = 100

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def join_path(path: str, key: str | int) -> str:
    """The path of a member: ``gpus[1]``, ``flags.plugin``, ``mig-configs["all-1g.10gb"]``."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _PLAIN_KEY.fullmatch(key):
        shown = key if len(key) <= 64 else key[:61] + "..."
        return path + '["' + shown.encode("unicode_escape").decode().replace('"', '\\"') + '"]'
    return f"{path}.{key}" if path else key


class _Open(Struct):
    """A mapping or list that is not complete yet."""

    value: list[Value] | dict[str, Value]
    anchor: str | None
    began_at: int
    line: int
    height: int = 1
    key: str | None = None
    expects_key: bool = True
    merged: list[dict[str, Value]] = field(default_factory=list)


class _Anchored(Frozen):
    """A value that may be repeated. size: values in it, aliases in full; height: levels below it."""

    value: Value
    size: int
    height: int


_MERGE = "<<"
_BAD_KEY = "\0"


class TreeBuilder:
    """Turns parser events into values, and counts.

    duplicates: keys that stand twice in one mapping, of which the last one counts.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.root: Value = None
        self.problems: list[Problem] = []
        self.duplicates: list[Problem] = []
        self.lines: dict[tuple[int, str | int], int] = {}
        self._open: list[_Open] = []
        self._anchors: dict[str, _Anchored] = {}
        self._values = 0
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        """One event. Raises InputError where going on makes no sense."""
        match event:
            case yaml.ScalarEvent():
                self._count(1, event)
                value = self._scalar(event)
                self._anchor(event.anchor, _Anchored(value, 1, 0))
                self._add(value, event, _line(event))
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._begin(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._end(event)
            case yaml.AliasEvent():
                self._alias(event)
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    self._stop(event, "a second document begins here", "one file holds one document")
            case _:
                pass

    # --- what came ---------------------------------------------------------------------------

    def _begin(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        self._count(1, event)
        if len(self._open) >= LIMIT_DEPTH:
            self._stop(event, f"nested more than {LIMIT_DEPTH} levels deep")
        mapping = isinstance(event, yaml.MappingStartEvent)
        if not collection_tag_fits(event.tag, mapping=mapping):
            self._wrong(event, f"unknown tag {str(event.tag)[:64]!r}", "remove it; tags are not used here")
        self._open.append(_Open({} if mapping else [], event.anchor, self._values, _line(event)))

    def _end(self, event: yaml.Event) -> None:
        done = self._open.pop()
        for merged in done.merged:
            self._merge(done.value, merged)
        self._anchor(done.anchor, _Anchored(done.value, self._values - done.began_at + 1, done.height))
        if self._open:
            self._open[-1].height = max(self._open[-1].height, done.height + 1)
        self._add(done.value, event, done.line)

    def _alias(self, event: yaml.AliasEvent) -> None:
        name = str(event.anchor)
        known = self._anchors.get(name)
        if known is None:
            if any(frame.anchor == name for frame in self._open):
                self._stop(event, f"'*{name[:64]}' stands inside itself")
            self._stop(event, f"'*{name[:64]}' refers to nothing", "'&name' has to come first")
        self._count(known.size, event)
        if len(self._open) + known.height > LIMIT_DEPTH:
            self._stop(event, f"nested more than {LIMIT_DEPTH} levels deep")
        if self._open:
            self._open[-1].height = max(self._open[-1].height, known.height + 1)
        self._add(known.value, event, _line(event))

    def _add(self, value: Value, event: yaml.Event, line: int) -> None:
        if not self._open:
            self.root = value
            return
        frame = self._open[-1]
        if isinstance(frame.value, list):
            self.lines[id(frame.value), len(frame.value)] = line
            frame.value.append(value)
        elif frame.expects_key:
            frame.key = self._key(frame, value, event)
            frame.expects_key = False
        else:
            self._put(frame, value, event)
            frame.expects_key = True

    def _key(self, frame: _Open, value: Value, event: yaml.Event) -> str:
        assert isinstance(frame.value, dict)
        if not isinstance(value, str):
            hint = f'write "{value}"' if isinstance(value, int | float) else ""
            self._wrong(event, f"a key has to be text, not {describe(value)}", hint)
            return _BAD_KEY
        if value == _MERGE and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
            return _MERGE
        if value in frame.value:
            first = self.lines[id(frame.value), value]
            text = f"duplicate key {value[:64]!r}, first on line {first}"
            self._note(self.duplicates, event, text, "remove one of the two")
        self.lines[id(frame.value), value] = _line(event)
        return str(value)

    def _put(self, frame: _Open, value: Value, event: yaml.Event) -> None:
        assert isinstance(frame.value, dict)
        assert frame.key is not None
        if frame.key == _MERGE:
            sources = value if isinstance(value, list) else [value]
            if not all(isinstance(source, dict) for source in sources):
                self._wrong(event, "'<<' takes a mapping or a list of mappings")
            frame.merged.extend(source for source in sources if isinstance(source, dict))
        elif frame.key != _BAD_KEY:
            frame.value[frame.key] = value

    def _merge(self, into: Value, source: dict[str, Value]) -> None:
        """Keys written out outrank merged ones, earlier merged ones outrank later ones."""
        assert isinstance(into, dict)
        for key, value in source.items():
            if key not in into:
                into[key] = value
                self.lines[id(into), key] = self.lines.get((id(source), key), 0)

    def _anchor(self, name: str | None, value: _Anchored) -> None:
        if name is not None:
            self._anchors[name] = value

    def _scalar(self, event: yaml.ScalarEvent) -> Value:
        try:
            return scalar(event.value, event.tag, plain=event.implicit[0])
        except BadScalar as bad:
            self._wrong(event, str(bad), bad.hint)
            return None

    # --- bounds and faults -------------------------------------------------------------------

    def _count(self, values: int, event: yaml.Event) -> None:
        self._values += values
        if self._values > LIMIT_VALUES:
            self._stop(
                event,
                f"more than {LIMIT_VALUES} values, aliases counted in full",
                "a policy has a few hundred",
            )

    def _wrong(self, event: yaml.Event, message: str, hint: str = "") -> None:
        self._note(self.problems, event, message, hint)

    def _note(self, problems: list[Problem], event: yaml.Event, message: str, hint: str) -> None:
        if len(problems) < LIMIT_PROBLEMS:
            problems.append(self._problem(event, message, hint))

    def _stop(self, event: yaml.Event, message: str, hint: str = "") -> NoReturn:
        raise InputError([*self.problems, self._problem(event, message, hint)])

    def _problem(self, event: yaml.Event, message: str, hint: str) -> Problem:
        where = f"line {_line(event)}, column {event.start_mark.column + 1 if event.start_mark else 0}: "
        return Problem(self.name, self._path(), "error", where + message, hint)

    def _path(self) -> str:
        path = ""
        for frame in self._open:
            if isinstance(frame.value, list):
                path = join_path(path, len(frame.value))
            elif frame.key is not None and not frame.expects_key:
                path = join_path(path, frame.key) if frame.key != _BAD_KEY else path
        return path


def _line(event: yaml.Event) -> int:
    """1-based; the type stubs know events without a place, the parsers do not."""
    return event.start_mark.line + 1 if event.start_mark else 0
