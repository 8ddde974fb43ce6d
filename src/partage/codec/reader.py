"""Reading values by the annotations of their class: keys, types and defaults are said once.

What a type does not say (a limit, an example, another key) is given for the field. Wrong things are noted as
by ``codec.fields``, in the order in which the fields stand in the class. It is a loop over ``Table``, and no
second way to read: where keys exclude each other, or what is left out follows from something else (a GPU's
model), ``Table`` and ``Field`` are used themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from partage.codec.fields import Field, Table
from partage.values import Frozen

T = TypeVar("T")
S = TypeVar("S", bound=Struct)
Read = Callable[[Field], T | None]


class Reader(Frozen, Generic[S]):
    """Reads values of ``kind`` from mappings.

    only:  the fields that a file gives, in the order in which they are read; empty: all, as in the class.
    named: field to key, where the key is not the field's name in kebab-case.
    reads: field to what reads it, in place of what its type says: a number is 0 or more, a ``float`` is a
           number of seconds.
    nulls: null stands for None, where a field may be None.
    """

    kind: type[S]
    only: Sequence[str] = ()
    named: Mapping[str, str] = {}
    reads: Mapping[str, Read[Any]] = {}
    nulls: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that a mapping may have."""
        return tuple(map(self._key, self.only or self.kind.__struct_fields__))

    def read(self, place: Field, example: str = "") -> S | None:
        """The value that stands there, see ``fill``; None if it is no mapping. example: for the hint."""
        table = place.table(self.keys, example)
        return None if table is None else self.fill(table)

    def fill(self, table: Table, **known: Any) -> S:  # noqa: ANN401  fields of any type
        """The value of a mapping. known: fields that are not read. Where a problem is noted, one that must
        not be used: None stands for what is missing or wrong.
        """
        infos = _fields(self.kind)
        for name in self.only or infos:
            if name not in known:
                known[name] = self._value(table, infos[name])
        return self.kind(**known)

    def _key(self, name: str) -> str:
        return self.named.get(name) or name.replace("_", "-")

    def _value(self, table: Table, info: FieldInfo) -> Any:  # noqa: ANN401
        key, read = self._key(info.name), self.reads.get(info.name) or by_type(info.type)
        optional = NoneType in get_args(info.type)
        if info.required and not optional:
            return table.needed(key, read)
        default = None if info.required else info.default
        if info.default_factory is not NODEFAULT:
            default = info.default_factory()
        return (table.nullable if self.nulls and optional else table.value)(key, read, default)


@cache
def _fields(kind: type[Struct]) -> dict[str, FieldInfo]:
    """By name. Looked up at the first use: most processes read few kinds."""
    return {info.name: info for info in fields(kind)}


def by_type(kind: Any) -> Read[Any]:  # noqa: ANN401  an annotation
    """What reads a value of that annotation. Raises KeyError for one that needs a reader of its own."""
    inner = [each for each in get_args(kind) if each is not NoneType]
    if get_origin(kind) is Mapping:
        return members(by_type(inner[1]))
    if inner:
        return by_type(inner[0])
    return (lambda place: place.choice(kind)) if issubclass(kind, StrEnum) else _PLAIN[kind]


def number(at_least: int, at_most: int | None = None) -> Read[int]:
    """A whole number within limits."""
    return lambda place: place.integer(at_least, at_most)


def parsed(parse: Callable[[str], T], like: str = "") -> Read[T]:
    """As ``Field.parsed``."""
    return lambda place: place.parsed(parse, like)


def word_of(words: Mapping[str, T]) -> Read[T]:
    """As ``Field.word``."""
    return lambda place: place.word(words)


def one_or_many(read: Read[T]) -> Callable[[Field], tuple[T, ...]]:
    """One value, or a list of them; wrong ones are left out."""
    return lambda place: tuple(
        value for item in place.one_or_many() or () if (value := read(item)) is not None
    )


def members(read: Read[T]) -> Callable[[Field], dict[str, T]]:
    """The values of a mapping with keys of the operator's choice; wrong ones are left out."""
    return lambda place: {
        key: value for key, member in (place.mapping() or {}).items() if (value := read(member)) is not None
    }


_PLAIN: dict[type, Read[Any]] = {
    bool: Field.boolean,
    int: number(0),
    float: Field.seconds,
    str: Field.text,
}
