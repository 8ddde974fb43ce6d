"""YAML and JSON that may come from anybody: plain values, within bounds, with the place of every fault.

Strict where YAML surprises: ``12:30`` is text and not 750 (no base-60 integers), ``010`` is text, a
duplicate key is an error (for ``read_lenient`` it is only named), keys are text, NaN and infinities are
refused. Bounded where YAML bites: size, depth, number of values with every alias counted in full. Nothing
here recurses, so no input ends in a RecursionError.

The events come from libyaml, which PyYAML's wheels carry; without it the same code runs on PyYAML's own
parser, thirty times slower, and the bounds shrink accordingly.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

import yaml

from partage.codec.yaml_tree import (
    HAS_LIBYAML,
    LIMIT_PROBLEMS,
    LIMIT_VALUES,
    OldBool,
    TreeBuilder,
    Value,
    describe,
    join_path,
)
from partage.errors import InputError, Problem, wrong_input
from partage.values import Frozen

__all__ = [
    "LIMIT_BYTES",
    "LIMIT_PROBLEMS",
    "LIMIT_VALUES",
    "OldBool",
    "Value",
    "YamlDocument",
    "check_size",
    "describe",
    "join_path",
    "read_document",
    "read_lenient",
    "split_documents",
]

LIMIT_BYTES = 1 << 20 if HAS_LIBYAML else 1 << 16
_MARKER = re.compile(rb"^---(?=\s|$)", re.MULTILINE)
"""The beginning of a document. A line that starts so ends every YAML value, block texts included."""
_NO_CONTENT = re.compile(rb"^---|(?m:#.*$)")
_TAG_DIRECTIVE = re.compile(r"^%TAG", re.MULTILINE)


class YamlDocument(Frozen):
    """What a file says.

    lines: (id of the mapping or list, key or index) to the 1-based line of that value's key or item.
    duplicates: keys that stand twice in one mapping, of which the last one counts, as errors.
    """

    value: Value
    lines: Mapping[tuple[int, str | int], int]
    duplicates: tuple[Problem, ...] = ()

    def line(self, container: Value, key: str | int) -> int | None:
        """The place of ``container[key]``; None where that is not known."""
        return self.lines.get((id(container), key))


def read_document(data: bytes, name: str) -> YamlDocument:
    """Everything that one YAML or JSON document says. Raises InputError with all that is wrong with it.

    name: what problems call the file.
    """
    document = read_lenient(data, name)
    if document.duplicates:
        raise InputError(document.duplicates)
    return document


def read_lenient(data: bytes, name: str) -> YamlDocument:
    """As ``read_document``, for formats that take duplicate keys: the last one counts."""
    text = _decode(data, name)
    builder = TreeBuilder(name)
    try:
        for event in _events(text):
            builder.take(event)
    except yaml.YAMLError as error:
        problems = [*builder.problems, *builder.duplicates, _syntax_problem(error, name)]
        raise InputError(problems) from error
    if builder.problems:
        raise InputError([*builder.problems, *builder.duplicates])
    if builder.root is None:
        raise wrong_input(name, "empty file", "start it with 'version: partage/v1'")
    return YamlDocument(builder.root, builder.lines, tuple(builder.duplicates))


def split_documents(data: bytes) -> list[bytes]:
    """The documents of a file, each for ``read_document``; empty ones left out. Lines keep their numbers."""
    starts = [match.start() for match in _MARKER.finditer(data)]
    parts: list[bytes] = []
    for begin, end in itertools.pairwise([0, *starts, len(data)]):
        text = data[begin:end]
        if _NO_CONTENT.sub(b"", text).strip():
            parts.append(b"\n" * data.count(b"\n", 0, begin) + text)
    return parts


def check_size(size_bytes: int, name: str) -> None:
    """Raises InputError for more than LIMIT_BYTES."""
    if size_bytes > LIMIT_BYTES:
        raise wrong_input(
            name,
            f"too large: {size_bytes} bytes, and at most {LIMIT_BYTES} are read",
            "a policy is a few kilobytes; is this the right file?",
        )


def _decode(data: bytes, name: str) -> str:
    check_size(len(data), name)
    nul = data.find(b"\0")
    if nul >= 0:
        raise wrong_input(name, f"binary: byte {nul} is NUL", "a policy is YAML or JSON text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise wrong_input(name, f"not UTF-8: byte {error.start} is 0x{data[error.start]:02x}") from error
    # libyaml looks through all earlier %TAG lines at each new one: 1 MiB of them takes 13 s.
    if _TAG_DIRECTIVE.search(text):
        raise wrong_input(name, "%TAG directives are not supported")
    return text


def _events(text: str) -> Iterator[yaml.Event]:
    parser = yaml.CSafeLoader(text) if HAS_LIBYAML else yaml.SafeLoader(text)
    while parser.check_event():
        event = parser.get_event()
        if event is not None:
            yield event


def _syntax_problem(error: yaml.YAMLError, name: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        text = ", ".join(part for part in (error.context, error.problem) if part)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    else:
        where, text = "", str(error).splitlines()[0]
    return Problem(name, "", "error", f"{where}not YAML: {text}", _advice(text))


def _advice(text: str) -> str:
    if "cannot start any token" in text:
        return "indent with blanks, never with tabs; quote values that begin with a special character"
    if "mapping values are not allowed" in text:
        return "look for a missing blank after ':', or for wrong indentation"
    return ""
