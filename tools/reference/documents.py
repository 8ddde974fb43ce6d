"""The JSON documents, from the Structs that are written: keys, types, and what docstrings say of them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

import partage
from partage.answers.documents.document import Document
from tools.reference.tables import code, table

_SKIPPED = {"DeviceOffer", "Raw"}
"""Types that only the same version of Partage reads."""


def documents() -> str:
    """A section for each kind of document, then one for each row that stands in several or in one."""
    roots = sorted(all_documents(), key=_kind)
    rows = rows_of(roots)
    kinds = [_section(_kind(root), root) for root in roots]
    others = [_section(name, rows[name]) for name in sorted(rows) if rows[name] not in roots]
    return "\n".join(["## Documents\n", *kinds, "## Rows\n", *others])


def rows_of(roots: Iterable[type[msgspec.Struct]]) -> dict[str, type[msgspec.Struct]]:
    """All types that stand in them, by name."""
    rows: dict[str, type[msgspec.Struct]] = {}
    for root in roots:
        _collect(root, rows)
    return rows


def all_documents() -> Iterator[type[Document]]:
    """The documents, in whichever room they stand."""
    for found in pkgutil.walk_packages(partage.__path__, "partage."):
        if not found.name.startswith("partage.guard") and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    return _below(Document)


def _below(kind: type[Document]) -> Iterator[type[Document]]:
    for document in kind.__subclasses__():
        below = tuple(_below(document))
        yield from below or (document,)  # what several documents begin with is none


def _kind(struct: type[msgspec.Struct]) -> str:
    """``Plan``; empty for a row."""
    hint = get_type_hints(struct).get("kind")
    return str(get_args(hint)[0]) if get_origin(hint) is Literal else ""


def _collect(struct: type[msgspec.Struct], rows: dict[str, type[msgspec.Struct]]) -> None:
    for field in msgspec.structs.fields(struct):
        for inner in _structs_in(field.type):
            assert rows.get(inner.__name__, inner) is inner, f"two rows are called {inner.__name__}"
            if inner.__name__ not in rows:
                rows[inner.__name__] = inner
                _collect(inner, rows)


def _structs_in(hint: Any) -> Iterator[type[msgspec.Struct]]:  # noqa: ANN401 - any annotation
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        if hint.__name__ not in _SKIPPED:
            yield hint
        return
    for inner in get_args(hint):
        yield from _structs_in(inner)


def _section(title: str, struct: type[msgspec.Struct]) -> str:
    meanings = _meanings(struct)
    rows = [
        (code(field.encode_name), _type(field.type), meanings.get(field.name, ""))
        for field in msgspec.structs.fields(struct)
    ]
    rows = [row for row in rows if row[0] != code("kind") or not _kind(struct)]
    about = _first(struct)
    return f"### {title}\n\n{about}\n\n{table(('key', 'type', 'means'), rows)}"


def _first(struct: type[msgspec.Struct]) -> str:
    """The docstring's first sentence, without what it says of fields."""
    text = _said(struct)
    found = _fields_said(struct, text)
    return text[: found[0][0]].strip() if found else text


def _meanings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Field to what the docstrings of the class and its bases say: ``name: text``, ``name, name: text``."""
    meanings: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if not base.__module__.startswith("partage."):
            continue
        text = _said(base)
        said = _fields_said(struct, text)
        ends = [*(start for start, _, _ in said), len(text)][1:]
        for (_, begin, names), end in zip(said, ends, strict=True):
            meanings |= dict.fromkeys(names, text[begin:end].strip().rstrip(";."))
    return meanings


def _said(struct: type) -> str:
    """The docstring in one line, in the words of JSON, without what concerns the code alone."""
    text = " ".join(inspect.cleandoc(struct.__dict__.get("__doc__") or "").replace("``", "`").split())
    return re.sub(r"\bNone\b", "null", re.sub(r" (Raises|Source:?) .*", "", text))


def _fields_said(struct: type[msgspec.Struct], text: str) -> list[tuple[int, int, list[str]]]:
    """Where a docstring begins to speak of which fields: start, end of ``name:``, names."""
    known = {one.name for one in msgspec.structs.fields(struct)}
    found = []
    for match in re.finditer(r"(?:^|(?<=[.;] ))([a-z_]+(?:, [a-z_]+)*): ", text):
        names = match[1].split(", ")
        if set(names) <= known:
            found.append((match.start(), match.end(), names))
    return found


def _type(hint: Any) -> str:  # noqa: ANN401 - any annotation
    """A type in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is None or hint is type(None):
        return "null"
    if origin is Annotated:
        return _type(inner[0])
    if origin is Literal:
        return ", ".join(code(str(one)) for one in inner)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(one) for one in inner))
    if origin is tuple:
        return f"list of {_type(inner[0])}"
    if origin is not None and len(inner) == 2:
        return f"mapping to {_type(inner[1])}"
    if hasattr(hint, "__supertype__"):
        return _type(hint.__supertype__)
    return _plain_type(hint)


def _plain_type(kind: type) -> str:
    if kind is Any:
        return "any value"
    if kind.__name__ in _SKIPPED:
        return "for this version of Partage only"
    if issubclass(kind, msgspec.Struct):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if issubclass(kind, Enum):
        return ", ".join(code(str(one.value)) for one in kind)
    words = {str: "text", bool: "true or false", int: "number", float: "number"}
    return words.get(kind, kind.__name__)
