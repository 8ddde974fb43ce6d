"""YAML and JSON that may come from anybody: plain values, within bounds, with the place of every fault.

Strict where YAML surprises: ``12:30`` is text and not 750 (no base-60 integers), ``010`` is text, a
duplicate key is an error, keys are text, NaN and infinities are refused. Bounded where YAML bites: size,
depth, number of values with every alias counted in full. Nothing here recurses, so no input ends in a
RecursionError.

The events come from libyaml, which PyYAML's wheels carry; without it the same code runs on PyYAML's own
parser, thirty times slower, and the bounds shrink accordingly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml

from partage.errors import InputError, Problem

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"

HAS_LIBYAML = bool(yaml.__with_libyaml__)
LIMIT_BYTES = 1 << 20 if HAS_LIBYAML else 1 << 16
LIMIT_VALUES = 50_000 if HAS_LIBYAML else 4_000
LIMIT_DEPTH = 64
LIMIT_PROBLEMS = 100
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
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_TAG_DIRECTIVE = re.compile(r"^%TAG", re.MULTILINE)
_TAG_PREFIX = "tag:yaml.org,2002:"


class OldBool(str):
    """An unquoted ``yes``, ``no``, ``on``, ``off``, ``y`` or ``n``: text to us, a boolean to YAML 1.1."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says.

    lines: (id of the mapping or list, key or index) to the 1-based line of that value's key or item.
    """

    value: Value
    lines: Mapping[tuple[int, str | int], int]

    def line(self, container: Value, key: str | int) -> int | None:
        """Where ``container[key]`` stands; None where that is not known."""
        return self.lines.get((id(container), key))


def join(path: str, key: str | int) -> str:
    """The path of a member: ``gpus[1]``, ``flags.plugin``, ``mig-configs["all-1g.10gb"]``."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _PLAIN_KEY.fullmatch(key):
        shown = key if len(key) <= 64 else key[:61] + "..."
        return path + '["' + shown.encode("unicode_escape").decode().replace('"', '\\"') + '"]'
    return f"{path}.{key}" if path else key


def read_document(data: bytes, name: str) -> Document:
    """Everything that one YAML or JSON document says. Raises InputError with all that is wrong with it.

    name: what problems call the file.
    """
    text = _decode(data, name)
    builder = _Builder(name)
    try:
        for event in _events(text):
            builder.take(event)
    except yaml.YAMLError as error:
        raise InputError([*builder.problems, _syntax_problem(error, name)]) from error
    if builder.problems:
        raise InputError(builder.problems)
    if builder.root is None:
        raise _refused(name, "empty file", "start it with 'version: partage/v1'")
    return Document(builder.root, builder.lines)


def check_size(size_bytes: int, name: str) -> None:
    """Raises InputError for more than LIMIT_BYTES."""
    if size_bytes > LIMIT_BYTES:
        raise _refused(
            name,
            f"too large: {size_bytes} bytes, and at most {LIMIT_BYTES} are read",
            "a policy is a few kilobytes; is this the right file?",
        )


