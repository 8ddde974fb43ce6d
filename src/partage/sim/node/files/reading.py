"""One place of a parsed file: it has a path, reads plain values, and collects the problems."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec import Struct, field

from partage.edges.files.safeyaml import Value, describe, join
from partage.errors import Problem

T = TypeVar("T")
_BIGGEST = 1 << 62
_HIGHEST_INDEX = 1023
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9./-]{0,99}", re.ASCII)


class MachineField(Struct):
    """A value, where it stands, and the list of problems of its file.

    Readers give the default where nothing stands, and also after having put a problem down.
    """

    file: str
    value: Value
    path: str = ""
    problems: list[Problem] = field(default_factory=list)

    def wrong(self, message: str, hint: str = "") -> None:
        """Put a problem of this place down."""
        self.problems.append(Problem(self.file, self.path, "error", message, hint))

    def at(self, key: str | int) -> MachineField:
        """The place below; its value is None where nothing stands."""
        below: Value = None
        if isinstance(self.value, dict) and isinstance(key, str):
            below = self.value.get(key)
        elif isinstance(self.value, list) and isinstance(key, int):
            below = self.value[key]
        return MachineField(self.file, below, join(self.path, key), self.problems)

    def has(self, key: str) -> bool:
        """Whether the key stands here, be it with null."""
        return isinstance(self.value, dict) and key in self.value

    def is_mapping(self) -> bool:
        """Puts a problem down if not."""
        if not isinstance(self.value, dict):
            self.wrong(str(unlike("a mapping", self.value)))
        return isinstance(self.value, dict)

    def items(self) -> Iterator[MachineField]:
        """The places of a list; none where nothing stands."""
        if isinstance(self.value, list):
            yield from (self.at(position) for position in range(len(self.value)))
        elif self.value is not None:
            self.wrong(str(unlike("a list", self.value)))

    def rows(self) -> Iterator[MachineField]:
        """The places of a list of mappings."""
        return (place for place in self.items() if place.is_mapping())

    def only(self, known: Iterable[str]) -> None:
        """Put a problem down for every key that is not known."""
        import difflib

        names = list(known)
        for key in self.value if isinstance(self.value, dict) else ():
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1)
                self.at(key).wrong("unknown key", f"did you mean {near[0]}?" if near else "")

    def read(self, key: str, default: T, parse: Callable[[Value], T]) -> T:
        """What ``parse`` makes of the value; its ValueError becomes the problem."""
        if not self.has(key):
            return default
        place = self.at(key)
        try:
            return parse(place.value)
        except ValueError as error:
            place.wrong(str(error))
            return default

    def needed(self, key: str, parse: Callable[[Value], T]) -> T | None:
        """As ``read``, for a key that has to be there."""
        if not self.has(key):
            self.at(key).wrong("is missing")
            return None
        return self.read(key, None, parse)

    def text(self, key: str, default: str) -> str:
        """A text that is not empty."""
        return self.read(key, default, some_text)

    def whole(self, key: str, default: int, least: int = 0, most: int = _BIGGEST) -> int:
        """A whole number from least to most."""
        return self.read(key, default, lambda value: whole_number(value, least, most))


def unlike(kind: str, value: Value) -> ValueError:
    """The error for a value that is not of that kind."""
    return ValueError(f"{kind} is needed, not {describe(value)}")


def optional(parse: Callable[[Value], T | None]) -> Callable[[Value], T | None]:
    """The same reader, for which null is None."""
    return lambda value: None if value is None else parse(value)


def some_text(value: Value) -> str:
    """The value, if it is a text that is not empty. Raises ValueError."""
    if isinstance(value, str) and value:
        return str(value)
    raise unlike("a text", value)


def any_text(value: Value) -> str:
    """The value, if it is a text, be it empty. Raises ValueError."""
    if isinstance(value, str):
        return str(value)
    raise unlike("a text", value)


def truth(value: Value) -> bool:
    """The value, if it is true or false. Raises ValueError."""
    if isinstance(value, bool):
        return value
    raise unlike("true or false", value)


def whole_number(value: Value, least: int = 0, most: int = _BIGGEST) -> int:
    """The value, if it is a whole number within these bounds. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    bounds = f"from {least} to {most}" if most < _BIGGEST else f"of at least {least}"
    raise unlike(f"a whole number {bounds}", value)


def seconds(value: Value) -> float:
    """The value, if it is a number of seconds that is not negative. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _BIGGEST:
        return float(value)
    raise unlike("a number of seconds", value)


def choice(value: Value, choices: Iterable[str]) -> str:
    """The value, if it is one of these words. Raises ValueError."""
    words = list(choices)
    if isinstance(value, str) and value in words:
        return str(value)
    raise unlike(f"one of {', '.join(words)}", value)


def matching(value: Value, pattern: re.Pattern[str], kind: str) -> str:
    """The value, if it is a text of that pattern. Raises ValueError."""
    if isinstance(value, str) and pattern.fullmatch(value):
        return str(value)
    raise unlike(kind, value)


def index_number(value: Value) -> int:
    """An index, a minor or an id. Raises ValueError."""
    return whole_number(value, 0, _HIGHEST_INDEX)


def uuid(value: Value) -> str:
    """A UUID as the driver writes it. Raises ValueError."""
    return matching(value, _UUID, "a UUID")