def _decode(data: bytes, name: str) -> str:
    check_size(len(data), name)
    nul = data.find(b"\0")
    if nul >= 0:
        raise _refused(name, f"binary: byte {nul} is NUL", "a policy is YAML or JSON text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refused(name, f"not UTF-8: byte {error.start} is 0x{data[error.start]:02x}") from error
    # libyaml looks through all earlier %TAG lines at each new one: 1 MiB of them takes 13 s.
    if _TAG_DIRECTIVE.search(text):
        raise _refused(name, "%TAG directives are not supported")
    return text


def _refused(name: str, message: str, hint: str = "") -> InputError:
    return InputError([Problem(name, "", "error", message, hint)])


def _events(text: str) -> Iterator[yaml.Event]:
    parser = yaml.CSafeLoader(text) if HAS_LIBYAML else yaml.SafeLoader(text)
    while parser.check_event():
        yield parser.get_event()


def _syntax_problem(error: yaml.YAMLError, name: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    else:
        where, said = "", str(error).splitlines()[0]
    return Problem(name, "", "error", f"{where}not YAML: {said}", _advice(said))


def _advice(said: str) -> str:
    if "cannot start any token" in said:
        return "indent with blanks, never with tabs; quote values that begin with a special character"
    if "mapping values are not allowed" in said:
        return "look for a missing blank after ':', or for wrong indentation"
    return ""


@dataclass(slots=True)
class _Open:
    """A mapping or list that has begun and not ended."""

    value: list[Value] | dict[str, Value]
    anchor: str | None
    began_at: int
    line: int
    height: int = 1
    key: str | None = None
    expects_key: bool = True
    merged: list[dict[str, Value]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Anchored:
    """A value that may be repeated. size: values in it, aliases in full; height: levels below it."""

    value: Value
    size: int
    height: int


_MERGE = "<<"
_BAD_KEY = "\0"


class _Builder:
    """Turns parser events into values, and counts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root: Value = None
        self.problems: list[Problem] = []
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
                self._add(value, event, event.start_mark.line + 1)
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
        if event.tag not in (None, "!", _TAG_PREFIX + ("map" if mapping else "seq")):
            self._wrong(event, f"unknown tag {event.tag[:64]!r}", "remove it; tags are not used here")
        self._open.append(_Open({} if mapping else [], event.anchor, self._values, event.start_mark.line + 1))

    def _end(self, event: yaml.Event) -> None:
        done = self._open.pop()
        for merged in done.merged:
            self._merge(done.value, merged)
        self._anchor(done.anchor, _Anchored(done.value, self._values - done.began_at + 1, done.height))
        if self._open:
            self._open[-1].height = max(self._open[-1].height, done.height + 1)
        self._add(done.value, event, done.line)

    def _alias(self, event: yaml.AliasEvent) -> None:
        known = self._anchors.get(event.anchor)
        if known is None:
            if any(frame.anchor == event.anchor for frame in self._open):
                self._stop(event, f"'*{event.anchor[:64]}' stands inside itself")
            self._stop(event, f"'*{event.anchor[:64]}' refers to nothing", "'&name' has to come first")
        self._count(known.size, event)
        if len(self._open) + known.height > LIMIT_DEPTH:
            self._stop(event, f"nested more than {LIMIT_DEPTH} levels deep")
        if self._open:
            self._open[-1].height = max(self._open[-1].height, known.height + 1)
        self._add(known.value, event, event.start_mark.line + 1)

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
            self._wrong(
                event, f"duplicate key {value[:64]!r}, first on line {first}", "remove one of the two"
            )
            return _BAD_KEY
        self.lines[id(frame.value), value] = event.start_mark.line + 1
        return value

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

    # --- scalars -----------------------------------------------------------------------------

    def _scalar(self, event: yaml.ScalarEvent) -> Value:
        text: str = event.value
        if event.implicit[0]:
            return self._plain(text, event)
        if event.tag in (None, "!", _TAG_PREFIX + "str"):
            return text
        value = self._plain(text, event) if event.tag in _SCALAR_TAGS else None
        if not isinstance(value, _SCALAR_TAGS.get(event.tag, ())):
            self._wrong(event, f"unknown or unfitting tag {event.tag[:64]!r}", "remove it")
        return value

    def _plain(self, text: str, event: yaml.Event) -> Value:
        """YAML 1.2's core schema, and nothing of 1.1 that surprises."""
        if text in _NULLS:
            return None
        if text in _BOOLS:
            return _BOOLS[text]
        if text in _OLD_BOOLS:
            return OldBool(text)
        if text[0] in "-+.0123456789":
            return self._number(text, event)
        return text

    def _number(self, text: str, event: yaml.Event) -> Value:
        if _INTEGER.fullmatch(text):
            if len(text) <= LONGEST_NUMBER:
                return int(text, 0)
            self._wrong(event, f"a number of {len(text)} digits", "put it in quotes if it is text")
            return None
        if len(text) <= 64 and (_FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text)):
            number = math.inf if _NOT_FINITE.fullmatch(text) else float(text)
            if math.isfinite(number):
                return number
            self._wrong(event, f"{text} is not a finite number")
            return None
        return text

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
        if len(self.problems) < LIMIT_PROBLEMS:
            self.problems.append(self._problem(event, message, hint))

    def _stop(self, event: yaml.Event, message: str, hint: str = "") -> None:
        raise InputError([*self.problems, self._problem(event, message, hint)])

    def _problem(self, event: yaml.Event, message: str, hint: str) -> Problem:
        mark = event.start_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: "
        return Problem(self.name, self._path(), "error", where + message, hint)

    def _path(self) -> str:
        path = ""
        for frame in self._open:
            if isinstance(frame.value, list):
                path = join(path, len(frame.value))
            elif frame.key is not None and not frame.expects_key:
                path = join(path, frame.key) if frame.key != _BAD_KEY else path
        return path


_SCALAR_TAGS: Mapping[str, tuple[type, ...]] = {
    _TAG_PREFIX + "null": (type(None),),
    _TAG_PREFIX + "bool": (bool,),
    _TAG_PREFIX + "int": (int,),
    _TAG_PREFIX + "float": (int, float),
}


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
